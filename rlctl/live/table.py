"""The last steps as a table; on a narrow terminal the less important columns go."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from rlctl.display import COLUMNS, Column
from rlctl.live.lines import DIM, line
from rlctl.live.state import Metrics

EXPENDABLE = ("entropy", "length", "TFLOP/s", "tok/s", "loss", "MFU", "grad norm", "s", "signal")
"""Headings in the order in which they go; some have their own block besides."""

MOST_ROWS = 40
"""Steps that are shown at most, and looked at for the width of their figures."""

GAP, NARROWEST = 2, 6


def table_lines(history: Sequence[Metrics], width: int, height: int) -> list[Text]:
    """The heading and the last `height - 1` steps, the newest below."""
    columns = fitting_columns(history, width)
    sizes = [_cells(column, history) for column in columns]
    rows = history[-(height - 1) :] if height > 1 else []

    def joined(texts: Sequence[str]) -> str:
        return (" " * GAP).join(text.rjust(size) for text, size in zip(texts, sizes, strict=True))[:width]

    heading = line((joined([column.heading for column in columns]), "bold"))
    styles = [DIM] * (len(rows) - 1) + [""]
    return [
        heading,
        *(line((joined([c.text(row) for c in columns]), style)) for row, style in zip(rows, styles, strict=False)),
    ]


def fitting_columns(history: Sequence[Metrics], width: int) -> list[Column]:
    """As many columns as fit, dropping the least important first."""
    sizes = {column.heading: _cells(column, history) for column in COLUMNS}
    columns = list(COLUMNS)
    for heading in EXPENDABLE:
        if sum(sizes[column.heading] + GAP for column in columns) - GAP <= width:
            break
        columns = [column for column in columns if column.heading != heading]
    return columns


def whole_width(history: Sequence[Metrics]) -> int:
    """Cells of the table with all its columns."""
    return sum(_cells(column, history) + GAP for column in COLUMNS) - GAP


def _cells(column: Column, history: Sequence[Metrics]) -> int:
    """By what the last steps have, shown or not, so that a table does not change its shape with its height."""
    return max([len(column.heading), NARROWEST, *(len(column.text(row)) for row in history[-MOST_ROWS:])])
