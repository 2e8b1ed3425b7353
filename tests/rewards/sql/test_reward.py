"""The reward `sql`: its scale, what stands beside the score, and how it flows to the metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rlctl.report import evaluation_metrics
from rlctl.rewards import load_rewards
from rlctl.rewards.scoring import score as score_all
from rlctl.rewards.sql.examples import EXAMPLES, graded
from rlctl.types import Completion, Problem, Prompt, Rollout
from tests.rewards.sql.helpers import database, problem, reward, score

THOUGHT = "<think>look</think>\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return database(tmp_path / "d.sqlite", "CREATE TABLE t(n, a, b)", "INSERT INTO t VALUES (1, 1, 2), (2, 3, 4)")


def block(sql: str) -> str:
    return f"```sql\n{sql}\n```"


@pytest.mark.parametrize(
    ("completion", "expected", "executes", "well_formed"),
    [
        (THOUGHT + block("SELECT n FROM t"), 1.0, 1.0, 1.0),
        (block("SELECT n FROM t"), 1.0, 1.0, 0.0),
        (THOUGHT + block("SELECT DISTINCT n FROM t"), 1.0, 1.0, 1.0),
        (THOUGHT + block("SELECT a FROM t"), 0.1, 1.0, 1.0),
        (block("SELECT a FROM t"), 0.1, 1.0, 0.0),
        (THOUGHT + block("SELECT x FROM t"), 0.1, 0.0, 1.0),
        (block("SELECT x FROM t"), 0.0, 0.0, 0.0),
        (THOUGHT + block("SELECT n FROM t; SELECT n FROM t"), 0.1, 0.0, 1.0),
        (THOUGHT + block("DELETE FROM t"), 0.1, 0.0, 1.0),
        (THOUGHT + "SELECT n FROM t", 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_the_scale_is_one_for_right_and_a_tenth_for_executing_or_form(
    path: Path, completion: str, expected: float, executes: float, well_formed: float
) -> None:
    result = reward()(problem(path, "SELECT n FROM t"), completion)
    assert result.score == expected
    assert result.extra["execution_success"] == executes
    assert result.extra["format_correct"] == well_formed
    assert result.extra["execution_accuracy"] == float(expected == 1.0)


@pytest.mark.parametrize(
    ("gold", "found", "bird", "strict"),
    [
        ("SELECT n FROM t ORDER BY n", "SELECT n FROM t ORDER BY n DESC", 1.0, 0.1),
        ("SELECT n FROM t", "SELECT n FROM t ORDER BY n DESC", 1.0, 1.0),
        ("SELECT n FROM (SELECT n FROM t ORDER BY n)", "SELECT n FROM t ORDER BY n DESC", 1.0, 1.0),
        ("SELECT n, 'ORDER BY n' FROM t", "SELECT n, 'ORDER BY n' FROM t ORDER BY n DESC", 1.0, 1.0),
        ("SELECT n FROM t", "SELECT n FROM t UNION ALL SELECT n FROM t", 1.0, 0.1),
        ("SELECT a, b FROM t", "SELECT b, a FROM t", 0.1, 0.1),
        ("SELECT a, b FROM t", "SELECT a, b, a FROM t", 0.1, 0.1),
        ("SELECT a, b FROM t", "SELECT a AS x, b FROM t", 1.0, 1.0),
        ("SELECT 5 / 2", "SELECT 2.5", 0.1, 0.1),
        ("SELECT 1", "SELECT 1.0", 1.0, 1.0),
        ("SELECT 1", "SELECT '1'", 0.1, 0.1),
        ("SELECT 0.1 + 0.2", "SELECT 0.3", 0.1, 0.1),
        ("SELECT NULL UNION SELECT 1.5 UNION SELECT 'a'", "VALUES ('a'), (NULL), (1.5)", 1.0, 1.0),
        ("SELECT x'00ff'", "SELECT x'00FF'", 1.0, 1.0),
    ],
)
def test_the_comparison_is_chosen_by_a_setting(path: Path, gold: str, found: str, bird: float, strict: float) -> None:
    assert score(reward(comparison="bird"), path, gold=gold, found=found) == bird
    assert score(reward(comparison="strict"), path, gold=gold, found=found) == strict


@pytest.mark.parametrize("comparison", ["bird", "strict"])
def test_a_tolerance_makes_sums_equal(path: Path, comparison: str) -> None:
    rule = reward(comparison=comparison, float_tolerance=1e-6)
    assert score(rule, path, gold="SELECT 0.1 + 0.2", found="SELECT 0.3") == 1.0
    assert score(rule, path, gold="SELECT 0.999", found="SELECT 1.0") == 0.1


def test_a_result_tells_how_it_was_compared(path: Path) -> None:
    assert "strict" in reward(comparison="strict")(problem(path, "SELECT 1"), block("SELECT 2")).note


def test_extras_reach_the_metrics_beside_the_score(path: Path) -> None:
    rewards = load_rewards(["sql"])
    asked = Problem("p", "?", "SELECT n FROM t", source="bird", extra={"database": str(path)})
    texts = [THOUGHT + block("SELECT n FROM t"), block("SELECT nothing"), THOUGHT + block("SELECT 1"), ""]
    scored = asyncio.run(score_all(rewards, [(asked, text) for text in texts]))
    assert [one.reward for one in scored] == [1.0, 0.0, 0.1, 0.0]
    import numpy as np

    completion = Completion(np.zeros(1, np.int32), np.zeros(1, np.float32), "stop")
    prompt = Prompt(np.zeros(1, np.int32), 0)
    groups = [
        [Rollout(asked, prompt, completion, text, one.reward, one.scores)]
        for text, one in zip(texts, scored, strict=True)
    ]
    metrics = evaluation_metrics(groups, task="sql", seconds=1.0)
    assert metrics["val-core/bird/reward/mean@1"] == pytest.approx(0.275)
    assert metrics["val-aux/bird/execution_success/mean@1"] == 0.5
    assert metrics["val-aux/bird/format_correct/mean@1"] == 0.5
    assert metrics["val-aux/bird/execution_accuracy/mean@1"] == 0.25


def test_a_problem_without_a_usable_database_is_complained_of_at_load(tmp_path: Path) -> None:
    rule = reward()
    assert "names no database" in str(rule.gold_complaint(Problem("p", "?", "SELECT 1")))
    assert "No such file" in str(rule.gold_complaint(problem(tmp_path / "absent.sqlite", "SELECT 1")))
    assert rule.gold_complaint(problem(database(tmp_path / "d.sqlite", "CREATE TABLE t(a)"), "SELECT 1")) is None


def test_the_gold_completion_gets_full_marks(path: Path) -> None:
    rule = reward()
    asked = problem(path, "SELECT n FROM t ORDER BY n")
    assert rule(asked, rule.gold_completion(asked)).score == 1.0


def test_a_database_that_vanished_is_a_failed_call_and_no_score(path: Path) -> None:
    rule = reward()
    asked = problem(path, "SELECT n FROM t")
    rule.gold(asked)
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        rule(asked, block("SELECT n FROM t"))


def test_the_rules_that_are_shown_are_those_that_grade() -> None:
    assert graded() == [(example.bird, example.strict) for example in EXAMPLES]
