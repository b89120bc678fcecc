"""Part of runner.py: what some calls ask for before their source runs."""


def set_up(scope):
    global PROJECTOR
    load("runner_value")
    if REQUEST["set_open_files"]:
        limit_open_files(int(REQUEST["open_files"]))
    provider = resolve("globals provider", REQUEST["provider"])
    if REQUEST["projector"] == b"numpy-pandas":
        PROJECTOR = numpy_pandas
    else:
        PROJECTOR = resolve("type projector", REQUEST["projector"])
    if REQUEST["self_check"]:
        version = ".".join(map(str, sys.version_info[:3]))
        write(frame_of(b'{"status":"ok","python":"%b"}' % version.encode()))
        posix._exit(0)
    if provider:
        scope.update(provided_by(provider))


def limit_open_files(limit):
    # From the standard library only: a project's own resource.py must not be taken for it, nor
    # be hidden from the source afterwards.
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
    """The function that a field names as module:function; None if it is empty."""
    name = field.decode("utf-8", "surrogateescape")
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


def provided_by(provider):
    text = {name: REQUEST[name].decode("utf-8", "surrogateescape")
            for name in ("provider", "request_id", "workspace", "artifact_root", "extra")}
    name, extra = text.pop("provider"), text.pop("extra")
    try:
        import json
        names = provider({**text, "extra": json.loads(extra) if extra else None})
        if not isinstance(names, dict) or not all(isinstance(key, str) for key in names):
            raise TypeError("expected a dict with keys of type str")
        return names
    except BaseException as error:
        raise Problem("extension", f"globals provider {name}: {one_line(error)}") from error


def numpy_pandas(value):
    """The built-in type projector. A value of any other type comes back as it is.

    In pandas NaN, NA, NaT and None all mean a missing value, so inside of its objects each is
    null. In numpy NaN is a number; as in plain Python it is one that JSON can't hold, an error.
    """
    pandas, numpy = sys.modules.get("pandas"), sys.modules.get("numpy")
    if pandas:
        if value is pandas.NA or value is pandas.NaT:
            return None
        if isinstance(value, pandas.DataFrame):
            columns = [cells(pandas, value.iloc[:, index]) for index in range(value.shape[1])]
            rows = list(zip(*columns)) if columns else [()] * len(value)
            return {"columns": cells(pandas, value.columns), "rows": rows, "row_count": len(value)}
        if isinstance(value, pandas.Series):
            index = cells(pandas, value.index)
            return {"name": value.name, "index": index, "values": cells(pandas, value)}
        if isinstance(value, (pandas.Index, pandas.api.extensions.ExtensionArray)):
            return cells(pandas, value)
    if numpy:
        if isinstance(value, (numpy.ndarray, numpy.generic)):
            fit(value.size)
            if value.dtype.kind == "M":  # tolist() and item() would make it a count of ns
                text = numpy.datetime_as_string(value)
                return numpy.where(numpy.isnat(value), None, text).tolist()
            if value.dtype.kind != "m":
                plain = value.tolist()
                return value if type(plain) is type(value) else plain
    return value


def cells(pandas, values):
    """The items of a pandas object as a list, None for each that is missing."""
    fit(values.size)
    return [None if item is pandas.NA or item is pandas.NaT
            or isinstance(item, float) and item != item else item for item in values.tolist()]


def fit(size):
    """Refuses what can't but be too long before all of it is made into lists."""
    if size > int(REQUEST["return_value_bytes"]):
        raise too_long("return_value_bytes")
