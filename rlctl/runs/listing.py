"""`rlctl runs list`: one row a run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rlctl.runs.finding import moved_at
from rlctl.runs.lines import number
from rlctl.runs.reading import Run
from rlctl.runs.tables import Style, aligned, as_csv, as_json, markdown

Key = Literal["time", "name", "state", "steps", "score", "evaluation", "duration", "size"]

WINDOW = 5
"""Last steps whose mean is the score a run came to: one step's is noise."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the list says of a run. Scores are means over a step's completions, the last over the last steps."""

    name: str
    state: str
    steps: int
    total_steps: int | None
    first_score: float | None
    last_score: float | None
    evaluation: float | None
    evaluation_metric: str | None
    evaluation_step: int | None
    seconds: float
    size_bytes: int
    changed: float
    """When it last wrote, in seconds since 1970."""
    complaints: int


def scores_of(run: Run) -> tuple[list[float], list[float]]:
    """(the score of each step that has one, the last of them, whose mean is what the run came to)."""
    scores = [value for record in run.steps if (value := number(record.get("score/mean"))) is not None]
    return scores, scores[-min(WINDOW, max(1, len(scores) - 1)) :]


def over_last(scores: Sequence[float]) -> str:
    return f"mean of the last {len(scores)} steps" if len(scores) > 1 else "last step"


def row_of(run: Run) -> Row:
    scores, last = scores_of(run)
    metric, value, step = last_evaluation(run)
    return Row(
        run.name, run.state.kind, run.done, run.total_steps,
        scores[0] if scores else None, sum(last) / len(last) if last else None,
        value, metric, step, run.seconds, run.size_bytes, moved_at(run.folder), len(run.complaints),
    )  # fmt: skip


def last_evaluation(run: Run) -> tuple[str | None, float | None, int | None]:
    """(name, value, step) of the first accuracy of the last evaluation; of any core metric where there is none."""
    for record in reversed(run.evaluations):
        core = [name for name in record if name.startswith("val-core/") and number(record[name]) is not None]
        core.sort(key=lambda name: not re.search(r"/acc/mean@\d+$", name))
        if core:
            return core[0], number(record[core[0]]), int(record["training/global_step"])
    return None, None, None


KEYS: dict[Key, Callable[[Row], float | str | None]] = {
    "time": lambda row: row.changed,
    "name": lambda row: row.name,
    "state": lambda row: row.state,
    "steps": lambda row: row.steps,
    "score": lambda row: row.last_score,
    "evaluation": lambda row: row.evaluation,
    "duration": lambda row: row.seconds,
    "size": lambda row: row.size_bytes,
}


def ordered(rows: Sequence[Row], *, by: Key, reverse: bool) -> list[Row]:
    """By rising value, with `reverse` by falling; runs without one come last either way."""
    known = [row for row in rows if KEYS[by](row) is not None]
    known.sort(key=lambda row: (KEYS[by](row), row.name), reverse=reverse)
    return known + [row for row in rows if KEYS[by](row) is None]


HEADINGS = ("run", "state", "steps", "score", "evaluation", "time", "size", "last write")


def render(rows: Sequence[Row], *, style: Style) -> str:
    if style == "json":
        return as_json([asdict(row) for row in rows])
    if style == "csv":
        names = list(Row.__dataclass_fields__)
        return as_csv([names, *([getattr(row, name) for name in names] for row in rows)])
    table = [HEADINGS, *map(cells, rows)]
    return "\n".join(markdown(table, left=2) if style == "markdown" else aligned(table, left=2))


def cells(row: Row) -> list[str]:
    total = "?" if row.total_steps is None else f"{row.total_steps:,}"
    score = "n/a" if row.first_score is None else f"{row.first_score:.3f} -> {row.last_score:.3f}"
    evaluation = "n/a" if row.evaluation is None else f"{row.evaluation:.3f} @{row.evaluation_step}"
    state = row.state + (" (damaged)" if row.complaints else "")
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.changed))
    steps = f"{row.steps:,}/{total}"
    return [row.name, state, steps, score, evaluation, duration(row.seconds), size(row.size_bytes), when]


def duration(seconds: float) -> str:
    """`8.2 s`, `4 min 10 s`, `3 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def size(num_bytes: int) -> str:
    """In units of 1,000, as disks are sold."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"
