"""Lines as a table of at most the terminal's width, as JSON, or as a table in markdown."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from rlctl import __version__
from rlctl.doctor.lines import Line, exit_code
from rlctl.printable import one_line


def table(lines: Sequence[Line], *, width: int) -> str:
    """`status  name  found`, with the cure below; what is too long goes on underneath its own column."""
    names = max((len(line.name) for line in lines), default=0)
    indent = 6 + names + 2
    rows = []
    for line in lines:
        rows += _wrapped(f"{line.status:<4}  {line.name:<{names}}  ", line.found, width=width, indent=indent)
        for label, text in (("cure: ", line.cure), ("see: ", line.source)):
            if text:
                rows += _wrapped(" " * indent + label, text, width=width, indent=indent + len(label))
    return "\n".join([*rows, summary(lines)])


def _wrapped(begin: str, text: str, *, width: int, indent: int) -> list[str]:
    indent = min(indent, width // 2)
    wrapped = textwrap.wrap(
        one_line(text), max(width, indent + 20), initial_indent=begin, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return wrapped or [begin.rstrip()]


def summary(lines: Sequence[Line]) -> str:
    counts = Counter(line.status for line in lines)
    return f"rlctl {__version__}: {counts['ok']} ok, {counts['warn']} warn, {counts['fail']} fail"


def as_json(lines: Sequence[Line]) -> str:
    counts = Counter(line.status for line in lines)
    record = {
        "rlctl_version": __version__,
        "exit_code": exit_code(lines),
        "counts": {status: counts[status] for status in ("ok", "warn", "fail")},
        "lines": [asdict(line) for line in lines],
    }
    return json.dumps(record, indent=2, allow_nan=False)


def markdown(lines: Sequence[Line]) -> str:
    def cell(text: str) -> str:
        return one_line(text).replace("|", "\\|")

    rows = [
        f"| {line.status} | {cell(line.name)} | {cell(line.found)} | {cell(_with_source(line))} |" for line in lines
    ]
    return "\n".join(["| | check | found | cure |", "|---|---|---|---|", *rows, "", summary(lines)])


def _with_source(line: Line) -> str:
    return f"{line.cure} ({line.source})" if line.source else line.cure
