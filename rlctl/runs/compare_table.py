"""A comparison of runs as text, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rlctl.runfiles import STEP
from rlctl.runs import listing
from rlctl.runs.comparing import ALGORITHM, Comparison, Difference
from rlctl.runs.lines import number
from rlctl.runs.printable import printable, shortened
from rlctl.runs.tables import aligned, as_json, markdown

MOST_CHARACTERS = 48
"""Of a value in a table of text; JSON has all of it."""


def render(found: Comparison, *, style: str) -> str:
    if style == "json":
        return as_json(_record(found))
    table = markdown if style == "markdown" else aligned
    lines = table([listing.HEADINGS, *(listing.cells(listing.row_of(run)) for run in found.runs)], left=2)
    lines += ["", *_settings(found, style=style)]
    for run in found.runs[1:]:
        own = [one for one in found.differences if one.run == run.name]
        lines += ["", *_metrics(own, first=found.runs[0].name, other=run.name, style=style)]
    if rows := _evaluations(found):
        lines += ["", "last evaluation that all have", *_gap(style), *table(rows)]
        lines += [*_gap(style), "whether they differ: `rlctl eval --compare A B`, which pairs them by problem", ""]
    return "\n".join([*lines, *(f"note: {printable(note, one_line=True)}" for note in found.notes)]).rstrip()


def _gap(style: str) -> list[str]:
    return [""] if style == "markdown" else []


def _settings(found: Comparison, *, style: str) -> list[str]:
    if unknown := [run.name for run in found.runs if not run.settings]:
        return [f"the settings of {', '.join(unknown)} are not known"]
    if not found.settings:
        return ["no setting differs"]
    names = [run.name for run in found.runs]
    rows, long = [["setting", *names]], list[str]()
    for one in found.settings:
        cells = [f"{v} ({o})" if o else v for v, o in zip(one.values, one.origins, strict=True)]
        if style == "text" and one.name == ALGORITHM:
            long = [
                "",
                *(f"{ALGORITHM} of {name}: {v or 'nothing else'}" for name, v in zip(names, cells, strict=True)),
            ]
        else:
            rows.append([one.name, *(shortened(cell, MOST_CHARACTERS) if style == "text" else cell for cell in cells)])
    table = markdown if style == "markdown" else aligned
    return ["settings that differ", *_gap(style), *table(rows, left=len(rows[0])), *long]


def _metrics(own: Sequence[Difference], *, first: str, other: str, style: str) -> list[str]:
    if not own:
        return [f"{first} and {other} have no step in common"]
    rows = [["metric", first, other, "difference", "95 % interval", "steps", f"{other} is"]]
    rows += [[*_cells(one), one.verdict] for one in own]
    table = markdown if style == "markdown" else aligned
    block = max(one.block for one in own)
    how = "bootstrap of the paired differences" + (f", {block} neighbouring steps at a time" if block > 1 else "")
    return [f"means over the common steps; {how}", *_gap(style), *table(rows)]


def _cells(one: Difference) -> list[str]:
    reach = "n/a" if one.low is None or one.high is None else f"[{one.low:+.3g}, {one.high:+.3g}]"
    return [one.metric, f"{one.first:.4g}", f"{one.other:.4g}", f"{one.difference:+.3g}", reach, f"{one.num_steps:,}"]


def _evaluations(found: Comparison) -> list[list[str]]:
    """The core metrics of the last step at which every run was evaluated."""
    by_step = [{record[STEP]: record for record in run.evaluations} for run in found.runs]
    common = set.intersection(*(set(one) for one in by_step))
    if not common:
        return []
    records = [one[max(common)] for one in by_step]
    names = [name for name in records[0] if name.startswith("val-core/") and all(name in r for r in records)]
    values = [[number(record[name]) for record in records] for name in names]
    cells = [["n/a" if value is None else f"{value:.3f}" for value in row] for row in values]
    heading = [f"step {max(common)}", *(run.name for run in found.runs)]
    return [heading, *([name, *row] for name, row in zip(names, cells, strict=True))] if names else []


def _record(found: Comparison) -> dict[str, Any]:
    return {
        "runs": [asdict(listing.row_of(run)) for run in found.runs],
        "settings": [asdict(one) for one in found.settings],
        "metrics": [{**asdict(one), "difference": one.difference, "verdict": one.verdict} for one in found.differences],
        "notes": list(found.notes),
    }
