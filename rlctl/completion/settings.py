"""The tree of settings, read from the source of its classes: to import them with pydantic takes too long for a key.

`settings_tree.py` is the truth; `tests/completion/test_settings.py` compares the two over every setting.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: the values it can be chosen from, if any, and the first sentence of its documentation."""

    choices: tuple[str, ...] = ()
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class _Class:
    module: str
    name: str


def tree() -> dict[str, Setting]:
    """Dotted name -> setting, but for those of `remote_backend`."""
    return dict(_of(_Class("rlctl.settings", "Settings"), ""))


def backend_tree(name: str, reference: str) -> dict[str, Setting]:
    """Those of the backend `name`, whose settings class is "module:Class"; dotted names begin with remote_backend."""
    module, _, attribute = reference.partition(":")
    return dict(_of(_Class(module, attribute), f"remote_backend.{name}."))


def _of(found: _Class, above: str) -> Iterator[tuple[str, Setting]]:
    definition = _definitions(found.module).get(found.name)
    if definition is None:
        return
    for base in definition.bases:
        if isinstance(base, ast.Name) and base.id not in ("BaseModel", "BaseSettings"):
            yield from _of(_resolved(found.module, base.id), above)
    body = definition.body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            dotted = above + node.target.id
            block = _block(found.module, node.annotation)
            if block is not None:
                yield from _of(block, f"{dotted}.")
            elif dotted != "remote_backend" and not node.target.id.startswith("_") and "ClassVar" not in _text(node):
                yield dotted, Setting(tuple(_choices(found.module, node.annotation)), _meaning(after))


def _text(node: ast.AnnAssign) -> str:
    return ast.unparse(node.annotation)


def _block(module: str, annotation: ast.expr) -> _Class | None:
    """The class of a table that is a setting of another; None for a plain setting."""
    if not isinstance(annotation, ast.Name):
        return None
    found = _resolved(module, annotation.id)
    return found if found.name in _definitions(found.module) else None


def _resolved(module: str, name: str) -> _Class:
    """The class called `name` in a module, where it is defined."""
    return _imports(module).get(name, _Class(module, name))


def _choices(module: str, annotation: ast.expr) -> Iterator[str]:
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        yield from _choices(module, annotation.left)
        yield from _choices(module, annotation.right)
    elif isinstance(annotation, ast.Name):
        if annotation.id == "bool":
            yield from ("true", "false")
        elif (alias := _alias(_resolved(module, annotation.id))) is not None:
            yield from _choices(_resolved(module, annotation.id).module, alias)
    elif isinstance(annotation, ast.Constant) and annotation.value is None:
        yield "null"
    elif isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        inside = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        yield from (str(one.value) for one in inside if isinstance(one, ast.Constant))


def _alias(found: _Class) -> ast.expr | None:
    """What a name stands for that a module gives to a type."""
    for node in _source(found.module).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [found.name]:
            return node.value
    return None


def _meaning(after: ast.stmt | None) -> str:
    if not (
        isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
    ):
        return ""
    return " ".join(after.value.value.split()).partition(". ")[0].rstrip(".")


@cache
def _definitions(module: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in _source(module).body if isinstance(node, ast.ClassDef)}


@cache
def _imports(module: str) -> dict[str, _Class]:
    return {
        alias.asname or alias.name: _Class(node.module, alias.name)
        for node in _source(module).body
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0
        for alias in node.names
    }


@cache
def _source(module: str) -> ast.Module:
    """The syntax tree of a module, without importing it; an empty one where its file cannot be read."""
    path = _file(module)
    try:
        return ast.parse(path.read_bytes()) if path is not None else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _file(module: str) -> Path | None:
    package, *below = module.split(".")
    root = PACKAGE if package == "rlctl" else _foreign(package)
    if root is None:
        return None
    path = root.joinpath(*below)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _foreign(package: str) -> Path | None:
    # Of a top-level name only: finding a module inside a package imports the package.
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if found is None or not (found.submodule_search_locations or found.origin):
        return None
    folders = found.submodule_search_locations
    return Path(next(iter(folders))) if folders else Path(str(found.origin)).with_suffix("")
