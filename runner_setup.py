"""Part of runner.py: what some calls ask for before their source runs."""


def set_up(scope):
    load("runner_value")
    if REQUEST["set_open_files"]:
        limit_open_files(int(REQUEST["open_files"]))
    provider = resolve("globals provider", "provider")
    projector = REQUEST["projector"]
    global PROJECTOR
    PROJECTOR = numpy_pandas if projector == b"numpy-pandas" else resolve("type projector", "projector")
    if REQUEST["self_check"]:
        version = ".".join(map(str, sys.version_info[:3]))
        write(frame_of(b'{"status":"ok","python":"%b"}' % version.encode()))
        posix._exit(0)
    if provider:
        scope.update(provided(provider))


def limit_open_files(limit):
    # From the standard library only: a project's own resource.py must not be taken instead, nor
    # be hidden from the source.
    path = sys.path[:]
    sys.path[:] = [entry for entry in path if entry.endswith("lib-dynload")]
    import resource
    sys.path[:] = path
    del sys.modules["resource"]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= hard < limit:  # -1 is infinity
        limit = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def resolve(role, field):
    """The function that a field names as module:function; None for an empty field."""
    name = REQUEST[field].decode("utf-8", "surrogateescape")
    if not name:
        return None
    try:
        module, _, path = name.partition(":")
        if not module or not path:
            raise ValueError("expected module:function")
        __import__(module)
        function = sys.modules[module]
        for attribute in path.split("."):
            function = getattr(function, attribute)
        if not callable(function):
            raise TypeError(f"{type_name(type(function))} is not callable")
        return function
    except BaseException as error:
        raise Problem("extension", f"{role} {name}: {one_line(error)}") from error


def provided(provider):
    name = REQUEST["provider"].decode("utf-8", "surrogateescape")
    try:
        call = {name: REQUEST[name].decode("utf-8", "surrogateescape")
                for name in ("request_id", "workspace", "artifact_root")}
        call["extra"] = None
        if REQUEST["extra"]:
            import json
            call["extra"] = json.loads(REQUEST["extra"])
        names = provider(call)
        if not isinstance(names, dict) or not all(isinstance(key, str) for key in names):
            raise TypeError("expected a dict with keys of type str")
        return names
    except BaseException as error:
        raise Problem("extension", f"globals provider {name}: {one_line(error)}") from error


def numpy_pandas(value):
    """The built-in type projector; returns a value of another type as it came.

    In pandas NaN, NA, NaT and None all say that a value is missing, so in its objects each is
    null. In numpy NaN is a number, which JSON can't hold: as in plain Python, that is an error.
    """
    pandas, numpy = sys.modules.get("pandas"), sys.modules.get("numpy")
    if pandas:
        if value is pandas.NA or value is pandas.NaT:
            return None
        if isinstance(value, pandas.DataFrame):
            fit(value.size)
            columns = [cells(value.iloc[:, index]) for index in range(value.shape[1])]
            rows = list(zip(*columns)) if columns else [()] * len(value)
            return {"columns": cells(value.columns), "rows": rows, "row_count": len(value)}
        if isinstance(value, pandas.Series):
            fit(value.size)
            return {"name": value.name, "index": cells(value.index), "values": cells(value)}
        if isinstance(value, (pandas.Index, pandas.api.extensions.ExtensionArray)):
            fit(value.size)
            return cells(value)
    if numpy:
        if isinstance(value, numpy.ndarray):
            fit(value.size)
            return times(numpy, value) if value.dtype.kind == "M" else value.tolist()
        if isinstance(value, numpy.datetime64):
            return times(numpy, value)
        if isinstance(value, numpy.generic):
            item = value.item()
            return value if type(item) is type(value) else item
    return value


def fit(size):
    """Refuses what can't but be too long before it is made into lists."""
    if size > int(REQUEST["return_value_bytes"]):
        raise too_long("return_value_bytes")


def cells(values):
    """The items of a pandas object, with None for all that are missing."""
    pandas = sys.modules["pandas"]
    missing = (pandas.NA, pandas.NaT)
    return [None if item is missing[0] or item is missing[1] or isinstance(item, float) and item != item
            else item for item in values.tolist()]


def times(numpy, value):
    texts = numpy.where(numpy.isnat(value), None, numpy.datetime_as_string(value))
    return texts.tolist()
