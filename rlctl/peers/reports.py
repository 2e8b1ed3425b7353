"""Every difference, as plain lines, Markdown or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from rlctl.peers.entries import Unresolved, shown
from rlctl.peers.findings import Effect, Finding, Group, Translation
from rlctl.toml_text import value_text

_INDENT = "      "


def summary(translation: Translation) -> str:
    """One line: how many settings, and whether anything that matters was left behind."""
    counts = {group: sum(f.group is group for f in translation.findings) for group in Group}
    parts = [f"{counts[group]} {_SHORT[group]}" for group in Group if counts[group]]
    lost = sum(finding.effect is Effect.RESULT for finding in translation.findings)
    end = f"{lost} of them change the result" if lost else "nothing that changes the result was left behind"
    return f"{translation.peer} {translation.version}, {translation.form}: {', '.join(parts)}; {end}"


def table(translation: Translation, *, width: int) -> str:
    """Plain lines, grouped, for a terminal of `width` columns."""
    lines = _wrapped(summary(translation), width, "")
    lines += [line for note in translation.notes for line in _wrapped(f"note: {note}", width, "")]
    for group in Group:
        findings = [finding for finding in translation.findings if finding.group is group]
        if findings:
            lines += ["", f"{group.value} ({len(findings)})"]
            lines += [line for same in _alike(findings) for line in _item(same, width)]
    return "\n".join(lines) + "\n"


def _alike(findings: list[Finding]) -> list[list[Finding]]:
    """Findings of which the same is said, together."""
    together: dict[tuple[str, ...], list[Finding]] = {}
    for at, finding in enumerate(findings):
        same = (str(at),) if finding.settings or not finding.text else (finding.text, finding.effect.name)
        together.setdefault(same, []).append(finding)
    return list(together.values())


def _item(findings: list[Finding], width: int) -> Iterator[str]:
    finding = findings[0]
    head = ", ".join(f"{one.subject}{_value(one)}" for one in findings) + _ours(finding)
    yield from _wrapped(head, width, "  ")
    text = "; ".join(part for part in (finding.text, _effect(finding), _place(finding)) if part)
    if text:
        yield from _wrapped(text, width, _INDENT)


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Names of settings stay whole, even where one is longer than the line."""
    return textwrap.wrap(
        text,
        max(width - 2, 30),
        initial_indent=indent,
        subsequent_indent=_INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _value(finding: Finding) -> str:
    if finding.subject.startswith("(") or (finding.value is None and finding.group is Group.DEFAULT):
        return ""
    if isinstance(finding.value, list) and len(finding.keys) > 1:
        return f" = {' | '.join(shown(value, limit=30) for value in finding.value)}"
    return "" if finding.value is None and not finding.keys else f" = {shown(finding.value)}"


def _ours(finding: Finding) -> str:
    pairs = [f"{name} = {shown_setting(value)}" for name, value in finding.settings.items()]
    return f" -> {', '.join(pairs)}" if pairs else ""


def shown_setting(value: Any) -> str:
    return "null" if value is None else shown(value) if isinstance(value, list | dict | str) else value_text(value)


def _effect(finding: Finding) -> str:
    return "" if finding.effect is Effect.NONE else f"changes {finding.effect.value}"


def _place(finding: Finding) -> str:
    return finding.place if finding.group in (Group.UNKNOWN, Group.INVALID) and finding.place.startswith("line") else ""


def markdown(translation: Translation) -> str:
    lines = [f"**{_cell(summary(translation))}**", *(f"- {_cell(note)}" for note in translation.notes)]
    for group in Group:
        findings = [finding for finding in translation.findings if finding.group is group]
        if findings:
            lines += ["", f"### {group.value}", "", "| peer | value | rlctl | what to know |", "|---|---|---|---|"]
            lines += [_row(finding) for finding in findings]
    return "\n".join(lines) + "\n"


def _row(finding: Finding) -> str:
    value = "" if finding.value is None else shown(finding.value)
    ours = ", ".join(f"`{name} = {_cell(shown_setting(v))}`" for name, v in finding.settings.items())
    text = "; ".join(part for part in (finding.text, _effect(finding), _place(finding)) if part)
    return f"| `{_cell(finding.subject)}` | {_cell(value)} | {ours} | {_cell(text)} |"


def _cell(text: str) -> str:
    for special in "\\|<*_":
        text = text.replace(special, f"\\{special}") if special != "<" else text.replace("<", "&lt;")
    return text.replace("`", "'")


def as_json(translation: Translation) -> str:
    tree = {
        "peer": translation.peer,
        "version": translation.version,
        "file": translation.path,
        "form": translation.form,
        "changes_the_result": translation.changes_the_result,
        "settings": dict(translation.settings),
        "notes": list(translation.notes),
        "findings": [_as_tree(finding) for finding in translation.findings],
    }
    return json.dumps(tree, indent=2, ensure_ascii=False, default=_plain) + "\n"


def _as_tree(finding: Finding) -> dict[str, Any]:
    return {
        "group": finding.group.key,
        "keys": list(finding.keys),
        "subject": finding.subject,
        "value": finding.value,
        "settings": dict(finding.settings),
        "text": finding.text,
        "effect": finding.effect.name.lower(),
        "place": finding.place,
    }


def _plain(value: Any) -> Any:
    return value.text if isinstance(value, Unresolved) else str(value)


_SHORT = {
    Group.EXACT: "exact",
    Group.MEANING: "with a change of meaning",
    Group.DEFAULT: "defaults written out",
    Group.MISSING: "without a counterpart",
    Group.UNKNOWN: "unknown",
    Group.INVALID: "refused or contradictory",
    Group.UNRESOLVED: "not known from the file",
}
