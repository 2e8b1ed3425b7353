"""The report of `rlctl check-backend` as lines: tables for a terminal, or Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # probe is imported when the command runs: `rlctl --help` must stay light
    from rlctl.backends.probe import Finding, MethodReport, PartReport, Report, Trial

Row = tuple[str, ...]

METHODS: Row = ("method", "expected", "found", "called")
CHECKS: Row = ("check", "outcome", "seconds", "longest stall")


def table(report: Report) -> Iterator[str]:
    """For a terminal; findings and notes one a line and never wrapped, so that they can be searched."""
    for part in report.parts:
        yield f"{report.backend} {_title(part)}"
        yield part.read
        yield from _origin(part)
        yield from _columns(METHODS, _methods(part))
        yield from _lines(part)
        yield ""
    for finding in report.findings:
        yield _line(finding)
    if report.trial is not None:
        yield f"{report.backend} on a tiny job: {report.trial.device}"
        yield from _columns(CHECKS, _checks(report.trial))
        yield from _details(report.trial)
        yield ""


def markdown(report: Report) -> Iterator[str]:
    """To be pasted into a pull request."""
    for part in report.parts:
        yield from (f"### {report.backend} {_title(part)}", "", part.read, *_origin(part), "")
        yield from _markdown_table((*METHODS, "parameters"), [(*row, m.signature) for row, m in _with_methods(part)])
        yield from ("", *(f"- {line}" for line in _lines(part)), "")
    yield from (f"- {_line(finding)}" for finding in report.findings)
    if report.trial is not None:
        yield from (f"### {report.backend} on a tiny job: {report.trial.device}", "")
        yield from _markdown_table(CHECKS, _checks(report.trial))
        yield from ("", *(f"- {line}" for line in _details(report.trial)), "")


def _title(part: PartReport) -> str:
    which = f" {part.name}" if part.name else ""
    taken = "" if part.decides else ", not the one that a run takes unless told"
    return f"{part.part}{which}: {part.target} ({part.kind}){taken}"


def _origin(part: PartReport) -> Iterator[str]:
    if part.package is not None:
        yield f"{part.package.distribution} {part.package.version}, found in {part.package.folder}"


def _methods(part: PartReport) -> list[Row]:
    return [(method.name, method.expected, method.found, method.call) for method in part.methods]


def _with_methods(part: PartReport) -> list[tuple[Row, MethodReport]]:
    return list(zip(_methods(part), part.methods, strict=True))


def _checks(trial: Trial) -> list[Row]:
    return [(c.name, c.outcome, f"{c.seconds:.2f}", f"{1000 * c.stall_seconds:.0f} ms") for c in trial.checks]


def _details(trial: Trial) -> Iterator[str]:
    yield from (f"{check.name}: {check.detail}" for check in trial.checks if check.detail)
    longest = max(trial.checks, key=lambda check: check.stall_seconds)
    yield f"the event loop stood still for {1000 * longest.stall_seconds:.0f} ms at most ({longest.name})"


def _lines(part: PartReport) -> list[str]:
    whole = [_line(finding, decides=part.decides) for finding in part.findings]
    findings = [
        f"{method.name}: {_line(finding, decides=part.decides)}"
        for method in part.methods
        for finding in method.findings
    ]
    notes = [f"{method.name}: note: {method.note}" for method in part.methods if method.note]
    changes = {
        "missing": part.missing,
        "extra": part.extra,
        "style changed": part.style_changed,
        "signature changed": part.signature_changed,
    }
    return [*whole, *findings, *notes, *(f"{what}: {', '.join(names)}" for what, names in changes.items() if names)]


def _line(finding: Finding, *, decides: bool = True) -> str:
    return f"{finding.text} (stops a run)" if finding.stops and decides else finding.text


def _columns(head: Row, rows: Sequence[Row]) -> Iterator[str]:
    import io

    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False)
    for column in head:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    stream = io.StringIO()
    Console(file=stream, highlight=False, markup=False, width=Console().width).print(drawn)
    yield from (line.rstrip() for line in stream.getvalue().splitlines())


def _markdown_table(head: Row, rows: Sequence[Row]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
