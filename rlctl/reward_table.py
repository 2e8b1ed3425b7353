"""What `rlctl reward check` found, as a table for a terminal or JSON for a script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Literal

from rlctl.rewards.check import Recorded, RewardReport, Row

HEADINGS = ("text", "n", "lowest", "mean", "highest", "full marks", "failed")
WORDS = {True: "ok  ", False: "FAIL", None: "?   "}


def render(reports: Sequence[RewardReport], *, style: Literal["table", "json"]) -> str:
    if style == "json":
        shown = {"passed": passed(reports), "rewards": [asdict(report) for report in reports]}
        return json.dumps(shown, indent=2, allow_nan=False)
    lines = [line for report in reports for line in [*_lines(report), ""]]
    verdict = "can be trained on" if passed(reports) else "should not be trained on"
    return "\n".join([*lines, f"verdict: {'these rewards' if len(reports) > 1 else 'this reward'} {verdict}"])


def passed(reports: Sequence[RewardReport]) -> bool:
    """Whether nothing was found that does not hold; what could not be judged is no fault."""
    return all(finding.holds is not False for report in reports for finding in report.findings)


def _lines(report: RewardReport) -> list[str]:
    latency = ", ".join(f"{name} {_milliseconds(value)}" for name, value in report.latency_ms.items())
    return [
        f"{report.name}: full marks are {report.full_marks:g}",
        *_table([_cells(row) for row in report.rows]),
        f"a call takes: {latency}",
        *(_recorded(report.recorded) if report.recorded else []),
        *(f"  {WORDS[finding.holds]} {finding.name}: {finding.reason}" for finding in report.findings),
    ]


def _cells(row: Row) -> list[str]:
    scores = ["n/a" if value is None else f"{value:.4g}" for value in (row.low, row.mean, row.high)]
    return [row.kind, str(row.count), *scores, str(row.full), kinds(row.failures) or "0"]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [list(HEADINGS), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]


def _recorded(recorded: Recorded) -> list[str]:
    mean = "n/a" if recorded.mean is None else f"{recorded.mean:.4g}"
    before = "not recorded" if recorded.recorded_mean is None else f"{recorded.recorded_mean:.4g}"
    lines = [
        f"recorded completions: {recorded.count}, mean score {mean} (in the run {before}; {recorded.changed} differ)"
        + (f", failed {kinds(recorded.failures)}" if recorded.failures else "")
    ]
    if recorded.read is not None:
        share = 100 * recorded.read / recorded.count
        lines.append(f"  an answer can be read in {recorded.read} ({share:.1f} %), found by: {kinds(recorded.forms)}")
    return lines


def kinds(counts: Mapping[str, int]) -> str:
    """`3 timeout, 1 crash`."""
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"
