"""Find the query in a completion: the last closed SQL fence after the last `</think>`.

The rule is narrow on purpose, since what it accepts is what a policy learns to write; `accept` widens it by name.
A fence is a line of three or more backticks or tildes, at any indentation, whose only other text is the tag `sql` or
`sqlite` in any case, or nothing; it is closed by a line of at least as many of them. No query is ever made up.
The text is read once, line by line: 1 MB takes milliseconds whatever is in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Acceptance = Literal[
    "first-fence", "unclosed-fence", "one-line-fence", "inline-code", "json-fence", "missing-think-close", "bare-select"
]
ACCEPTANCES: tuple[Acceptance, ...] = get_args(Acceptance)

OPEN, CLOSE = "<think>", "</think>"
SQL_TAGS = frozenset({"", "sql", "sqlite"})


@dataclass(frozen=True, slots=True)
class Extraction:
    """The query of a completion, None when it has none; `why` says what was missing."""

    sql: str | None
    format_correct: bool
    """A query, and exactly one `<think>` with exactly one `</think>` after it."""
    form: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block: tag in lower case, text between the fences, and whether it was closed."""

    tag: str
    text: str
    closed: bool


def extract_sql(completion: str, *, accept: Iterable[Acceptance] = ()) -> Extraction:
    """The query that a completion answers with, by the rule above and what `accept` adds to it."""
    accepted = frozenset(accept)
    answer = _after_thinking(completion, accepted)
    if answer is None:
        return Extraction(None, format_correct=False, why="the thinking is never closed")
    for form, sql in _candidates(answer, accepted):
        if sql.strip():
            return Extraction(sql.strip(), format_correct=_thinks_once(completion), form=form)
    return Extraction(None, format_correct=False, why=_why_none(answer))


def _after_thinking(completion: str, accepted: frozenset[Acceptance]) -> str | None:
    """What follows the last `</think>`; all of it where there is no thinking, None inside unfinished thinking."""
    _, close, after = completion.rpartition(CLOSE)
    if close:
        return after
    return None if OPEN in completion and "missing-think-close" not in accepted else completion


def _thinks_once(completion: str) -> bool:
    once = completion.count(OPEN) == 1 and completion.count(CLOSE) == 1
    return once and completion.index(OPEN) < completion.index(CLOSE)


def _candidates(answer: str, accepted: frozenset[Acceptance]) -> Iterator[tuple[str, str]]:
    """(form, text) of what may be the query, best first."""
    fences = list(_fences(answer))
    if "unclosed-fence" in accepted and fences and not fences[-1].closed and fences[-1].tag in SQL_TAGS:
        yield "unclosed fence", fences[-1].text
    closed = [fence for fence in fences if fence.closed and fence.tag in SQL_TAGS]
    ordered = closed if "first-fence" in accepted else reversed(closed)
    yield from (("fence", fence.text) for fence in ordered)
    if "one-line-fence" in accepted:
        yield from (("one-line fence", text) for text in reversed(_ONE_LINE.findall(answer)))
    if "json-fence" in accepted:
        yield from (("json fence", _sql_in_json(fence.text)) for fence in reversed(fences) if fence.tag == "json")
    if "inline-code" in accepted:
        yield from (("inline code", text) for text in reversed(_INLINE.findall(answer)) if _begins_query(text))
    if "bare-select" in accepted:
        yield from (("bare query", text) for text in _paragraphs(answer) if _begins_query(text))


# No two repetitions that match the same characters stand side by side: that would be quadratic on a long line.
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})([^`]*)")
_ONE_LINE = re.compile(r"```[ \t]*(?:sql|sqlite)[ \t]([^`\n]+)```", re.IGNORECASE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def _fences(text: str) -> Iterator[Fence]:
    """All fenced blocks in order; one left open at the end comes last, not closed."""
    opening: str | None = None
    tag, indent = "", ""
    lines: list[str] = []
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line.removesuffix("\r"))
        if match is None:
            lines.append(line.removeprefix(indent))
            continue
        margin, marks, info = match[1], match[2], match[3].strip().lower()
        if opening is not None and not info and marks.startswith(opening):
            yield Fence(tag, "\n".join(lines), closed=True)
            opening = None
        elif opening is None or (info and marks[0] == opening[0]):
            # A fence with a tag inside an open one: the model forgot to close, and began again.
            opening, tag, indent, lines = marks, info, margin, []
        else:
            lines.append(line)
    if opening is not None:
        yield Fence(tag, "\n".join(lines), closed=False)


def _sql_in_json(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    found = value.get("sql") if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def _begins_query(text: str) -> bool:
    return text.lstrip()[:6].upper() in ("SELECT", "VALUES") or text.lstrip()[:5].upper() == "WITH "


def _paragraphs(text: str) -> list[str]:
    return re.split(r"\n[ \t\r]*\n", text.strip())


def _why_none(answer: str) -> str:
    fences = list(_fences(answer))
    if not fences:
        return "no SQL fence"
    if not fences[-1].closed:
        return "the last fence is never closed"
    return "the SQL fence is empty" if fences[-1].tag in SQL_TAGS else f"no SQL fence, but one tagged {fences[-1].tag}"
