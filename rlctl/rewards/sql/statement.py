"""What a query's text says without executing it: whether its outermost SELECT is ordered, and how to break its ties.

In SQLite every ORDER BY or LIMIT that is not the outermost one stands in parentheses (sub-queries, CTEs, windows,
aggregates), so it is enough to know strings, quoted names and comments, and to count parentheses: no parser is needed.
Source of the token rules: https://www.sqlite.org/lang_keywords.html and https://www.sqlite.org/lang_comment.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
      (?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))
    | (?P<quoted>'[^']*(?:''[^']*)*'?|"[^"]*(?:""[^"]*)*"?|`[^`]*(?:``[^`]*)*`?|\[[^\]]*\]?)
    | (?P<word>[^\W\d][\w$]*)
    | (?P<other>\S)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Outline:
    """Where the outermost query's clauses begin, as positions in its text; None where it has no such clause."""

    order_by: int | None
    limit: int | None
    end: int
    """Just after the last token that is neither a comment nor a closing semicolon."""


def outline(sql: str) -> Outline:
    order_by = limit = None
    end, previous, previous_start = 0, "", 0
    for word, start, stop in _outermost_words(sql):
        if word == "BY" and previous == "ORDER":
            order_by = previous_start
        if word == "LIMIT":
            limit = start
        end, previous, previous_start = stop, word, start
    return Outline(order_by, limit, end)


def is_ordered(sql: str) -> bool:
    """Whether the outermost query has an ORDER BY: one within a sub-query, a window or a string does not count."""
    return outline(sql).order_by is not None


def tie_broken(sql: str, *, num_columns: int, direction: str) -> str | None:
    """The query with rows that its ORDER BY leaves tied put in the order of its columns, ASC or DESC.

    None where that changes nothing: without ORDER BY and without LIMIT.
    """
    found = outline(sql)
    if found.order_by is None and found.limit is None:
        return None
    at = found.end if found.limit is None else found.limit
    # BINARY, since a column's own collation may leave different texts tied.
    columns = ", ".join(f"{number} COLLATE BINARY {direction}" for number in range(1, num_columns + 1))
    joint = "ORDER BY" if found.order_by is None else ","
    return f"{sql[:at]}\n{joint} {columns}\n{sql[at : found.end]}"


def inner_ties_broken(sql: str, *, direction: str) -> str | None:
    """The query with what the ORDER BY of a sub-query with a LIMIT leaves tied put in the order of its first column.

    None where there is no such sub-query. Rows that agree in the first column stay tied: how many it has is not known.
    """
    at = _inner_limits(sql)
    for position in reversed(at):
        sql = f"{sql[:position]}, 1 COLLATE BINARY {direction}\n{sql[position:]}"
    return sql if at else None


def _inner_limits(sql: str) -> list[int]:
    """Where the LIMIT of each ordered sub-query begins. Windows and aggregates have an ORDER BY too, but no LIMIT."""
    at: list[int] = []
    ordered: list[bool] = []
    previous = ""
    for match in _TOKEN.finditer(sql):
        if match["comment"] is not None:
            continue
        word = match[0].upper()
        if word == "(":
            ordered.append(False)
        elif word == ")" and ordered:
            ordered.pop()
        elif ordered and word == "BY" and previous == "ORDER":
            ordered[-1] = True
        elif ordered and word == "LIMIT" and ordered[-1]:
            at.append(match.start())
        previous = word
    return at


def _outermost_words(sql: str) -> Iterator[tuple[str, int, int]]:
    """(token, start, end) outside of parentheses: words in upper case, anything else as it is; no comment, no `;`."""
    depth = 0
    for match in _TOKEN.finditer(sql):
        if match["comment"] is not None or match["other"] == ";":
            continue
        depth -= match["other"] == ")"
        if depth <= 0:
            word = match["word"]
            yield word.upper() if word is not None else match[0], match.start(), match.end()
        depth += match["other"] == "("
