"""Which source files compute a result: the closure of `sweep` imports from a stage's modules, hashed without comments and docstrings.

A JavaScript file that has a module's name is a part of it, and hashed as it is.
"""

import ast
import functools
import hashlib
from pathlib import Path

ROOT = Path(__file__).parent


@functools.cache
def digest(modules: tuple[str, ...]) -> str:
    """Digest of the code of these modules (`sweep.stages.train`, ...) and of every `sweep` module they import; as when first asked, since a
    plan asks once for each of its cells' stages."""
    found: set[str] = set()
    queue = list(modules)
    while queue:
        module = queue.pop()
        if module not in found and _file(module):
            found.add(module)
            queue.extend(_read(module)[1])
    return hashlib.sha256("".join(f"{module}:{_read(module)[0]}\n" for module in sorted(found)).encode()).hexdigest()[:16]


def imports(module: str) -> frozenset[str]:
    """The modules, of any package, that a `sweep` module names in its import statements."""
    return _read(module)[1]


def _file(module: str) -> Path | None:
    if module.split(".")[0] != "sweep":
        return None
    path = ROOT.joinpath(*module.split(".")[1:])
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@functools.cache
def _read(module: str) -> tuple[str, frozenset[str]]:
    path = _file(module)
    assert path is not None, module
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not _for_annotations(node)]
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module)
            imported.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    beside = path.with_suffix(".js")
    code = ast.dump(tree) + (beside.read_text() if beside.is_file() else "")
    return hashlib.sha256(code.encode()).hexdigest(), frozenset(imported)


def _for_annotations(node: ast.stmt) -> bool:
    """`if TYPE_CHECKING:`, which computes nothing."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
