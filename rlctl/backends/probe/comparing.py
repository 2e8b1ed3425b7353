"""Compare a target with its contract, method by method: is it there, how is it called, do its parameters fit?"""

from __future__ import annotations

import types
from typing import Literal

from rlctl.backends import calling
from rlctl.backends.probe.live import live_method
from rlctl.backends.probe.report import Finding, MethodReport, PartReport
from rlctl.backends.probe.signatures import signature_findings
from rlctl.backends.probe.targets import IN_WORDS, STOPPING, Found, Style, Target


def judge(target: Target, contract: type, *, part: Literal["backend", "client"]) -> PartReport:
    """How the target keeps the contract: one report a method, none when the target's class is not known."""
    methods: tuple[MethodReport, ...] = ()
    if (find := target.find) is not None:
        expectations = _methods_of(contract).items()
        methods = tuple(_compare(each, find(name), name=name, adapts=part == "client") for name, each in expectations)
    return PartReport(part, target.name, target.kind, target.read, methods, target.findings)


def _methods_of(contract: type) -> dict[str, Found]:
    """The public methods that a contract's class, or one it builds on, defines, in their order."""
    return {
        name: live_method(contract, name)
        for cls in reversed(contract.__mro__)
        for name, member in vars(cls).items()
        if isinstance(member, types.FunctionType) and not name.startswith("_") and cls.__module__ != "typing"
    }


def _compare(expected: Found, found: Found, *, name: str, adapts: bool) -> MethodReport:
    """`adapts` tells whether a run reaches the method through `calling.call`, as a client's; else it awaits it."""
    findings = _style_findings(expected.style, found.style, adapts=adapts)
    note = found.note
    if expected.signature is not None and found.signature is not None:
        findings += signature_findings(expected.signature, found.signature)
    elif found.style not in STOPPING and not note:
        note = "its signature cannot be read"
    said = IN_WORDS.get(found.style, found.style)
    return MethodReport(name, expected.style, said, _how(found.style, adapts=adapts), tuple(findings), note)


def _style_findings(expected: Style, found: Style, *, adapts: bool) -> list[Finding]:
    if found in STOPPING:
        return [Finding(STOPPING[found], stops=True)]
    if expected == "async" and found in ("sync", "async generator"):
        return [Finding(f"is {found}, where async is expected", stops=not adapts)]
    return []


def _how(style: Style, *, adapts: bool) -> str:
    if style == "missing" or style == "property":
        return "cannot be called"
    if adapts or style in STOPPING:
        return calling.HOW[style]
    return "cannot be awaited" if style in ("sync", "async generator") else "awaited"
