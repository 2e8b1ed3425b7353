"""The result of a smoke run as a table for a terminal, Markdown for a pull request, or JSON for a script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlctl.baselines import words
from rlctl.baselines.file import Baseline
from rlctl.baselines.judging import Judgement
from rlctl.baselines.record import Record
from rlctl.display import COLUMNS, Metrics, loss_notes, peak_words
from rlctl.runfiles import strict
from rlctl.types import BackendInfo
from rlctl.verdict import Check

Style = Literal["table", "markdown", "json"]

HEADINGS = ("step", "MFU", "TFLOP/s", "loss", "score", "signal", "grad norm", "tok/s", "s")
BY_HEADING = {column.heading: column for column in COLUMNS}


@dataclass(frozen=True, slots=True)
class Beside:
    """What stands beside the steps: the runs, settings that nothing read, and what became of a baseline."""

    runs: Sequence[Record]
    unread: Sequence[str] = ()
    judgement: Judgement | None = None
    written: Baseline | None = None
    written_to: str = ""


NOTHING = Beside(())


def render(
    metrics: Sequence[Metrics],
    checks: Sequence[Check],
    info: BackendInfo,
    *,
    style: Style,
    beside: Beside = NOTHING,
) -> str:
    """The steps (of the first run, where there are several), the comparison, the machine, and the verdict."""
    if style == "json":
        return _json(metrics, checks, info, beside)
    rows = [[BY_HEADING[heading].text(step) for heading in HEADINGS] for step in metrics]
    table = _markdown(rows) if style == "markdown" else _aligned(rows)
    bullet = "- " if style == "markdown" else "  "
    lines = [f"{bullet}{'ok  ' if check.holds else 'FAIL'} {check.name}: {check.reason}" for check in checks]
    verdict = f"verdict: training {'works' if passed(checks) else 'does not work'} here"
    if beside.judgement is not None:
        verdict += f"; against the baseline: {words.VERDICTS[beside.judgement.outcome]}"
    parts = [
        table, _comparison(beside), _machine(metrics, info, beside), _findings(beside, bullet=bullet),
        loss_notes(metrics),
        [f"{bullet}{line}" for line in beside.unread], lines, [verdict],
    ]  # fmt: skip
    return "\n\n".join("\n".join(part) for part in parts if part)


def _comparison(beside: Beside) -> list[str]:
    """One line which says how the runs compare, and one on the baseline that they are kept in."""
    compared = [words.comparison_line(beside.judgement, num_runs=len(beside.runs))] if beside.judgement else []
    return compared + ([words.written_line(beside.written_to, beside.written)] if beside.written else [])


def _findings(beside: Beside, *, bullet: str) -> list[str]:
    runs = words.runs_lines(beside.runs) if len(beside.runs) > 1 else []
    findings = words.lines(beside.judgement) if beside.judgement is not None else []
    return [f"{bullet}{line}" for line in (*runs, *findings)]


def passed(checks: Sequence[Check]) -> bool:
    return all(check.holds for check in checks)


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(HEADINGS)} |",
        f"|{'|'.join('---:' for _ in HEADINGS)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [list(HEADINGS), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]


def _machine(metrics: Sequence[Metrics], info: BackendInfo, beside: Beside) -> list[str]:
    machine = f"{info.num_devices} x {info.device}, {info.dtype}, {info.num_parameters / 1e6:.4g} M parameters"
    reasons = {str(step["perf/mfu/actor/reason"]) for step in metrics if step.get("perf/mfu/actor/reason")}
    unknown = [f"MFU n/a: {r}" for r in sorted(reasons) if info.peak_flops]
    return [f"{machine}; {peak_words(info)}", *unknown, *(_versions(run.key) for run in beside.runs[:1])]


def _versions(key: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in key["versions"].items())
    return f"{key['processor']}; backend {key['backend']}, model {key['model']}; {versions}"


def _json(metrics: Sequence[Metrics], checks: Sequence[Check], info: BackendInfo, beside: Beside) -> str:
    machine = {
        "device": info.device,
        "num_devices": info.num_devices,
        "dtype": info.dtype,
        "num_parameters": info.num_parameters,
        "peak_flops": info.peak_flops,
        "peak_source": info.peak_source,
    }
    tree = {
        "passed": passed(checks),
        "checks": [{"name": c.name, "holds": c.holds, "reason": c.reason} for c in checks],
        "machine": machine,
        "unread_settings": list(beside.unread),
        "steps": [strict(step) for step in metrics],
    }
    if beside.judgement is not None:
        tree["baseline"] = words.tree(beside.judgement, num_runs=len(beside.runs))
    if beside.written is not None:
        tree["written_baseline"] = beside.written_to
    return json.dumps(tree, indent=2, allow_nan=False)
