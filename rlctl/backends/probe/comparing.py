"""Compare a target with its contract, method by method: is it there, how is it called, do its parameters fit?"""

from __future__ import annotations

from typing import Literal

from rlctl.backends import calling
from rlctl.backends.probe.contracts import Contract, Method
from rlctl.backends.probe.report import Finding, MethodReport, Package, PartReport
from rlctl.backends.probe.signatures import shown, signature_findings
from rlctl.backends.probe.targets import IN_WORDS, STOPPING, Found, Style, Target


def judge(
    target: Target,
    contract: Contract,
    *,
    part: Literal["backend", "client"],
    name: str = "",
    decides: bool = True,
    package: Package | None = None,
) -> PartReport:
    """How the target keeps the contract: one report a method, none when the target's class is not known."""
    judged: list[tuple[MethodReport, _Changes]] = []
    if (find := target.find) is not None:
        judged = [_compare(each, find(each.name), adapts=part == "client") for each in contract.methods]
    return PartReport(
        part,
        target.name,
        target.kind,
        target.read,
        tuple(report for report, _ in judged),
        target.findings,
        name=name,
        decides=decides,
        package=package,
        missing=_named(judged, "missing"),
        extra=_extras(target, contract),
        style_changed=_named(judged, "style"),
        signature_changed=_named(judged, "signature"),
    )


_Changes = frozenset[Literal["missing", "style", "signature"]]


def _named(
    judged: list[tuple[MethodReport, _Changes]], change: Literal["missing", "style", "signature"]
) -> tuple[str, ...]:
    return tuple(report.name for report, changes in judged if change in changes)


def _extras(target: Target, contract: Contract) -> tuple[str, ...]:
    """Public methods that the contract does not know, as `async load(path=None)`."""
    if not contract.lists_extras or target.find is None:
        return ()
    known = {method.name for method in contract.methods} | contract.known
    return tuple(described(name, target.find(name)) for name in target.public if name not in known)


def described(name: str, found: Found) -> str:
    """A method in one line."""
    return f"{IN_WORDS.get(found.style, found.style)} {name}{shown(found.signature)}"


def _compare(expected: Method, found: Found, *, adapts: bool) -> tuple[MethodReport, _Changes]:
    """`adapts` tells whether a run reaches the method through `calling.call`, as a client's; else it awaits it."""
    of_style = _style_findings(expected.style, found.style, adapts=adapts)
    if expected.optional and found.style == "missing":
        of_style = [Finding("is missing, which only some runs call", stops=False)]
    note, of_signature = found.note, list[Finding]()
    if expected.signature is not None and found.signature is not None:
        of_signature = signature_findings(expected.signature, found.signature)
    elif found.style not in STOPPING and not note:
        note = "its signature cannot be read"
    said = IN_WORDS.get(found.style, found.style)
    how, wanted = _how(found.style, adapts=adapts), expected.style or "any"
    report = MethodReport(
        expected.name,
        wanted,
        said,
        how,
        (*of_style, *of_signature),
        note,
        shown(found.signature),
        expected.reply,
        expected.versions,
    )
    changes: set[Literal["missing", "style", "signature"]] = {"signature"} if of_signature else set()
    if found.style in STOPPING:
        changes.add("missing")
    elif of_style:
        changes.add("style")
    return report, frozenset(changes)


def _style_findings(expected: Style | None, found: Style, *, adapts: bool) -> list[Finding]:
    if found in STOPPING:
        return [Finding(STOPPING[found], stops=True)]
    if expected == "async" and found in ("sync", "async generator"):
        return [Finding(f"is {found}, where async is expected", stops=not adapts)]
    if expected == "sync" and found in ("async", "async generator", "returns awaitable"):
        return [Finding(f"is {found}, where sync is expected", stops=False)]
    return []


def _how(style: Style, *, adapts: bool) -> str:
    if style == "missing" or style == "property":
        return "cannot be called"
    if adapts or style in STOPPING:
        return calling.HOW[style]
    return "cannot be awaited" if style in ("sync", "async generator") else "awaited"
