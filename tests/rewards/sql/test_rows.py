"""When two results are the same."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import pytest

from rlctl.rewards.sql.rows import Cell, Comparison, Row, decode, encode, same_rows, tied_blocks

NAN = float("nan")


def same(found: Any, gold: Any, comparison: Comparison = "bird", **options: Any) -> bool:
    return same_rows(found, gold, comparison=comparison, **options)


@pytest.mark.parametrize(
    ("found", "gold", "bird", "strict"),
    [
        ([(1,), (2,)], [(2,), (1,)], True, True),
        ([(1,), (1,)], [(1,)], True, False),
        ([(1, 2)], [(2, 1)], False, False),
        ([(1, 2, 1)], [(1, 2)], False, False),
        ([(1, 2), (2, 1)], [(1, 2), (1, 2)], False, False),
        ([(1,)], [(1.0,)], True, True),
        ([(1,)], [("1",)], False, False),
        ([(2,)], [(2.5,)], False, False),
        ([(0.999,)], [(1.0,)], False, False),
        ([(None,), (1.5,), ("a",)], [("a",), (None,), (1.5,)], True, True),
        ([(None,)], [(0,)], False, False),
        ([(NAN,)], [(NAN,)], True, True),
        ([(float("nan"),)], [(float("nan"),)], True, True),
        ([(b"a",)], [(b"a",)], True, True),
        ([(b"a",)], [("a",)], False, False),
        ([("\udcff",)], [("\udcff",)], True, True),
        ([("\udcff",)], [("\udcfe",)], False, False),
        ([("a ",)], [("a",)], False, False),
        ([(2**62,)], [(2**62 + 1,)], False, False),
        ([], [], True, True),
        ([], [(None,)], False, False),
    ],
)
def test_results_compare_as_sets_or_as_multisets(found: list[Row], gold: list[Row], bird: bool, strict: bool) -> None:
    assert same(found, gold, "bird") is same(gold, found, "bird") is bird
    assert same(found, gold, "strict") is same(gold, found, "strict") is strict


@pytest.mark.parametrize("comparison", ["bird", "strict"])
@pytest.mark.parametrize(
    ("a", "b", "close"),
    [
        (0.1 + 0.2, 0.3, True),
        (0.999, 1.0, False),
        (1, 1.0000001, True),
        (2, 2.5, False),
        (1, "1", False),
        (math.inf, 1e300, False),
        (math.inf, math.inf, True),
        (0.0, 1e-300, False),
        (1000000, 1000001, False),
        (NAN, 1.0, False),
    ],
)
def test_a_tolerance_is_relative_and_between_floats(comparison: Comparison, a: Cell, b: Cell, close: bool) -> None:
    assert same([(a, "x")], [(b, "x")], comparison, tolerance=1e-6) is close
    assert same([(b, "x")], [(a, "x")], comparison, tolerance=1e-6) is close


def test_without_a_tolerance_sums_compare_exactly() -> None:
    assert not same([(0.1 + 0.2,)], [(0.3,)])


def test_close_rows_are_paired_one_to_one() -> None:
    # 1.0 is close to both golds, 1.4 to the first only: a greedy choice of the first for 1.0 would fail.
    assert same([(1.0,), (1.4,)], [(1.2,), (0.9,)], "strict", tolerance=0.2)
    assert same([(1.4,), (1.0,)], [(1.2,), (0.9,)], "strict", tolerance=0.2)
    assert not same([(1.0,), (1.0,)], [(1.1,), (5.0,)], "strict", tolerance=0.2)


def test_an_ordered_result_may_differ_within_ties_only() -> None:
    gold: list[Row] = [("a", 3), ("b", 2), ("c", 2), ("d", 1)]
    right = {order for order in permutations(gold) if [row[1] for row in order] == [3, 2, 2, 1]}
    assert len(right) == 2
    for order in permutations(gold):
        assert same(order, gold, "strict", blocks=[1, 2, 1]) is (order in right)
        assert same(order, gold, "bird", blocks=[1, 2, 1])


def test_tied_runs_end_where_both_orders_have_shown_the_same_rows() -> None:
    a, b, c, d = ("a",), ("b",), ("c",), ("d",)
    assert tied_blocks([a, b, c, d], [a, c, b, d]) == [1, 2, 1]
    assert tied_blocks([a, b, c], [c, b, a]) == [3]
    assert tied_blocks([a, a, b], [a, a, b]) == [1, 1, 1]
    assert tied_blocks([], []) == []
    assert tied_blocks([a, b], [a, c]) is None


def test_rows_travel_unchanged() -> None:
    rows: list[Row] = [(None, 1, 2.5, "é\u2028\udcff", b"\x00\xff", math.inf, -(2**63)), ()]
    assert decode(encode(rows)) == rows
    assert math.isnan(decode(encode([(NAN,)]))[0][0])  # type: ignore[arg-type]
