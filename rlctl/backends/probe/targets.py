"""A class, or what makes its objects, with its methods: the form in which live and source code are compared.

The rules that hold for both are here: what a class only declares is missing, unless some subclass of it will be
used; a Protocol is no client; an actor's methods are reached through the actor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import Signature
from typing import Literal

from rlctl.backends import calling
from rlctl.backends.probe.report import Finding

Style = calling.Style | Literal["missing", "property"]

STOPPING: dict[Style, str] = {
    "missing": "is missing",
    "property": "is a property, where a method is needed",
    "not callable": "is not callable, where a method is needed",
    "mock": "is a mock, which answers to anything; name the real class",
}
"""The styles that no run can use, each with what is said of it."""

IN_WORDS: dict[Style, str] = {"unknown": "unknown, decided at call", "mock": "mock: not evidence"}
"""The styles that are shown by other words than their own."""


@dataclass(frozen=True, slots=True)
class Found:
    """One method as it was found."""

    style: Style
    signature: Signature | None = None
    """Without `self`; None when it cannot be read."""
    note: str = ""
    abstract: bool = False


Find = Callable[[str], Found]
"""Looks a method up by its name."""


@dataclass(frozen=True, slots=True)
class Target:
    """A class, or what stands for one, live or in source."""

    name: str
    kind: str
    read: str
    find: Find | None
    """None when it is not known which class stands behind the target."""
    findings: tuple[Finding, ...] = ()
    public: tuple[str, ...] = ()
    """Names of the public methods that it defines, in their order."""


def class_target(
    name: str, find: Find, *, kind: str, read: str, is_protocol: bool, public: tuple[str, ...] = ()
) -> Target:
    """A class that a run makes an object of."""
    protocol = Finding(f"{name} is a Protocol, which describes a client and is none", stops=True)
    return Target(name, kind, read, implemented(find), (protocol,) if is_protocol else (), public)


def factory_target(name: str, find: Find, *, returns: str, read: str, public: tuple[str, ...] = ()) -> Target:
    """A function that makes the object: of a subclass, where the class it is annotated with is abstract."""
    return Target(name, f"factory of {returns}", read, find, public=public)


def silent_factory_target(name: str, *, read: str) -> Target:
    """A function of which it is not known what it makes."""
    finding = Finding(f"{name} is a function that does not say, by annotation, which class it returns", stops=True)
    return Target(name, "factory", read, None, (finding,))


def implemented(find: Find) -> Find:
    """`find`, to which what is only declared is missing."""

    def find_implemented(name: str) -> Found:
        found = find(name)
        return Found("missing", note="only declared (abstract), not implemented") if found.abstract else found

    return find_implemented


def in_actor(find: Find) -> Find:
    """`find`, for methods of a class that runs as a Ray actor."""

    def find_in_actor(name: str) -> Found:
        found = find(name)
        if found.style in STOPPING:
            return found
        return replace(found, style="ray actor method", note=found.note or f"{found.style} in the actor")

    return find_in_actor
