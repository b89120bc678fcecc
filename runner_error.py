"""Part of runner.py: reports the exception that ended the call, and ends the process."""

TRACEBACK_FRAMES = 2000
TRACEBACK_CHARS = 16384
CHAINED = 100
LIMITS = {"memory_limit": "memory_bytes", "process_limit": "process_count",
          "open_files_limit": "open_files", "artifact_limit": "file_bytes"}
PROCESS_CALLS = {"fork", "forkpty", "fork_exec", "_fork_exec", "posix_spawn", "posix_spawnp"}


def send_error(error, scope):
    frame = frame_of(b'{"status":"error","error":{"type":"%b","message":"%b"}}' % (
        (b"memory_limit", b"MemoryError") if isinstance(error, MemoryError) else
        (b"runtime", b"an exception that can't be described")))
    for attempt in "first", "second":
        try:
            frame = error_frame(error)
            break
        except MemoryError:
            scope.clear()  # nobody needs what the source holds, and it is in the way
        except BaseException:
            break
    try:
        write(frame)
    except OSError:
        pass  # the source has closed the descriptor; the parent says that no frame came
    for stream in sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__:
        try:
            stream.flush()
        except BaseException:
            pass  # closed, or replaced by something that is no stream
    posix._exit(1)


def error_frame(error):
    if isinstance(error, MemoryError):
        free_locals(error.__traceback__)
    BUILTINS.update(__builtins__)
    load("runner_main")
    load("runner_value")
    take_back()
    if isinstance(error, Problem):
        kind, message, limit, error = error.type, error.message, error.limit, error.__cause__
        trace = traceback_text(error, source_part(error.__traceback__)) if error else ""
    else:
        stack = source_part(error.__traceback__)
        kind = classify(error, stack)
        limit = LIMITS.get(kind)
        message = describe(error, stack, kind, limit)
        trace = traceback_text(error, stack)
    # An error has to come out under any limit; the parent allows it this much.
    room = max(int(REQUEST["result_frame_bytes"]), 1024)
    for message, trace in (message, trace), (message, ""), (message[:100], ""):
        fields = ("type", kind), ("message", message), ("limit", limit), ("traceback", trace)
        text = ",".join(f'"{name}":{safe_quote(value)}' for name, value in fields if value)
        frame = frame_of(b'{"status":"error","error":{%b}}' % text.encode())
        if len(frame) <= room:
            break
    return frame


def safe_quote(text):
    return quote(text.encode("utf-8", "backslashreplace").decode())


def free_locals(stack):
    while stack:
        try:
            stack.tb_frame.clear()
        except RuntimeError:
            pass  # still running: the runner's own
        stack = stack.tb_next


def source_part(stack):
    """A traceback without the runner's frames, which come first; None if there are no others."""
    while stack and stack.tb_frame.f_globals is globals():
        stack = stack.tb_next
    return stack


def classify(error, stack):
    import errno
    if not stack and isinstance(error, (SyntaxError, ValueError, OverflowError, RecursionError)):
        return "syntax"
    if isinstance(error, MemoryError):
        return "memory_limit" if stack or compiles(REQUEST["code"]) else "syntax"
    if isinstance(error, RuntimeError) and error.args == ("can't start new thread",):
        # It may lack a process, or address space for its stack: 8 MiB, as a rule.
        return "process_limit" if has_memory(16 << 20) else "memory_limit"
    if isinstance(error, OSError) and stack:
        number = OSError.errno.__get__(error)  # whatever a subclass makes of it
        if number == errno.EAGAIN and called_name(stack) in PROCESS_CALLS:
            return "process_limit"
        kinds = {errno.ENOMEM: "memory_limit", errno.EMFILE: "open_files_limit",
                 errno.EFBIG: "artifact_limit"}
        return kinds.get(number, "runtime")
    return "runtime"


def compiles(source):
    """Whether a MemoryError can't come from the parser, which raises one for deep nesting too."""
    try:
        compile(source, NAME, "exec", 0, True)
    except MemoryError:
        return not has_memory((1 << 20) + 200 * len(source))
    except Exception:
        pass
    return True


def has_memory(size):
    try:
        return bool(bytes(size))
    except MemoryError:
        return False


def called_name(stack):
    """Name of the function whose call failed. EAGAIN from os.fork() is about processes, from
    sock.recv() it is not; both are calls of C functions, so that only the bytecode knows."""
    import dis
    while stack.tb_next:
        stack = stack.tb_next
    frame = stack.tb_frame
    steps = [step for step in dis.get_instructions(frame.f_code) if step.offset <= stack.tb_lasti]
    if sys.version_info >= (3, 11):
        # The expression that is called starts where the call starts, its arguments do not.
        start = steps[-1].positions[::2]
        steps = [step for step in steps if step.positions[::2] == start]
        loads = [step for step in steps if "LOAD" in step.opname and type(step.argval) is str]
    else:
        line = max(index for index, step in enumerate(steps) if step.starts_line)
        loads = [step for step in steps[line:] if "LOAD" in step.opname]
        loads = [step for step in loads if step.argval in PROCESS_CALLS] or loads[:1]
    if not loads:
        return None
    name = loads[-1].argval
    if loads[-1].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return name
    value = frame.f_locals.get(name, frame.f_globals.get(name))  # maybe f = os.fork
    return getattr(value, "__name__", name)


def describe(error, stack, kind, limit):
    line, text = source_line(stack), one_line(error).partition(": ")[2]
    if kind == "syntax" and isinstance(error, SyntaxError):
        line, text = error.lineno, error.msg
    elif isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code
        text = f"exit code {code}" if isinstance(code, int) else f"exit code 1: {text}"
    if limit:
        value = REQUEST[limit].decode()
        reached = "the system's own limit reached" if value == "-" else f"{limit}={value} reached"
        text = f"{text}: {reached}" if text else reached
    name = type_name(type(error)) + (f" at line {line}" if line else "")
    return f"{name}: {text}" if text else name


def source_line(stack):
    """The last line of the source that the exception passed."""
    line = None
    while stack:
        if stack.tb_frame.f_code.co_filename == NAME or line is None and is_expression(stack):
            line = stack.tb_lineno
        stack = stack.tb_next
    return line


def is_expression(stack):
    """Whether the source ran through eval(), which has a file name of its own."""
    return bool(stack) and stack.tb_frame.f_code.co_filename == "<string>"


def traceback_text(error, stack):
    try:
        if isinstance(error, MemoryError):
            return short_traceback(error, stack)
        # The caller's directory may hold modules with names of the standard library's.
        cwd = REQUEST["cwd"].decode("utf-8", "surrogateescape")
        sys.path[:] = [entry for entry in sys.path if entry != cwd]
        import linecache
        import traceback
        register_source(linecache)
        if is_expression(stack):
            linecache.cache["<string>"] = linecache.cache[NAME]
        trim(error)
        report = traceback.TracebackException(type(error), error, error.__traceback__)
        text = "".join(report.format() if stack else report.format_exception_only())
    except Exception:  # no descriptor left for an import, or a module that was tampered with
        text = short_traceback(error, stack)
    if is_expression(stack):
        text = text.replace('File "<string>"', f'File "{NAME}"')
    if len(text) > TRACEBACK_CHARS:
        half = TRACEBACK_CHARS // 2
        text = f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
    return text


def trim(error):
    """Takes the runner out of the tracebacks of a chain, and the middle out of very long ones."""
    chain, seen = [error], set()
    while chain:
        error = chain.pop()
        seen.add(error)
        error.__traceback__ = stack = source_part(error.__traceback__)
        frames = []
        while stack:
            frames.append(stack)
            stack = stack.tb_next
        if len(frames) > TRACEBACK_FRAMES:
            frames[TRACEBACK_FRAMES // 2].tb_next = frames[-TRACEBACK_FRAMES // 2]
        if len(seen) == CHAINED:
            error.__cause__ = error.__context__ = None
        chain += {error.__cause__, error.__context__, *getattr(error, "exceptions", ())} - seen - {None}


def short_traceback(error, stack):
    """The last frames, without the help of any module."""
    lines, entries = source_lines(), []
    while stack:
        code, number = stack.tb_frame.f_code, stack.tb_lineno
        entries = entries[-19:]
        entries.append(f'  File "{code.co_filename}", line {number}, in {code.co_name}\n')
        if code.co_filename == NAME:
            entries[-1] += "".join(f"    {line.strip()}\n" for line in lines[number - 1:number])
        stack = stack.tb_next
    return f"Traceback (last frames):\n{''.join(entries)}{one_line(error)}\n"
