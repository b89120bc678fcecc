"""Part of runner.py: runs a source of statements, as the script that it is."""


def run_main(source, scope):
    import _ast
    tree = compile(source, NAME, "exec", _ast.PyCF_ONLY_AST, True)
    last = None
    if tree.body and type(tree.body[-1]) is _ast.Expr:
        last = compile(_ast.Expression(tree.body.pop().value), NAME, "eval", 0, True)
    first = compile(tree, NAME, "exec", 0, True)
    if "linecache" in sys.modules:
        register_source(sys.modules["linecache"])
    else:
        sys.meta_path.insert(0, type(sys.implementation)(find_spec=find_linecache))
    try:
        exec(first, scope)
        return eval(last, scope) if last else None
    finally:
        take_back()


def take_back():
    """Switches off what the source may have set up and what would meddle with the runner."""
    sys.settrace(None)
    sys.setprofile(None)
    if sys.getrecursionlimit() < 500:
        sys.setrecursionlimit(500)


def register_source(linecache):
    """Lets tracebacks and inspect show the source, and not the runner, which is <string>."""
    linecache.cache.pop("<string>", None)
    getattr(linecache, "_interactive_cache", {}).clear()
    lines = source_lines()
    linecache.cache[NAME] = sum(map(len, lines)), None, lines, NAME


def source_lines():
    source = REQUEST["code"].removeprefix(b"\xef\xbb\xbf")
    text = source.decode("utf-8", "replace")
    if b"coding" in source:
        try:
            from _frozen_importlib_external import decode_source
            text = decode_source(source)
        except Exception:
            pass  # a cookie that is none, or no file descriptor left to import a codec
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [line + "\n" for line in lines]


def find_linecache(name, path=None, target=None):
    """Meta path finder: registers the source when linecache gets imported, and not before, since
    linecache takes longer to import than Python to start."""
    if name == "linecache":
        from _frozen_importlib_external import PathFinder
        spec = PathFinder.find_spec(name)
        run_module = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run_module(module), register_source(module))
        return spec
