"""What the reward `sql` gives for telling answers: the rules, as a table that is graded when it is shown."""

from __future__ import annotations

import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rlctl.rewards.sql.reward import sql
from rlctl.types import Problem

TABLE = "t(n, s) = (1, 'x'), (2, 'y')"
_STATEMENTS = ("CREATE TABLE t(n, s)", "INSERT INTO t VALUES (1, 'x'), (2, 'y')")


@dataclass(frozen=True, slots=True)
class Example:
    """A gold query, a completion, its scores by both comparisons, and the rule it shows."""

    gold: str
    completion: str
    bird: float
    strict: float
    rule: str


def _fenced(sql: str, *, tag: str = "sql") -> str:
    return f"```{tag}\n{sql}\n```"


EXAMPLES = (
    Example("SELECT n FROM t", _fenced("SELECT n FROM t"), 1.0, 1.0, "the same rows"),
    Example("SELECT n FROM t", _fenced("SELECT n FROM t", tag="SQLite"), 1.0, 1.0, "any case; sql, sqlite or no tag"),
    Example("SELECT n FROM t", _fenced("SELECT s FROM t"), 0.1, 0.1, "it executes"),
    Example("SELECT n FROM t", _fenced("SELECT x FROM t"), 0.0, 0.0, "it does not"),
    Example("SELECT n FROM t", f"<think>?</think>{_fenced('SELECT x')}", 0.1, 0.1, "but the answer is well formed"),
    Example("SELECT n FROM t", "SELECT n FROM t", 0.0, 0.0, "no fence, no query; see reward.sql.accept"),
    Example("SELECT n FROM t ORDER BY n", _fenced("SELECT n FROM t ORDER BY n DESC"), 1.0, 0.1, "order, if gold's has"),
    Example("SELECT 1 FROM t", _fenced("SELECT 1"), 1.0, 0.1, "repeated rows"),
    Example("SELECT n, s FROM t", _fenced("SELECT s, n FROM t"), 0.1, 0.1, "columns in their order"),
    Example("SELECT 1", _fenced("SELECT 1.0"), 1.0, 1.0, "1 is 1.0"),
    Example("SELECT 1", _fenced("SELECT '1'"), 0.1, 0.1, "and is not text"),
    Example("SELECT 0.3", _fenced("SELECT 0.1 + 0.2"), 0.1, 0.1, "exactly, unless reward.sql.float_tolerance"),
    Example("SELECT n FROM t", _fenced("SELECT n FROM t; SELECT n FROM t"), 0.0, 0.0, "one statement"),
    Example("SELECT n FROM t", _fenced("DELETE FROM t"), 0.0, 0.0, "that only reads"),
)


def graded() -> list[tuple[float, float]]:
    """The scores of the examples, by `bird` and by `strict`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "example.sqlite"
        connection = sqlite3.connect(path)
        for statement in _STATEMENTS:
            connection.execute(statement)
        connection.commit()
        connection.close()
        rules = [
            sql(comparison="bird", timeout_s=5),
            sql(comparison="strict", timeout_s=5),
        ]
        scores = []
        for example in EXAMPLES:
            problem = Problem("example", "", example.gold, extra={"database": str(path)})
            bird, strict = (rule(problem, example.completion).score for rule in rules)
            scores.append((bird, strict))
        return scores
