"""Rows of a result: as JSON and back, and whether two results are the same.

A cell is None, int, float, str or bytes. As in Python, 1 equals 1.0, and neither equals "1"; NULL equals NULL, and
text that is not UTF-8 equals itself (it travels as lone surrogates). Standard library only: workers import it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal

Cell = None | int | float | str | bytes
Row = tuple[Cell, ...]
Comparison = Literal["bird", "strict"]

MAX_MATCHED = 500
"""Rows that differ within the tolerance and are matched one by one; beyond that the results count as different."""


def encode(rows: Iterable[Row]) -> str:
    return json.dumps(list(rows), default=lambda blob: {"hex": blob.hex()}, separators=(",", ":"))


def decode(text: str) -> list[Row]:
    """Raises ValueError when the text is not what `encode` wrote."""
    rows = json.loads(text)
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError("not a list of rows")
    return [tuple(bytes.fromhex(cell["hex"]) if isinstance(cell, dict) else cell for cell in row) for row in rows]


def same_rows(
    found: Sequence[Row],
    gold: Sequence[Row],
    *,
    comparison: Comparison,
    blocks: Sequence[int] | None = None,
    tolerance: float = 0.0,
) -> bool:
    """Whether two results are the same.

    `bird` compares sets of rows: neither order nor repetition matters. `strict` compares multisets; with `blocks`,
    the sizes of gold's runs of rows that its ORDER BY leaves tied, in their order, within a run in any. Columns have
    their order in both. `tolerance` is relative and between numbers of which one is a float; 0 compares exactly.
    """
    found, gold = [_key(row) for row in found], [_key(row) for row in gold]
    if comparison == "bird":
        return _same_sets(found, gold, tolerance)
    if len(found) != len(gold):
        return False
    start = 0
    for size in [len(gold)] if blocks is None else blocks:
        if not _same_multisets(found[start : start + size], gold[start : start + size], tolerance):
            return False
        start += size
    return start == len(gold)


def tied_blocks(forwards: Sequence[Row], backwards: Sequence[Row]) -> list[int] | None:
    """Sizes of the runs of tied rows of an ordered query, from its rows with unordered scans run both ways.

    A run ends where both results have shown the same rows so far. None when they are not the same rows at all: then
    the query does not say which rows it wants.
    """
    if Counter(map(_key, forwards)) != Counter(map(_key, backwards)):
        return None
    sizes, open_rows, size = [], Counter[Hashable](), 0
    for one, other in zip(map(_key, forwards), map(_key, backwards), strict=True):
        size += 1
        for row, change in ((one, 1), (other, -1)):
            open_rows[row] += change
            if not open_rows[row]:
                del open_rows[row]
        if not open_rows:
            sizes.append(size)
            size = 0
    return sizes


def _key(row: Row) -> Row:
    """The row with one NaN for every NaN, which would equal nothing."""
    return tuple(_NAN if cell != cell else cell for cell in row)


_NAN = float("nan")  # one object: a tuple finds it equal by identity


def _same_sets(found: Sequence[Row], gold: Sequence[Row], tolerance: float) -> bool:
    mine, theirs = set(found), set(gold)
    if mine == theirs or not tolerance:
        return mine == theirs
    return _all_have_partner(mine - theirs, theirs, tolerance) and _all_have_partner(theirs - mine, mine, tolerance)


def _all_have_partner(rows: set[Row], others: set[Row], tolerance: float) -> bool:
    return len(rows) <= MAX_MATCHED and all(_partners(list(rows), list(others), tolerance))


def _same_multisets(found: Sequence[Row], gold: Sequence[Row], tolerance: float) -> bool:
    mine, theirs = Counter(found), Counter(gold)
    if mine == theirs or not tolerance:
        return mine == theirs
    left, right = list((mine - theirs).elements()), list((theirs - mine).elements())
    return len(left) == len(right) <= MAX_MATCHED and _matching(_partners(left, right, tolerance))


def _partners(rows: Sequence[Row], others: Sequence[Row], tolerance: float) -> list[list[int]]:
    """For each row the positions of those others that are within the tolerance."""
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for position, other in enumerate(others):
        alike[_shape(other)].append(position)
    return [[at for at in alike.get(_shape(row), ()) if _close(row, others[at], tolerance)] for row in rows]


def _shape(row: Row) -> tuple[object, ...]:
    """What two rows must share exactly to be close: all cells that are no numbers."""
    return tuple("number" if isinstance(cell, int | float) else (type(cell).__name__, cell) for cell in row)


def _close(row: Row, other: Row, tolerance: float) -> bool:
    return all(a == b or a is b or _near(a, b, tolerance) for a, b in zip(row, other, strict=True))


def _near(a: Cell, b: Cell, tolerance: float) -> bool:
    if not (isinstance(a, float) or isinstance(b, float)):
        return False
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        return False
    return abs(a - b) <= tolerance * max(abs(a), abs(b)) < float("inf")


def _matching(partners: Sequence[Sequence[int]]) -> bool:
    """Whether each row can have a partner of its own: closeness is no equivalence, so a greedy choice may be wrong."""
    taken: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for partner in partners[row]:
            if partner not in seen:
                seen.add(partner)
                if partner not in taken or place(taken[partner], seen):
                    taken[partner] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(partners)))
