"""What the text of a query says of its order."""

from __future__ import annotations

import time

import pytest

from rlctl.rewards.sql.statement import inner_ties_broken, is_ordered, tie_broken


@pytest.mark.parametrize(
    ("sql", "ordered"),
    [
        ("SELECT n FROM t ORDER BY n", True),
        ("select n from t order\n/* by */ -- by\n by n;", True),
        ("WITH c AS (SELECT 1 AS a ORDER BY 1) SELECT a FROM c", False),
        ("WITH c AS (SELECT 1 AS a) SELECT a FROM c ORDER BY a LIMIT 3", True),
        ("SELECT * FROM (SELECT n FROM t ORDER BY n)", False),
        ("SELECT 'ORDER BY n' FROM t", False),
        ('SELECT "ORDER BY" FROM t', False),
        ("SELECT [ORDER BY], `ORDER BY` FROM t", False),
        ("SELECT n FROM t -- ORDER BY n", False),
        ("SELECT n FROM t /* ORDER BY n", False),
        ("SELECT 'it''s' FROM t ORDER BY 1", True),
        ("SELECT rank() OVER (ORDER BY n) FROM t", False),
        ("SELECT rank() OVER w FROM t WINDOW w AS (ORDER BY n)", False),
        ("SELECT n FROM t UNION SELECT m FROM u ORDER BY 1", True),
        ("SELECT (SELECT n FROM t ORDER BY n LIMIT 1)", False),
        ("SELECT order_by FROM t", False),
        ("", False),
    ],
)
def test_only_the_outermost_order_counts(sql: str, ordered: bool) -> None:
    assert is_ordered(sql) is ordered


def test_ties_are_broken_after_the_last_term_and_before_the_limit() -> None:
    assert tie_broken("SELECT a, b FROM t ORDER BY a -- x\nLIMIT 2;", num_columns=2, direction="ASC") == (
        "SELECT a, b FROM t ORDER BY a -- x\n\n, 1 COLLATE BINARY ASC, 2 COLLATE BINARY ASC\nLIMIT 2"
    )
    assert tie_broken("SELECT a FROM t LIMIT 2", num_columns=1, direction="DESC") == (
        "SELECT a FROM t \nORDER BY 1 COLLATE BINARY DESC\nLIMIT 2"
    )
    assert tie_broken("SELECT a FROM t ORDER BY a; -- done", num_columns=1, direction="ASC") == (
        "SELECT a FROM t ORDER BY a\n, 1 COLLATE BINARY ASC\n"
    )
    assert tie_broken("SELECT a FROM (SELECT a FROM t LIMIT 2)", num_columns=1, direction="ASC") is None


@pytest.mark.parametrize("piece", ["(", "'", '"', "[", "/*", "-- ", "a ", "''", ";", "ORDER "])
def test_a_megabyte_is_read_in_linear_time(piece: str) -> None:
    start = time.process_time()
    is_ordered(piece * (1_000_000 // len(piece)))
    assert time.process_time() - start < 5


def test_ties_of_sub_queries_are_broken_only_where_a_limit_cuts_them() -> None:
    assert inner_ties_broken("SELECT (SELECT a FROM t ORDER BY b LIMIT 1) ORDER BY 1", direction="DESC") == (
        "SELECT (SELECT a FROM t ORDER BY b , 1 COLLATE BINARY DESC\nLIMIT 1) ORDER BY 1"
    )
    assert inner_ties_broken("SELECT a FROM t ORDER BY b LIMIT 1", direction="ASC") is None
    assert inner_ties_broken("SELECT sum(a) OVER (ORDER BY b) FROM (SELECT a FROM t LIMIT 1)", direction="ASC") is None
    assert inner_ties_broken("SELECT '(ORDER BY b LIMIT 1)' /* (ORDER BY b LIMIT */", direction="ASC") is None
