"""Rows of cells as an aligned table, Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rlctl.runs.printable import printable

Style = Literal["table", "json", "markdown", "csv"]


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """The rows in columns; the first `left` to the left, the others, which are numbers, to the right."""
    safe = [[printable(cell, one_line=True) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in safe
    ]


def markdown(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """The same for a pull request; a cell can neither end its column nor be read as HTML."""
    heading, *others = [[_cell(cell) for cell in row] for row in rows]
    rule = ["---" if place < left else "---:" for place in range(len(heading))]
    return [f"| {' | '.join(heading)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in others)]


def _cell(text: str) -> str:
    safe = printable(text, one_line=True).replace("&", "&amp;").replace("<", "&lt;")
    return safe.replace("|", "\\|").replace("`", "\\`")


def as_csv(rows: Sequence[Sequence[object]]) -> str:
    """RFC 4180 but for plain line ends; None is an empty cell.

    Names and texts are other people's: a spreadsheet reads one that begins like a formula as a formula, and runs it, so
    such a text gets a quote before it. Source: https://owasp.org/www-community/attacks/CSV_Injection.
    """
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([[_inert(cell) for cell in row] for row in rows])
    return stream.getvalue().removesuffix("\n").encode("utf-8", "backslashreplace").decode()


def _inert(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    safe = printable(cell, one_line=True)
    return f"'{safe}" if safe.lstrip().startswith(("=", "+", "-", "@")) else safe


def as_json(value: Sequence[Any] | Mapping[str, Any]) -> str:
    """Strict JSON, in ASCII, which any terminal and any pipe takes. Numbers that are not finite are None before."""
    return json.dumps(value, indent=2, allow_nan=False)
