"""Find where a name is defined, in source: from module to file to syntax tree, following re-exports.

Nothing is imported but the top-level package's finder, so it works for packages that fail when imported.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef

_MOST_HOPS = 12  # re-exports followed for one name; more than any package has, and an end for circular ones


@dataclass(frozen=True, slots=True)
class Source:
    """A module as text that was parsed, not run."""

    module: str
    path: Path
    tree: ast.Module

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that a `from ... import` names, its leading dots resolved."""
        if not node.level:
            return node.module or ""
        package = self.module.split(".")
        up = node.level - (self.path.name == "__init__.py")
        return ".".join([*package[: len(package) - up], *([node.module] if node.module else [])])

    def absolute_name(self, text: str) -> str:
        """The module that a text in a table names: absolute, or relative to this package with or without a dot."""
        if "." in text.strip(".") and not text.startswith("."):
            return text
        return self.absolute(ast.ImportFrom(module=text.lstrip("."), names=[], level=1))


@dataclass(frozen=True, slots=True)
class Definition:
    """A class or function, and the module that it is written in."""

    source: Source
    node: ast.ClassDef | Function


def resolve(module: str, name: str, *, hops: int = _MOST_HOPS) -> Definition | None:
    """Where `module`'s `name` is defined, following re-exports; None when that cannot be found."""
    source = read_source(module) if hops else None
    if source is None:
        return None
    defined = [node for node in statements(source.tree) if isinstance(node, ast.ClassDef | Function)]
    named = [node for node in defined if node.name == name]
    if named:
        return Definition(source, named[-1])
    found = (resolve(where, original, hops=hops - 1) for where, original in _origins(source, name))
    whole = next((definition for definition in found if definition is not None), None)
    return whole or _behind_getattr(source, name)


def _behind_getattr(source: Source, name: str) -> Definition | None:
    """What a module of a package defines, where the package makes its names when they are asked for.

    Which module it takes them from may be put together in code that cannot be read from here.
    """
    functions = [node.name for node in statements(source.tree) if isinstance(node, Function)]
    if source.path.name != "__init__.py" or "__getattr__" not in functions:
        return None
    for path in sorted(source.path.parent.glob("*.py")):
        inner = None if path == source.path else read_source(f"{source.module}.{path.stem}")
        for node in () if inner is None else statements(inner.tree):
            if inner is not None and isinstance(node, ast.ClassDef | Function) and node.name == name:
                return Definition(inner, node)
    return None


def read_source(module: str) -> Source | None:
    """The module's source, None when there is none that can be parsed."""
    path = _file_of(module)
    if path is None:
        return None
    try:
        return Source(module, path, ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError):  # ValueError: null bytes, before Python 3.12
        return None


def _file_of(module: str) -> Path | None:
    """Where a module's source lies. Only the top-level package is looked up, as finding a submodule imports it."""
    top, *rest = module.split(".")
    spec = find_spec(top)
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    for folder in spec.submodule_search_locations or ():
        base = Path(folder, *rest)
        for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if path.is_file():
                return path
    return None


def find_spec(top: str) -> importlib.machinery.ModuleSpec | None:
    """What is installed under the name of a top-level package, None when nothing is."""
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # a module made by hand, without a spec
        return None


def statements(block: ast.Module | ast.ClassDef) -> Iterator[ast.stmt]:
    """The statements of a module or class, with those inside its `if`, `try` and `with` blocks."""
    blocks = (ast.If, ast.Try, ast.With, ast.ExceptHandler)
    for node in walk(block.body, into=lambda node: isinstance(node, blocks)):
        if isinstance(node, ast.stmt):
            yield node


def walk(nodes: Iterable[ast.AST], *, into: Callable[[ast.AST], bool]) -> Iterator[ast.AST]:
    """The nodes, and what is inside those that `into` accepts, in the order of the text."""
    waiting = list(nodes)[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if into(node):
            waiting.extend(list(ast.iter_child_nodes(node))[::-1])


def _origins(source: Source, name: str) -> Iterator[tuple[str, str]]:
    """The (module, name) pairs that a module may have `name` from: imports, aliases, tables of lazy imports."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name or alias.name == "*":
                    yield source.absolute(node), name if alias.name == "*" else alias.name
        elif isinstance(node, ast.Dict):
            yield from ((module, name) for module in _from_table(source, node, name=name))
    for assignment in (node for node in statements(source.tree) if isinstance(node, ast.Assign)):
        if isinstance(assignment.value, ast.Name) and name in map(ast.unparse, assignment.targets):
            yield source.module, assignment.value.id


def _from_table(source: Source, table: ast.Dict, *, name: str) -> Iterator[str]:
    """The modules that a table of lazy imports gives for a name: {name: module} or {module: [name, ...]}."""
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == name:
            yield from map(source.absolute_name, _texts(value))
        elif isinstance(key, ast.Constant) and isinstance(key.value, str) and name in _texts(value):
            yield source.absolute_name(key.value)


def _texts(node: ast.AST) -> list[str]:
    constants = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)]
    return [value for value in constants if isinstance(value, str)]


def resolve_expression(source: Source, node: ast.expr) -> Definition | None:
    """What a base class or a return annotation names: `Base`, `module.Base`, `Base[T]`, "Base"."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return resolve(source.module, node.value)
    if isinstance(node, ast.Subscript):
        return resolve_expression(source, node.value)
    if isinstance(node, ast.Name):
        return resolve(source.module, node.id)
    if isinstance(node, ast.Attribute):
        return resolve(_module_named(source, ast.unparse(node.value)), node.attr)
    return None


def _module_named(source: Source, name: str) -> str:
    """The module that `name` stands for after `import x.y as name` or `from x import name`."""
    for node in ast.walk(source.tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if (alias.asname or alias.name) == name:
                return f"{source.absolute(node)}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
    return name
