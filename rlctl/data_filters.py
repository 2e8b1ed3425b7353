"""Which rows of a source are taken: by the value of a column, by a pattern, once only, and at most so many.

`data.where` and `data.match` look at a row as its file has it, before anything else is asked of it, so a row that is
not wanted may lack an answer. What is a duplicate is decided by the question alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from rlctl.data_files import MISSING, Fault, Keeps, Row, cell
from rlctl.types import Problem


def row_filter(where: Mapping[str, object], match: Mapping[str, str]) -> Keeps | None:
    """What `where` and `match` ask of a row; None when they ask nothing."""
    if not where and not match:
        return None
    allowed = {column: _as_texts(wanted) for column, wanted in where.items()}
    patterns = {column: re.compile(pattern) for column, pattern in match.items()}

    def keeps(row: Row) -> bool | Fault:
        values = {column: cell(row, column) for column in (*allowed, *patterns)}
        for column, value in values.items():
            if value is MISSING:
                return Fault(row.line, f"no column {column!r}, which data.where or data.match asks for")
        return all(_compared(values[column]) in texts for column, texts in allowed.items()) and all(
            pattern.search(as_text(values[column])) for column, pattern in patterns.items()
        )

    return keeps


def _as_texts(wanted: object) -> frozenset[str]:
    return frozenset(map(_compared, wanted if isinstance(wanted, list) else [wanted]))


def _compared(value: object) -> str:
    """`as_text`, and what a CSV file makes of 5 and true in a column with gaps: "5.0" and "True"."""
    text = as_text(value)
    if text in ("True", "False"):
        return text.lower()
    return text.partition(".")[0] if _WHOLE.fullmatch(text) else text


_WHOLE = re.compile(r"-?[0-9]+\.0+")


def as_text(value: object) -> str:
    """A cell as patterns see it: 5, 5.0 and "5" are the same, and so are true and "true"; null is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def without_duplicates(problems: Iterable[Problem]) -> list[Problem]:
    """Each question once, where it comes first."""
    seen: dict[str, Problem] = {}
    for problem in problems:
        seen.setdefault(identity(problem), problem)
    return list(seen.values())


def identity(problem: Problem) -> str:
    """What makes two problems the same: the normalised question and, for text-to-SQL, its database and evidence."""
    about = [str(problem.extra[key]) for key in ("database", "evidence") if key in problem.extra]
    return "\n".join([normalised(problem.question), *about])


def normalised(text: str) -> str:
    """A question without letter case, spacing, and the forms that Unicode calls compatible."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def overlapping(train: Sequence[Problem], evaluation: Sequence[Problem]) -> list[Problem]:
    """The evaluation problems whose question, normalised, is trained on too."""
    trained_on = {identity(problem) for problem in train}
    return [problem for problem in evaluation if identity(problem) in trained_on]
