"""Targets that were imported: classes, factories, Ray actors and objects, judged without running any of their code."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from inspect import Parameter, Signature

from rlctl.backends import calling
from rlctl.backends.probe.report import Finding
from rlctl.backends.probe.targets import (
    IN_WORDS,
    STOPPING,
    Find,
    Found,
    Target,
    class_target,
    factory_target,
    implemented,
    in_actor,
    silent_factory_target,
)

_ABSENT = object()
_READ = "imported"


def live_target(reference: str, thing: object) -> Target:
    """What `thing`, which `reference` names, stands for."""
    if calling.is_mock(thing):
        finding = Finding(f"{reference} {STOPPING['mock']}", stops=True)
        return Target(reference, "mock", _READ, lambda name: Found("mock"), (finding,))
    if (actor := _actor_class(thing)) is not None:
        find = in_actor(_find_in(actor))
        return class_target(reference, find, kind="Ray actor class", read=_READ, is_protocol=_is_protocol(actor))
    if isinstance(thing, type):
        find, protocol = _find_in(thing), _is_protocol(thing)
        return class_target(
            reference, find, kind="class", read=_READ, is_protocol=protocol, public=_public_methods(thing)
        )
    if inspect.isroutine(thing) or isinstance(thing, functools.partial):
        return _factory_target(reference, thing)
    kind = f"object of class {type(thing).__qualname__}"
    return Target(reference, kind, _READ, implemented(_find_in(thing)), public=_public_methods(type(thing)))


def _actor_class(thing: object) -> type | None:
    """The class that `@ray.remote` was put on, seen by the metadata it leaves, without importing Ray."""
    metadata = inspect.getattr_static(thing, "__ray_metadata__", None)
    actor = inspect.getattr_static(metadata, "modified_class", None)
    return actor if isinstance(actor, type) else None


def _is_protocol(cls: type) -> bool:
    return bool(vars(cls).get("_is_protocol"))


def _factory_target(reference: str, factory: object) -> Target:
    returned = _returned_class(factory)
    if returned is None:
        return silent_factory_target(reference, read=_READ)
    public = _public_methods(returned)
    return factory_target(reference, _find_in(returned), returns=returned.__qualname__, read=_READ, public=public)


def _returned_class(factory: object) -> type | None:
    inner = inspect.unwrap(factory.func if isinstance(factory, functools.partial) else factory)  # type: ignore[arg-type]
    if isinstance(inner, type):
        return inner
    try:
        annotation = inspect.get_annotations(inner).get("return")
        # Only this one is evaluated: another annotation may name what is imported for type checking only.
        holder = types.SimpleNamespace(__annotations__={"return": annotation})
        hint = typing.get_type_hints(holder, globalns=getattr(inner, "__globals__", {})).get("return")
    except (NameError, AttributeError, TypeError, SyntaxError):
        return None
    return _one_class(hint)


def _one_class(hint: object) -> type | None:
    """The class in `X`, `X | None`, `X[T]` or `Awaitable[X]`; None when there is not exactly one."""
    if isinstance(hint, type) and hint is not types.NoneType and typing.get_origin(hint) is None:
        return hint
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        classes = [argument for argument in arguments if argument is not types.NoneType]
        return _one_class(classes[0]) if len(classes) == 1 else None
    if isinstance(origin, type) and arguments and calling.promises_awaitable(origin.__qualname__):
        return _one_class(arguments[-1])
    return origin if isinstance(origin, type) else None


def _public_methods(cls: type) -> tuple[str, ...]:
    """Names that the class, or one it builds on outside of the standard library, gives to functions."""
    bases = [base for base in reversed(cls.__mro__) if base.__module__.partition(".")[0] not in _LIBRARIES]
    known = (types.FunctionType, staticmethod, classmethod, functools.partialmethod, functools.partial)
    members = {name: member for base in bases for name, member in vars(base).items()}
    return tuple(name for name, member in members.items() if not name.startswith("_") and isinstance(member, known))


_LIBRARIES = sys.stdlib_module_names | {"pydantic"}
"""Packages whose classes have methods of their own, which no client means as its own."""


def _find_in(thing: object) -> Find:
    return functools.partial(live_method, thing)


def live_method(thing: object, name: str) -> Found:
    """A method of a class or of an object, judged without triggering any code of either."""
    cls = thing if isinstance(thing, type) else type(thing)
    raw: object = _in_class(cls, name) if thing is cls else inspect.getattr_static(thing, name, _ABSENT)
    if raw is _ABSENT:
        return _absent_method(thing, cls, name)
    if isinstance(raw, types.MemberDescriptorType) and thing is not cls:
        raw = _slot_value(raw, thing)
        return Found("missing", note="an empty slot") if raw is _ABSENT else _judged(raw, bound=False)
    return _judged(raw, bound=raw is _in_class(cls, name))


def _in_class(cls: type, name: str) -> object:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), _ABSENT)


def _slot_value(slot: types.MemberDescriptorType, thing: object) -> object:
    try:
        return slot.__get__(thing)  # compiled, reads memory and calls nothing
    except AttributeError:
        return _ABSENT


def _judged(raw: object, *, bound: bool) -> Found:
    style = calling.style(raw)
    if style != "not callable":
        return Found(style, _signature(raw, bound=bound), _note(raw, style), _is_abstract(raw))
    if isinstance(raw, (property, functools.cached_property, types.GetSetDescriptorType)):
        return Found("property")
    if isinstance(raw, types.MemberDescriptorType):
        return Found("unknown", note="a slot, filled on the object")
    if bound and hasattr(type(raw), "__get__"):
        return Found("unknown", note=f"a descriptor ({type(raw).__name__}), not triggered")
    return Found("not callable")


def _signature(raw: object, *, bound: bool) -> Signature | None:
    """Its signature, without the parameter that the object fills; None when it cannot be read."""
    function, drop = raw, bound and hasattr(type(raw), "__get__")
    if isinstance(raw, (staticmethod, classmethod)):
        function, drop = raw.__func__, isinstance(raw, classmethod)
    elif isinstance(raw, functools.partialmethod):
        function = raw.__get__(None, object)
    try:
        signature = inspect.signature(typing.cast("Callable[..., object]", function))
    except (ValueError, TypeError, NameError):  # compiled code; NameError where annotations are evaluated late
        return None
    parameters = list(signature.parameters.values())
    if drop and parameters and parameters[0].kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        del parameters[0]
    return signature.replace(parameters=parameters)


def _note(raw: object, style: str) -> str:
    if style != "unknown":
        return ""
    if isinstance(raw, (staticmethod, classmethod)):
        return _note(raw.__func__, style)
    if isinstance(raw, functools._lru_cache_wrapper):
        again = calling.style(raw.__wrapped__) == "async"
        return "cached: the second equal call gets a coroutine that is used up" if again else "cached"
    if isinstance(raw, types.FunctionType) and "__wrapped__" in vars(raw):
        wrapped = calling.style(vars(raw)["__wrapped__"])
        return f"decorated; wraps a method that is {IN_WORDS.get(wrapped, wrapped)}"
    inner = raw.func if isinstance(raw, functools.partial) else raw
    if calling.has_async_call(inner):
        return "an object whose __call__ is async"
    if inspect.isbuiltin(inner) or inspect.ismethoddescriptor(inner):
        return "compiled code"
    return "a lambda" if getattr(inner, "__name__", "") == "<lambda>" else ""


def _is_abstract(raw: object) -> bool:
    known = (types.FunctionType, staticmethod, classmethod, functools.partialmethod)
    return isinstance(raw, known) and bool(getattr(raw, "__isabstractmethod__", False))


def _absent_method(thing: object, cls: type, name: str) -> Found:
    handle = inspect.getattr_static(thing, "_ray_method_signatures", None)
    if isinstance(handle, dict):
        return _handle_method(handle, name)
    if any(name in _declared_attributes(base) for base in cls.__mro__):
        return Found("unknown", note="declared as an attribute, set on the object")
    # Pydantic's __getattr__ only serves private attributes.
    if any("__getattr__" in vars(base) and base.__module__.partition(".")[0] != "pydantic" for base in cls.__mro__):
        return Found("unknown", note="not defined, but the class has a __getattr__")
    return Found("missing")


def _handle_method(signatures: dict[str, list[Parameter]], name: str) -> Found:
    """A method of a Ray actor handle, which keeps the signatures of its actor's methods."""
    if name not in signatures:
        return Found("missing")
    return Found("ray actor method", Signature(signatures[name]))


def _declared_attributes(cls: type) -> set[str]:
    """Names of annotated attributes, fields of dataclasses and of pydantic models."""
    tables = ("__annotations__", "__dataclass_fields__", "__pydantic_fields__")
    found = (vars(cls).get(table) for table in tables)
    # Modules and metaclasses have a descriptor under the same name.
    return {name for table in found if isinstance(table, dict) for name in table}
