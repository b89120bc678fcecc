"""Part of runner.py: reports the exception that ended the call, and ends the process."""

TRACEBACK_CHARS, TRACEBACK_FRAMES, TRACEBACK_CHAIN = 16384, 2000, 100
LIMITS = {"memory_limit": "memory_bytes", "process_limit": "process_count",
          "open_files_limit": "open_files", "artifact_limit": "file_bytes"}
# ENOMEM, EMFILE, EFBIG: the same on Linux and macOS.
ERRNO_KINDS = {12: "memory_limit", 24: "open_files_limit", 27: "artifact_limit"}
PROCESS_CALLS = {"fork", "forkpty", "fork_exec", "_fork_exec", "posix_spawn", "posix_spawnp"}


def send_error(error, scope):
    kind = b"memory_limit" if isinstance(error, MemoryError) else b"runtime"
    frame = frame_of(b'{"status":"error","error":{"type":"%b","message":'
                     b'"an exception that could not be described"}}' % kind)
    for attempt in 1, 2:
        try:
            frame = frame_of(report(error))
            break
        except MemoryError:
            scope.clear()  # nobody needs what the source holds, and it is in the way
        except BaseException:
            break  # the source has tampered with too much
    try:
        write(frame)
    except OSError:
        pass  # closed by the source; the parent says that no frame came
    for stream in sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__:
        try:
            stream.flush()
        except BaseException:
            pass  # closed, or replaced by something that is no stream
    posix._exit(1)


def report(error):
    if isinstance(error, MemoryError):
        free_locals(error.__traceback__)
    BUILTINS.update(__builtins__)
    load("runner_main")
    load("runner_value")
    raise_recursion_limit()
    if isinstance(error, Problem):
        kind, message, limit, error = error.type, error.message, error.limit, error.__cause__
        stack = source_part(error.__traceback__) if error else None
    else:
        stack = source_part(error.__traceback__)
        kind = classify(error, stack)
        limit = LIMITS.get(kind)
        message = describe(error, stack, kind, limit)
    trace = traceback_text(error, stack) if error else ""
    # Some error has to fit even where no value would; the parent allows it this much.
    room = max(int(REQUEST["result_frame_bytes"]), 1024)
    for message, trace in (message, trace), (message, ""), (message[:100], ""):
        fields = ("type", kind), ("message", message), ("limit", limit), ("traceback", trace)
        text = ",".join(f'"{name}":{safe_quote(value)}' for name, value in fields if value)
        json = b'{"status":"error","error":{%b}}' % text.encode()
        if len(frame_of(json)) <= room:
            break
    return json


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


def is_expression(stack):
    """Whether the source ran through eval(), under another file name than NAME."""
    return bool(stack) and stack.tb_frame.f_code.co_filename == "<string>"


def classify(error, stack):
    if isinstance(error, MemoryError):
        return "memory_limit" if stack or not nests_too_deeply(REQUEST["code"]) else "syntax"
    if isinstance(error, SystemError) and not has_memory(16 << 20):
        return "memory_limit"  # a MemoryError that Python had no memory for
    if not stack and isinstance(error, (SyntaxError, ValueError, OverflowError, RecursionError)):
        return "syntax"
    if isinstance(error, RuntimeError) and error.args == ("can't start new thread",):
        # It lacks a process, or address space for its stack, 8 MiB as a rule.
        return "process_limit" if has_memory(16 << 20) else "memory_limit"
    if isinstance(error, BlockingIOError) and stack and called_name(stack) in PROCESS_CALLS:
        return "process_limit"
    if isinstance(error, OSError):
        return ERRNO_KINDS.get(OSError.errno.__get__(error), "runtime")
    return "runtime"


def nests_too_deeply(source):
    """Whether a MemoryError came from a full stack in the parser of 3.10 and 3.11."""
    try:
        compile(source, NAME, "exec", 0, True)
    except MemoryError:
        return has_memory((1 << 20) + 200 * len(source))
    except Exception:
        pass
    return False


def has_memory(size):
    try:
        return bool(bytes(size))
    except MemoryError:
        return False


def called_name(stack):
    """Name of the function whose call failed. os.fork() and sock.recv() both raise EAGAIN, but
    only one of them for want of processes. Neither has a frame: only the bytecode tells."""
    try:
        import dis
        import itertools
    except Exception:  # no descriptor left
        return None
    while stack.tb_next:
        stack = stack.tb_next
    frame = stack.tb_frame
    steps = [step for step in dis.get_instructions(frame.f_code) if step.offset <= stack.tb_lasti]
    if sys.version_info >= (3, 11):
        # What is called starts where the call starts, other than its arguments.
        start = steps[-1].positions[::2]
        steps = [step for step in steps if step.positions[::2] == start]
    else:
        lines = itertools.accumulate((step.starts_line for step in steps), lambda a, b: b or a)
        steps = [step for step, line in zip(steps, lines) if line == stack.tb_lineno]
        steps = [step for step in steps if step.argval in PROCESS_CALLS] or steps[:1]
    loads = [step for step in steps if "LOAD" in step.opname and type(step.argval) is str]
    if not loads or loads[-1].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return loads and loads[-1].argval or None
    name = loads[-1].argval
    value = frame.f_locals.get(name, frame.f_globals.get(name))
    return getattr(value, "__name__", name)  # after f = os.fork, what f() calls is fork


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
    line = stack.tb_lineno if is_expression(stack) else None
    while stack:
        if stack.tb_frame.f_code.co_filename == NAME:
            line = stack.tb_lineno
        stack = stack.tb_next
    return line


def traceback_text(error, stack):
    try:
        if isinstance(error, MemoryError):
            text = short_traceback(error, stack)
        else:
            text = full_traceback(error, stack)
    except Exception:  # no descriptor left for an import, or a module that was tampered with
        text = short_traceback(error, stack)
    if is_expression(stack):
        text = text.replace('File "<string>"', f'File "{NAME}"')
    if len(text) > TRACEBACK_CHARS:
        half = TRACEBACK_CHARS // 2
        text = f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
    return text


def full_traceback(error, stack):
    # The caller's directory may hold modules with names of the standard library's.
    cwd = REQUEST["cwd"].decode("utf-8", "surrogateescape")
    sys.path[:] = [entry for entry in sys.path if entry != cwd]
    import linecache
    import traceback
    register_source(linecache)
    if is_expression(stack):
        linecache.cache["<string>"] = linecache.cache[NAME]
    trim(error)
    summary = traceback.TracebackException(type(error), error, error.__traceback__)
    return "".join(summary.format() if stack else summary.format_exception_only())


def trim(error):
    """Takes the runner out of the tracebacks of a chain, and the middle out of very long ones."""
    chain, seen = [error], set()
    while chain:
        error = chain.pop()
        seen.add(id(error))
        error.__traceback__ = stack = source_part(error.__traceback__)
        frames = []
        while stack:
            frames.append(stack)
            stack = stack.tb_next
        if len(frames) > TRACEBACK_FRAMES:
            frames[TRACEBACK_FRAMES // 2].tb_next = frames[-TRACEBACK_FRAMES // 2]
        if len(seen) >= TRACEBACK_CHAIN:
            error.__cause__ = error.__context__ = None
        others = error.__cause__, error.__context__, *getattr(error, "exceptions", ())
        chain += [other for other in others if other and id(other) not in seen]


def short_traceback(error, stack):
    """The last frames, without help from any module."""
    lines, entries = source_lines(), []
    while stack:
        code, number = stack.tb_frame.f_code, stack.tb_lineno
        entries = entries[-19:]
        entries.append(f'  File "{code.co_filename}", line {number}, in {code.co_name}\n')
        if code.co_filename == NAME:
            entries[-1] += "".join(f"    {line.strip()}\n" for line in lines[number - 1:number])
        stack = stack.tb_next
    head = "Traceback (most recent call last):\n" if entries else ""
    return f"{head}{''.join(entries)}{one_line(error)}\n"
