"""Targets that are read from source: what a class, or the one that a function says it returns, defines.

It sees less than `live` does: what a decorator makes of a method, or a base in a package that is not here, is unknown.
"""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Iterator, Sequence
from inspect import Parameter, Signature

from rlctl.backends import calling
from rlctl.backends.probe.signatures import WrittenDefault
from rlctl.backends.probe.source import Definition, Function, Source, resolve_expression, statements, walk
from rlctl.backends.probe.targets import (
    Find,
    Found,
    Style,
    Target,
    class_target,
    factory_target,
    in_actor,
    silent_factory_target,
)

# Decorators that leave a method what it is; any other may make something else of it.
_HARMLESS = {"abstractmethod", "staticmethod", "classmethod", "override", "final", "deprecated", "method"}
_MOST_BASES = 12  # followed upwards from one class; an end for circular ones


def source_target(reference: str, definition: Definition) -> Target:
    """What the definition, which `reference` names, stands for."""
    source, node = definition.source, definition.node
    read = f"read from source: {source.path}"
    if isinstance(node, ast.ClassDef):
        is_protocol = any(_last_word(base) == "Protocol" for base in node.bases)
        find, public = _find_in(source, node), _public_methods(source, node)
        return class_target(reference, find, kind="class", read=read, is_protocol=is_protocol, public=public)
    returned = None if node.returns is None else resolve_expression(source, node.returns)
    if returned is None or not isinstance(returned.node, ast.ClassDef):
        return silent_factory_target(reference, read=read)
    find = _find_in(returned.source, returned.node)
    public = _public_methods(returned.source, returned.node)
    return factory_target(reference, find, returns=returned.node.name, read=read, public=public)


def _public_methods(source: Source, node: ast.ClassDef) -> tuple[str, ...]:
    """Names of the functions that a class, or a base whose source is here, defines; properties are none."""
    names: dict[str, None] = {}
    for cls in _lineage(source, node):
        for member in statements(cls) if isinstance(cls, ast.ClassDef) else ():
            if isinstance(member, Function) and not member.name.startswith("_") and not _is_property(member):
                names.setdefault(member.name)
    return tuple(names)


def _is_property(node: Function) -> bool:
    return any(_last_word(decorator).endswith(("property", "setter", "deleter")) for decorator in node.decorator_list)


def _find_in(source: Source, node: ast.ClassDef) -> Find:
    find = functools.partial(_method, list(_lineage(source, node)))
    is_actor = any(_last_word(decorator) == "remote" for decorator in node.decorator_list)
    return in_actor(find) if is_actor else find


def _lineage(source: Source, node: ast.ClassDef, *, hops: int = _MOST_BASES) -> Iterator[ast.ClassDef | str]:
    """A class and its bases, depth first; a base whose source cannot be found comes as its name."""
    yield node
    for base in node.bases:
        found = resolve_expression(source, base) if hops else None
        if found is not None and isinstance(found.node, ast.ClassDef):
            yield from _lineage(found.source, found.node, hops=hops - 1)
        elif not hasattr(builtins, _last_word(base)):
            yield _last_word(base)


def _method(lineage: Sequence[ast.ClassDef | str], name: str) -> Found:
    classes = [cls for cls in lineage if isinstance(cls, ast.ClassDef)]
    unread = [cls for cls in lineage if isinstance(cls, str)]
    for cls in classes:
        if (found := _member(cls, name)) is not None:
            return found
    if any(_member(cls, "__getattr__") for cls in classes):
        return Found("unknown", note="not defined, but the class has a __getattr__")
    if unread:
        return Found("unknown", note=f"may come from {', '.join(unread)}, whose source is not here")
    return Found("missing")


def _member(cls: ast.ClassDef, name: str) -> Found | None:
    """What a class body says last of a name, None when it says nothing."""
    found = None
    for node in statements(cls):
        if isinstance(node, Function) and node.name == name and not _is_part_of_another(node):
            found = _defined(node)
        elif isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            found = Found("unknown", note=f"assigned: {ast.unparse(node)}")
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
            found = Found("unknown", note="declared as an attribute, set on the object")
    return found


def _is_part_of_another(node: Function) -> bool:
    """Whether it is an overload, or the setter of a property that was found before."""
    return any(_last_word(decorator) in ("overload", "setter", "deleter") for decorator in node.decorator_list)


def _defined(node: Function) -> Found:
    decorators = [_last_word(decorator) for decorator in node.decorator_list]
    if any(decorator.endswith("property") for decorator in decorators):
        return Found("property")
    signature = signature_of(node.args, drop_first="staticmethod" not in decorators)
    abstract = "abstractmethod" in decorators
    if others := [decorator for decorator in decorators if decorator not in _HARMLESS]:
        written = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        return Found("unknown", signature, f"{written}, decorated with @{others[0]}", abstract)
    return Found(_style(node), signature, abstract=abstract)


def _style(node: Function) -> Style:
    if isinstance(node, ast.AsyncFunctionDef):
        return "async generator" if any(isinstance(inner, ast.Yield) for inner in _own_nodes(node)) else "async"
    promised = node.returns is not None and calling.promises_awaitable(ast.unparse(node.returns))
    return "returns awaitable" if promised else "sync"


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions inside it."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    return walk(function.body, into=lambda node: not isinstance(node, inner))


def signature_of(arguments: ast.arguments, *, drop_first: bool) -> Signature:
    """A signature as it is written, without the first parameter if that is the object's."""
    kinds = ((Parameter.POSITIONAL_ONLY, arguments.posonlyargs), (Parameter.POSITIONAL_OR_KEYWORD, arguments.args))
    positional = [(node.arg, kind) for kind, nodes in kinds for node in nodes]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    parameters = [
        Parameter(name, kind, default=_default(default))
        for (name, kind), default in zip(positional, defaults, strict=True)
    ]
    if arguments.vararg is not None:
        parameters.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    for node, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(Parameter(node.arg, Parameter.KEYWORD_ONLY, default=_default(default)))
    if arguments.kwarg is not None:
        parameters.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(parameters[1:] if drop_first and positional else parameters)


def _default(default: ast.expr | None) -> object:
    return Parameter.empty if default is None else WrittenDefault(ast.unparse(default))


def _last_word(node: ast.expr) -> str:
    """`functools.cached_property(...)` -> `cached_property`."""
    bare = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.Subscript) else node
    return ast.unparse(bare).rpartition(".")[2]
