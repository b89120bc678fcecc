"""Part of runner.py: runs a source of statements, as the script that it is."""


def run_main(source, scope):
    import _ast
    tree = compile(source, NAME, "exec", _ast.PyCF_ONLY_AST, True)
    last = None
    if tree.body and type(tree.body[-1]) is _ast.Expr:
        last = compile(_ast.Expression(tree.body.pop().value), NAME, "eval", 0, True)
    statements = compile(tree, NAME, "exec", 0, True)
    if "linecache" in sys.modules:
        register_source(sys.modules["linecache"])
    else:
        sys.meta_path.insert(0, type(sys.implementation)(find_spec=find_linecache))
    exec(statements, scope)
    return eval(last, scope) if last else None


def register_source(linecache):
    """Lets tracebacks and inspect show the source, and never the runner, which is <string>."""
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
            pass  # no cookie after all, or no file descriptor left to import a codec with
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [line + "\n" for line in lines]


def find_linecache(name, path=None, target=None):
    """Meta path finder: registers the source once somebody imports linecache. To import it here
    would take as long as half of Python's start."""
    if name == "linecache":
        from _frozen_importlib_external import PathFinder
        spec = PathFinder.find_spec(name)
        run_module = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run_module(module), register_source(module))
        return spec
