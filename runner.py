"""The Python side of `pyplaypen exec`: runs one source and answers with one frame.

The parent starts `python3 -c <this text> REQUEST_FD FRAME_FD`. The request is read from
REQUEST_FD to its end, the source runs as module __main__, and one frame goes to FRAME_FD.

request: fields, each `name length\\n` and then length bytes. What was not given is empty.
    code                                the source as it came, BOM and coding cookie included
    cwd, workspace, artifact_root       absolute paths; cwd is the caller's
    request_id, extra, provider, projector, self_check
    return_value_bytes, result_frame_bytes, open_files      decimal numbers
    process_count, memory_bytes, file_bytes                 the same, or `-` for not enforced
    set_open_files                      1 if the runner is to set RLIMIT_NOFILE, since open_files
                                        is too low for Python to start with
    runner_main, runner_value, runner_error, runner_setup   the texts of those .py files

Before anything of the source runs, `pyplaypen-runner 1\\n` goes to FRAME_FD.

frame: `pyplaypen-frame 1 length\\n` and then length bytes of JSON, one of
    {"status":"ok","return_value":...}
    {"status":"ok","python":"3.11.2"}                       for self_check
    {"status":"error","error":{"type":...,"message":...,"limit"?:...,"traceback"?:...}}

This text is compiled at every start, at some 10 us a line. So it holds only what a lone
expression like `1 + 1` needs, and imports nothing that Python has not loaded yet. The other files
are compiled, into this same namespace, by the first one to need them.

After a frame that says ok, Python ends as after any script: it waits for threads, runs the exit
handlers and closes files. After an error nothing is waited for, so that the error comes out.
"""
import posix
import sys

NAME = "<sandbox_code>"
PID = posix.getpid()
# Functions look builtins up in their module's __builtins__: a source that changes the real ones
# does not reach those below.
BUILTINS = vars(__builtins__)
__builtins__ = dict(BUILTINS)


def read_request(fd):
    data = b"".join(iter(lambda: posix.read(fd, 1 << 16), b""))
    posix.close(fd)
    request, start = {}, 0
    while start < len(data):
        line_end = data.index(b"\n", start)
        name, length = data[start:line_end].split()
        start = line_end + 1 + int(length)
        request[name.decode()] = data[line_end + 1:start]
    return request


def load(part):
    if text := REQUEST.get(part):
        exec(compile(text, part, "exec", 0, True), globals())
        del REQUEST[part]


def main():
    module = sys.modules["__main__"] = type(sys)("__main__")
    scope = vars(module)
    scope["__builtins__"] = sys.modules["builtins"]
    sys.argv[:] = [NAME]
    if sys.path[0] == "":
        sys.path[0] = REQUEST["cwd"].decode("utf-8", "surrogateescape")
    for stream in sys.stdout, sys.stderr:
        # By the line: what was printed is not to be lost with a process that gets killed.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    before = len(scope), len(sys.modules)
    try:
        reserve = bytes(4 << 20)  # untouched address space, for a report when there is no other
        posix.write(FRAME_FD, b"pyplaypen-runner 1\n")
        if any(map(REQUEST.get, ("set_open_files", "provider", "projector", "self_check"))):
            load("runner_setup")
            set_up(scope)
        value = run(REQUEST["code"], scope)
        sys.settrace(None)
        sys.setprofile(None)
        if posix.getpid() == PID:  # not a child that the source forked: the frame is its parent's
            send_value(value)
    except BaseException as error:
        reserve = None  # before all else: even getpid() may take memory, for its int
        sys.settrace(None)
        sys.setprofile(None)
        if posix.getpid() != PID:
            raise
        load("runner_error")
        send_error(error, scope)
    if before == (len(scope), len(sys.modules)):
        # The source kept nothing and imported nothing: Python's clean-up, 1.5 ms, has no work.
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            posix._exit(0)


def run(source, scope):
    """Runs source; returns the value of its last statement if that is an expression."""
    if b"\n" not in source.rstrip() and source[:1] not in b" \t" and b"\\" not in source:
        # Maybe an expression. eval() takes 10 us for it, the first call of compile() 600, since
        # it sets up the types of _ast. Its price is a wrong file name, see is_expression(), and
        # that if it fails all warnings come twice: about backslashes, as a rule.
        try:
            return eval(source, scope)
        except SyntaxError as error:
            if error.__traceback__.tb_next:
                raise  # from inside of the expression
    load("runner_main")
    return run_main(source, scope)


def send_value(value):
    text = scalar(value)
    if text is None:
        load("runner_value")
        text = encode_value(value)
    text = check("return_value_bytes", text.encode())
    write(check("result_frame_bytes", frame_of(b'{"status":"ok","return_value":%b}' % text)))


def scalar(value):
    """The JSON text of a simple value; None for a value that needs a closer look."""
    kind = type(value)
    if kind is str:
        if value.isprintable() and '"' not in value and "\\" not in value:
            return f'"{value}"'
    elif kind is int:
        if -1 << 63 < value < 1 << 63:
            return repr(value)
    elif kind is float:
        if value - value == 0:  # so it is finite
            return repr(value)
    elif value is None:
        return "null"
    elif kind is bool:
        return "true" if value else "false"


def check(limit, data):
    if len(data) > int(REQUEST[limit]):
        load("runner_value")
        raise too_long(limit)
    return data


def frame_of(json):
    return b"pyplaypen-frame 1 %d\n%b" % (len(json), json)


def write(frame):
    rest = memoryview(frame)
    while rest:
        rest = rest[posix.write(FRAME_FD, rest):]


REQUEST = read_request(int(sys.argv[1]))
FRAME_FD = int(sys.argv[2])
posix.set_inheritable(FRAME_FD, False)
main()
