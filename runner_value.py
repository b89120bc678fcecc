"""Part of runner.py: projects a return value that is more than a simple scalar onto JSON."""

MAX_LEVELS = 50
ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {34: '\\"', 92: "\\\\"}
PROJECTOR = None  # called with each value of a type that is not known here
ACTIVE = set()  # ids of the containers around the value in work


class Problem(Exception):
    """An error that stands in the frame with this type and message."""

    def __init__(self, type, message, limit=None):
        self.type, self.message, self.limit = type, message, limit
        self.steps = []  # serialization: the way from the value outwards


def not_json(message):
    return Problem("serialization", message)


def too_long(limit):
    what = "return value" if limit == "return_value_bytes" else "frame of the return value"
    message = f"{limit}={REQUEST[limit].decode()} exceeded by the {what}"
    return Problem("return_limit", message, limit)


def encode_value(value):
    raise_recursion_limit()
    for module, name, encoder in STANDARD_TYPES:  # a module not imported has no values either
        ENCODERS[getattr(sys.modules.get(module), name, None)] = encoder
    try:
        return encode(value, 0)
    except Problem as problem:
        if problem.type == "serialization":
            where = "".join(reversed(problem.steps))
            where = where if len(where) <= 200 else f"{where[:100]}...{where[-100:]}"
            problem.message = f"${where}: {problem.message}"
        raise


def raise_recursion_limit():
    if sys.getrecursionlimit() < 500:
        sys.setrecursionlimit(500)


def encode(value, level):
    text = scalar(value)
    if text is not None:
        return text
    try:
        for kind in type(value).__mro__:
            if kind in ENCODERS:
                return ENCODERS[kind](kind, value, level)
        return encode_unknown(kind, value, level)
    except (Problem, MemoryError):
        raise
    except Exception as error:  # from a method of the value, or a thread changes it meanwhile
        raise not_json(f"{type_name(type(value))} can't be read, {one_line(error)}") from error


# The encoders are called for subclasses too, and look at them as kind, their base, does.

def encode_int(kind, value, level):
    if int.bit_length(value) > 4 * int(REQUEST["return_value_bytes"]) + 64:
        raise too_long("return_value_bytes")  # known without waiting for its digits
    if hasattr(sys, "set_int_max_str_digits"):  # since 3.10.7
        sys.set_int_max_str_digits(0)
    return int.__repr__(value)


def encode_float(kind, value, level):
    text = float.__repr__(value)
    if value - value != 0:
        raise not_json(f"{text} is not a number in JSON")
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
        surrogate = text[error.start]
        raise not_json(f"lone surrogate {surrogate!a} at character {error.start}") from None
    return f'"{text.translate(ESCAPES)}"'


def encode_time(kind, value, level):
    if type(value).__name__ == "NaTType":  # pandas' "not a time" is a datetime by its type only
        return encode_unknown(kind, value, level)
    return encode_str(str, value.isoformat(), level)


def encode_by_str(kind, value, level):
    return encode_str(str, str(value), level)


def encode_array(kind, value, level):
    enter(value, level)
    parts, room = [], int(REQUEST["return_value_bytes"]) - 1
    for item in kind.__iter__(value):
        try:
            text = scalar(item)
            if text is None:
                text = encode(item, level + 1)
        except Problem as problem:
            problem.steps.append(f"[{len(parts)}]")
            raise
        parts.append(text)
        room -= len(text) + 1
        if room < 0:
            raise too_long("return_value_bytes")
    ACTIVE.remove(id(value))
    return f"[{','.join(parts)}]"


def encode_object(kind, value, level):
    enter(value, level)
    parts, names, room = [], set(), int(REQUEST["return_value_bytes"]) - 1
    for key, item in kind.items(value):
        name = key if type(key) is str else key_name(key)
        if name in names:
            raise not_json(f"two keys are {name[:100]!a} as str")
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
        if room < 0:
            raise too_long("return_value_bytes")
    ACTIVE.remove(id(value))
    return f"{{{','.join(parts)}}}"


def enter(value, level):
    if id(value) in ACTIVE:
        raise not_json(f"cycle, this {type(value).__name__} contains itself")
    if level >= MAX_LEVELS:
        raise not_json(f"more than {MAX_LEVELS} levels")
    ACTIVE.add(id(value))


def key_name(key):
    if type(key) is int and (text := scalar(key)):
        return text
    for kind in type(key).__mro__:
        if kind is int:
            return encode_int(kind, key, 0)
        if kind in (str, float):
            return kind.__str__(key)
    return str(key)


def encode_unknown(kind, value, level):
    if PROJECTOR:
        if level >= MAX_LEVELS:
            raise not_json(f"more than {MAX_LEVELS} levels")
        try:
            projected = PROJECTOR(value)
        except (Problem, MemoryError):
            raise
        except BaseException as error:
            raise not_json(f"type projector raised {one_line(error)}") from error
        if projected is not value:
            return encode(projected, level + 1)
    raise not_json(f"{type_name(type(value))} is not plain data: None, bool, int, float, str, "
                   "list, tuple, set, dict, datetime, date, time, Decimal or Path")


def type_name(kind):
    # From type itself, as a metaclass may have its own idea of these.
    module, name = (type.__dict__[key].__get__(kind) for key in ("__module__", "__qualname__"))
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def one_line(error):
    """Name and text of an exception, bounded, whatever its methods do."""
    try:
        text = str(error)
    except BaseException as failure:
        text = f"its str() raised {type(failure).__name__}"
    return type_name(type(error)) + (f": {text[:2000]}" if text else "")


ENCODERS = {
    int: encode_int, float: encode_float, str: encode_str, dict: encode_object,
    list: encode_array, tuple: encode_array, set: encode_array, frozenset: encode_array}
STANDARD_TYPES = (
    ("datetime", "datetime", encode_time), ("datetime", "date", encode_time),
    ("datetime", "time", encode_time), ("decimal", "Decimal", encode_by_str),
    ("pathlib", "PurePath", encode_by_str),
    ("collections", "OrderedDict", encode_object))  # dict.items() does not know its order
