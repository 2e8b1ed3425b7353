"""`rlctl runs export`: all steps with all metrics, for a spreadsheet or a data frame."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rlctl.runfiles import STEP
from rlctl.runs.reading import Run
from rlctl.runs.samples import clean
from rlctl.runs.tables import as_csv

FIRST = (STEP, "training/epoch")
"""Columns before the others, which follow by name."""


def columns(run: Run, names: Sequence[str] | None) -> list[str]:
    """The columns: the step, the epoch, then every metric by its name, so that they do not hang on what came first."""
    if names is not None:
        return [STEP, *names]
    others = sorted({name for record in run.records for name in record} - set(FIRST))
    return [*FIRST, *others]


def to_csv(run: Run, names: Sequence[str] | None) -> str:
    """What is not known, and what was not finite, is an empty cell."""
    wanted = columns(run, names)
    return as_csv([wanted, *([_cell(record.get(name)) for name in wanted] for record in run.records)])


def _cell(value: object) -> object:
    value = clean(value)
    if isinstance(value, list):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict | bool) else value


def to_jsonl(run: Run, names: Sequence[str] | None) -> str:
    wanted = columns(run, names)
    rows = ({name: clean(record.get(name)) for name in wanted} for record in run.records)
    return "\n".join(json.dumps(row, allow_nan=False) for row in rows)
