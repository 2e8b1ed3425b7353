"""Compare two signatures: which of the calls that one allows break, or mean something else, with the other?

Both come without `self`, from live functions or from source; a default from source is a `WrittenDefault`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature

from rlctl.backends.probe.report import Finding


@dataclass(frozen=True, slots=True)
class WrittenDefault:
    """A default that was read from source, as it is written there."""

    text: str


def signature_findings(expected: Signature, found: Signature) -> list[Finding]:
    """What breaks, or differs, when a method declared as `expected` is called: [] when any such call fits."""
    wanted, has = list(expected.parameters.values()), found.parameters
    renamed = _renamed(wanted, has)
    findings: list[Finding] = []
    for parameter in wanted:
        name = parameter.name
        if name in has:
            asked, given = _place(expected, name), _place(found, name)
            findings += _differences(parameter, has[name], by_position=asked is not None)
            findings += _misplaced(name, asked=asked, given=given)
        elif name in renamed:
            findings.append(Finding(f"parameter {name!r} is renamed to {renamed[name]!r}", stops=True))
        else:
            findings += _unnamed(parameter, has.values())
    known = {*expected.parameters, *renamed.values()}
    for extra in has.values():
        if extra.name not in known and _is_named(extra) and extra.default is Parameter.empty:
            findings.append(Finding(f"parameter {extra.name!r} is required, and rlctl does not pass it", stops=True))
    return findings


def _renamed(wanted: Sequence[Parameter], has: Mapping[str, Parameter]) -> dict[str, str]:
    """Which parameter goes by which other name: the one in the same place, else the one of the most similar name."""
    known = {parameter.name for parameter in wanted}
    left = [name for name, parameter in has.items() if _is_named(parameter) and name not in known]
    names = list(has)
    renamed: dict[str, str] = {}
    for place, parameter in enumerate(wanted):
        if parameter.name in has:
            continue
        here = [] if parameter.kind is Parameter.KEYWORD_ONLY else names[place : place + 1]
        others = [name for name in here if name in left] or difflib.get_close_matches(parameter.name, left, n=1)
        if others:
            renamed[parameter.name] = others[0]
            left.remove(others[0])
    return renamed


def _is_named(parameter: Parameter) -> bool:
    return parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _place(signature: Signature, name: str) -> int | None:
    """The parameter's place among those that may be passed by position, None when it may not."""
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in signature.parameters.values() if parameter.kind in positional]
    return names.index(name) if name in names else None


def _differences(wanted: Parameter, has: Parameter, *, by_position: bool) -> Iterator[Finding]:
    if has.kind is Parameter.KEYWORD_ONLY and by_position:
        yield Finding(f"parameter {wanted.name!r} is keyword-only here, rlctl may pass it by position", stops=True)
    if has.kind is Parameter.POSITIONAL_ONLY and wanted.kind is not Parameter.POSITIONAL_ONLY:
        yield Finding(f"parameter {wanted.name!r} is positional-only here, rlctl passes it by name", stops=True)
    if wanted.default is Parameter.empty:
        return
    if has.default is Parameter.empty:
        yield Finding(f"parameter {wanted.name!r} has no default here, rlctl may leave it out", stops=True)
    elif _shown_default(has.default) != _shown_default(wanted.default):
        given, asked = _shown_default(has.default), _shown_default(wanted.default)
        yield Finding(f"default of {wanted.name!r} is {given}, where {asked} is expected", stops=False)


def _shown_default(default: object) -> str:
    return default.text if isinstance(default, WrittenDefault) else repr(default)


def _misplaced(name: str, *, asked: int | None, given: int | None) -> Iterator[Finding]:
    if asked is not None and given is not None and asked != given:
        text = f"parameter {name!r} is number {given + 1} here, where rlctl passes it as number {asked + 1}"
        yield Finding(text, stops=True)


def _unnamed(wanted: Parameter, has: Iterable[Parameter]) -> Iterator[Finding]:
    """A parameter that is not there by name may still be taken by *args and **kwargs, in every way it is passed."""
    kinds = {parameter.kind for parameter in has}
    ways = {"position": Parameter.VAR_POSITIONAL, "name": Parameter.VAR_KEYWORD}
    if wanted.kind is Parameter.KEYWORD_ONLY:
        del ways["position"]
    if wanted.kind is Parameter.POSITIONAL_ONLY:
        del ways["name"]
    taken = [way for way, kind in ways.items() if kind in kinds]
    if not taken:
        yield Finding(f"parameter {wanted.name!r} is missing", stops=True)
    elif len(taken) < len(ways):
        yield Finding(f"parameter {wanted.name!r} is taken by {taken[0]} only", stops=True)


def shown(signature: Signature | None) -> str:
    """A signature without annotations, which differ in wording only: `(batch, processing=None)`; "" for None."""
    if signature is None:
        return ""
    parts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is Parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        prefix = "*" * (parameter.kind is Parameter.VAR_POSITIONAL) + "**" * (parameter.kind is Parameter.VAR_KEYWORD)
        default = "" if parameter.default is Parameter.empty else f"={_shown_default(parameter.default)}"
        parts.append(f"{prefix}{parameter.name}{default}")
    return f"({', '.join(parts)})"
