"""Whether what a built-in backend imports is installed, without importing it, which would load torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from rlctl.backends.probe.source import Source, find_spec, read_source, walk
from rlctl.backends.registry import BackendSpec
from rlctl.errors import BackendUnavailable


def refuse_missing_imports(spec: BackendSpec) -> None:
    """Raises BackendUnavailable naming every package that the backend's module, or one of ours below it, lacks."""
    packages = _imported_packages(spec.backend.partition(":")[0])
    missing = {top: module for top, module in packages.items() if find_spec(top) is None}
    if missing:
        named = ", ".join(f"{top!r} (imported by {module})" for top, module in sorted(missing.items()))
        raise BackendUnavailable(f"Backend {spec.name!r} needs {named}, which is not installed.", hint=spec.install)


def _imported_packages(module: str) -> dict[str, str]:
    """Packages imported by a module and by those of its own package that it imports: {package: by which module}.

    Imports inside functions count, as a run will reach them; those that the code can do without do not.
    """
    own = module.partition(".")[0]
    packages: dict[str, str] = {}
    modules = [module]
    for name in modules:  # grows on the way, so that of several modules that import a package the nearest is named
        source = read_source(name)
        for imported in () if source is None else _needed_imports(source):
            top = imported.partition(".")[0]
            if top == own and imported not in modules:
                modules.append(imported)
            elif top != own and top not in sys.stdlib_module_names:
                packages.setdefault(top, name)
    return packages


def _needed_imports(source: Source) -> Iterator[str]:
    for node in walk([source.tree], into=lambda node: not _is_optional(node)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield source.absolute(node)
            yield from (f"{source.absolute(node)}.{alias.name}" for alias in node.names)


def _is_optional(node: ast.AST) -> bool:
    """Whether imports in it are for type checking only, or have a fallback."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test).endswith("TYPE_CHECKING")
    handled = [handler.type for handler in node.handlers] if isinstance(node, ast.Try) else []
    caught = " ".join(ast.unparse(kind) for kind in handled if kind is not None)
    return "ImportError" in caught or "ModuleNotFoundError" in caught
