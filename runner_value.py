"""Part of runner.py: projects a return value that is more than a simple scalar onto JSON."""

MAX_LEVELS = 50
ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {34: '\\"', 92: "\\\\"}
PROJECTOR = None  # called with each value of another type
ACTIVE = set()  # ids of the containers around the value in work


class Problem(Exception):
    """An error with its type and its message for the frame."""

    def __init__(self, type, message, limit=None):
        self.type, self.message, self.limit = type, message, limit
        self.steps = []  # serialization: the way to the value, innermost step first


def too_long(limit):
    what = "return value" if limit == "return_value_bytes" else "frame of the return value"
    return Problem("return_limit", f"{limit}={REQUEST[limit].decode()} exceeded by the {what}", limit)


def encode_value(value):
    for module, name, encoder in STANDARD_TYPES:  # without the module there are no values either
        ENCODERS[getattr(sys.modules.get(module), name, None)] = encoder
    try:
        return encode(value, 0)
    except Problem as problem:
        if problem.type == "serialization":
            where = "".join(reversed(problem.steps))
            where = where if len(where) <= 200 else f"{where[:100]}...{where[-100:]}"
            problem.message = f"${where}: {problem.message}"
        raise


def encode(value, level):
    text = scalar(value)
    if text is not None:
        return text
    try:
        for kind in type(value).__mro__:
            if kind in ENCODERS:
                return ENCODERS[kind](kind, value, level)
        return encode_unknown(value, level)
    except (Problem, MemoryError):
        raise
    except Exception as error:  # a method of the value, or a thread that changes it meanwhile
        problem = f"{type_name(type(value))} can't be read, {one_line(error)}"
        raise Problem("serialization", problem) from error


def encode_bool(kind, value, level):  # simple, but found here by a projector's numpy cousins
    return "true" if value else "false"


def encode_int(kind, value, level):
    if int.bit_length(value) > 4 * int(REQUEST["return_value_bytes"]) + 64:
        raise too_long("return_value_bytes")  # without the wait for all its digits
    if hasattr(sys, "set_int_max_str_digits"):  # not in 3.10.0
        sys.set_int_max_str_digits(0)
    return int.__repr__(value)


def encode_float(kind, value, level):
    text = float.__repr__(value)
    if value - value != 0:
        raise Problem("serialization", f"{text} is no number in JSON")
    return text


def encode_str(kind, value, level):
    text = str.__str__(value)
    if len(text) > int(REQUEST["return_value_bytes"]):
        raise too_long("return_value_bytes")
    return quote(text)


def quote(text):
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"lone surrogate {text[error.start]!a} at character {error.start}"
        raise Problem("serialization", problem) from None
    return f'"{text.translate(ESCAPES)}"'


def encode_standard(kind, value, level):
    if type(value).__name__ == "NaTType":  # pandas calls its "not a time" a datetime
        return encode_unknown(value, level)
    return encode_str(str, value.isoformat() if hasattr(kind, "isoformat") else str(value), level)


def encode_array(kind, value, level):
    enter(value, level)
    parts, room = [], int(REQUEST["return_value_bytes"])
    for item in kind.__iter__(value):  # its own way, whatever a subclass does
        try:
            text = scalar(item)
            if text is None:
                text = encode(item, level + 1)
        except Problem as problem:
            problem.steps.append(f"[{len(parts)}]")
            raise
        parts.append(text)
        room -= len(text) + 1
        if room < -1:
            raise too_long("return_value_bytes")
    ACTIVE.remove(id(value))
    return f"[{','.join(parts)}]"


def encode_object(kind, value, level):
    enter(value, level)
    parts, names, room = [], set(), int(REQUEST["return_value_bytes"])
    for key, item in kind.items(value):
        name = key if type(key) is str else key_name(key)
        if name in names:
            raise Problem("serialization", f"two keys are {name[:100]!a} as str")
        names.add(name)
        try:
            text = scalar(item)
            if text is None:
                text = encode(item, level + 1)
            text = f"{scalar(name) or quote(name)}:{text}"
        except Problem as problem:
            problem.steps.append(f".{name}" if name.isidentifier() else f"[{name[:100]!a}]")
            raise
        parts.append(text)
        room -= len(text) + 1
        if room < -1:
            raise too_long("return_value_bytes")
    ACTIVE.remove(id(value))
    return f"{{{','.join(parts)}}}"


def enter(value, level):
    if id(value) in ACTIVE:
        raise Problem("serialization", f"cycle, this {type(value).__name__} contains itself")
    if level >= MAX_LEVELS:
        raise Problem("serialization", f"more than {MAX_LEVELS} levels")
    ACTIVE.add(id(value))


def key_name(key):
    if type(key) is int and (text := scalar(key)):
        return text
    for kind in type(key).__mro__:
        if kind in (str, int, float):
            return encode_int(kind, key, 0) if kind is int else kind.__str__(key)
    return str(key)


def encode_unknown(value, level):
    if PROJECTOR:
        if level >= MAX_LEVELS:
            raise Problem("serialization", f"more than {MAX_LEVELS} levels")
        try:
            projected = PROJECTOR(value)
        except (Problem, MemoryError):
            raise
        except BaseException as error:
            problem = f"type projector raised {one_line(error)}"
            raise Problem("serialization", problem) from error
        if projected is not value:
            return encode(projected, level + 1)
    raise Problem("serialization", f"{type_name(type(value))} is not plain data: None, bool, int, "
                  "float, str, list, tuple, set, dict, datetime, date, time, Decimal, Path")


def type_name(kind):
    # Straight from type: a metaclass may have its own idea of these.
    module, name = (type.__dict__[key].__get__(kind) for key in ("__module__", "__qualname__"))
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def one_line(error):
    """Name and text of an exception, bounded, whatever its methods do."""
    try:
        text = str(error)
    except BaseException as failure:
        text = f"its str() raised {type(failure).__name__}"
    return f"{type_name(type(error))}: {text[:2000]}" if text else type_name(type(error))


STANDARD_TYPES = (
    ("datetime", "datetime", encode_standard), ("datetime", "date", encode_standard),
    ("datetime", "time", encode_standard), ("decimal", "Decimal", encode_standard),
    ("pathlib", "PurePath", encode_standard),
    ("collections", "OrderedDict", encode_object))  # has an order of its own, dict.items not it
ENCODERS = {
    bool: encode_bool, int: encode_int, float: encode_float, str: encode_str,
    list: encode_array, tuple: encode_array, set: encode_array, frozenset: encode_array,
    dict: encode_object}
