"""The result of a smoke run as a table for a terminal, Markdown for a pull request, or JSON for a script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from rlctl.display import COLUMNS, LOSS_NOTE, Metrics, peak_words
from rlctl.runfiles import strict
from rlctl.types import BackendInfo
from rlctl.verdict import Check

Style = Literal["table", "markdown", "json"]

HEADINGS = ("step", "MFU", "TFLOP/s", "loss", "score", "signal", "grad norm", "tok/s", "s")
BY_HEADING = {column.heading: column for column in COLUMNS}


def render(metrics: Sequence[Metrics], checks: Sequence[Check], info: BackendInfo, *, style: Style) -> str:
    """The steps, the machine, and the verdict."""
    if style == "json":
        return _json(metrics, checks, info)
    rows = [[BY_HEADING[heading].text(step) for heading in HEADINGS] for step in metrics]
    table = _markdown(rows) if style == "markdown" else _aligned(rows)
    bullet = "- " if style == "markdown" else "  "
    lines = [f"{bullet}{'ok  ' if check.holds else 'FAIL'} {check.name}: {check.reason}" for check in checks]
    verdict = f"verdict: training {'works' if passed(checks) else 'does not work'} here"
    return "\n".join([*table, "", *_machine(metrics, info), "", LOSS_NOTE, "", *lines, "", verdict])


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


def _machine(metrics: Sequence[Metrics], info: BackendInfo) -> list[str]:
    machine = f"{info.num_devices} x {info.device}, {info.dtype}, {info.num_parameters / 1e6:.4g} M parameters"
    reasons = {str(step["perf/mfu/actor/reason"]) for step in metrics if step.get("perf/mfu/actor/reason")}
    return [f"{machine}; {peak_words(info)}", *(f"MFU n/a: {r}" for r in sorted(reasons) if info.peak_flops)]


def _json(metrics: Sequence[Metrics], checks: Sequence[Check], info: BackendInfo) -> str:
    machine = {
        "device": info.device,
        "num_devices": info.num_devices,
        "dtype": info.dtype,
        "num_parameters": info.num_parameters,
        "peak_flops": info.peak_flops,
        "peak_source": info.peak_source,
    }
    return json.dumps(
        {
            "passed": passed(checks),
            "checks": [{"name": c.name, "holds": c.holds, "reason": c.reason} for c in checks],
            "machine": machine,
            "steps": [strict(step) for step in metrics],
        },
        indent=2,
        allow_nan=False,
    )
