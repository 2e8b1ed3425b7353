"""Golds before a run, and what `check_reward` finds out about a reward."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from rlctl import reward_table
from rlctl.errors import RewardError
from rlctl.rewards import RewardResult, RewardSet, load_rewards
from rlctl.rewards.base import NamedReward
from rlctl.rewards.check import Sample, check_reward, percentiles
from rlctl.rewards.golds import check_golds, spread
from rlctl.rewards.probes import hostile_texts
from rlctl.types import Problem

PROBLEMS = [Problem(f"p{i}", f"{i} + 0?", f"{i}+0={i}\n#### {i}") for i in range(100)]


def contains(problem, completion):
    return float(problem.answer in completion)


def tagged(problem, completion):
    return 2.0 * (f"<answer>{problem.answer}</answer>" in completion)


def with_gold(function, *, full_marks=None, gold=lambda problem: f"<answer>{problem.answer}</answer>"):
    def reward(problem, completion):
        return function(problem, completion)

    reward.gold_completion = gold
    if full_marks is not None:
        reward.full_marks = full_marks
    return reward


def set_of(function, *, timeout_s=20.0) -> RewardSet:
    return RewardSet((NamedReward("mine", function),), timeout_s)


# Before a run


@pytest.mark.parametrize(
    "answer", ["#### 5", "2+3=5\n#### 5", "5", r"\frac{1}{2}", r"so \boxed{5}", "$1,000", "-5", "50%"]
)
def test_gold_answers_of_gsm8k_get_full_marks_in_every_form(answer):
    assert check_golds(load_rewards(["gsm8k"]), [Problem("q", "?", answer)]) == []


def test_gold_answers_without_full_marks_are_named_with_the_cure():
    half = set_of(with_gold(lambda problem, completion: 0.5 if problem.id == "p3" else 1.0))
    with pytest.raises(RewardError) as caught:
        check_golds(half, PROBLEMS[:10])
    assert "gives 1 of 10 gold answers less than full marks (1)" in caught.value.message
    assert "p3: 0.5 for" in caught.value.message
    assert "reward.check = false" in caught.value.hint


def test_full_marks_are_what_the_reward_says():
    assert check_golds(set_of(with_gold(tagged, full_marks=2.0)), PROBLEMS) == []
    with pytest.raises(RewardError, match=r"less than full marks \(3\)"):
        check_golds(set_of(with_gold(tagged, full_marks=3.0)), PROBLEMS)


@pytest.mark.parametrize(
    "function", [contains, lambda problem, completion: -float(len(completion)), lambda p, c: 1 / 0]
)
def test_a_reward_that_does_not_say_how_a_right_answer_looks_is_not_judged(function):
    (note,) = check_golds(set_of(function or (lambda problem, completion: 1 / 0)), PROBLEMS)
    assert note == "the reward mine does not say how a right answer looks (gold_completion), so it was not tried"


def test_a_problem_without_a_gold_completion_is_left_out():
    some = with_gold(contains, gold=lambda problem: problem.answer if problem.id != "p0" else None)
    assert check_golds(set_of(some), PROBLEMS[:2]) == []


def test_a_reward_that_fails_now_and_then_is_told_and_not_refused():
    def flaky(problem, completion):
        if problem.id == "p0":
            raise TimeoutError("the judge is busy")
        return 1.0

    assert check_golds(set_of(with_gold(flaky)), PROBLEMS[:10]) == ["the reward mine failed on 1 of 10 gold answers"]


def test_a_reward_that_fails_on_every_gold_is_refused():
    with pytest.raises(RewardError, match="fails on the gold answers of all 10 problems tried; the first: p0: Zero"):
        check_golds(set_of(with_gold(lambda problem, completion: 1 / 0)), PROBLEMS[:10])


@pytest.mark.parametrize(
    ("gold", "says"),
    [(lambda problem: 1 / 0, "of p0 raised ZeroDivisionError"), (lambda problem: 5, "of p0 is 5, not text")],
)
def test_a_gold_completion_that_is_none_is_told(gold, says):
    with pytest.raises(RewardError, match=says):
        check_golds(set_of(with_gold(contains, gold=gold)), PROBLEMS)


def test_what_a_reward_says_of_itself_wrongly_is_told():
    complains = with_gold(contains)
    complains.gold_complaint = lambda problem: 1 / 0
    with pytest.raises(RewardError, match="mine: gold_complaint of p0 raised ZeroDivisionError"):
        set_of(complains).gold_complaint(PROBLEMS[0])
    with pytest.raises(RewardError, match="mine: full_marks is '1', not a finite number"):
        check_golds(set_of(with_gold(contains, full_marks="1")), PROBLEMS)


def test_a_custom_reward_may_complain_of_golds_at_load():
    complains = with_gold(contains)
    complains.gold_complaint = lambda problem: "no" if problem.id == "p1" else None
    assert [set_of(complains).gold_complaint(problem) for problem in PROBLEMS[:2]] == [None, "no"]


def test_golds_are_checked_inside_a_running_loop_too():
    async def inside():
        return check_golds(load_rewards(["gsm8k"]), PROBLEMS)

    assert asyncio.run(inside()) == []


def test_the_sample_is_spread_over_all_problems():
    assert [problem.id for problem in spread(PROBLEMS, 4)] == ["p0", "p25", "p50", "p75"]
    assert len(spread(PROBLEMS[:3], 32)) == 3
    assert len(spread(PROBLEMS, 99)) == 99
    assert spread(PROBLEMS, 60)[-1].id == "p98"


# The whole check


def report_on(reward_set, *, samples=None):
    return asyncio.run(check_reward(reward_set, reward_set.rewards[0], PROBLEMS[1:17], samples=samples))


def findings(report):
    return {finding.name: finding.holds for finding in report.findings}


def rows(report):
    return {row.kind: (row.count, row.low, row.high, row.full) for row in report.rows}


def test_gsm8k_passes_on_every_kind_of_text():
    report = report_on(load_rewards(["gsm8k"]))
    assert set(findings(report).values()) == {True}
    assert rows(report) == {
        "gold answer": (16, 1.0, 1.0, 16),
        "another's gold answer": (16, 0.0, 0.0, 0),
        "gold answer cut in half": (16, 0.0, 0.0, 0),
        "empty": (16, 0.0, 0.0, 0),
        "10,000 characters": (8, 0.0, 0.0, 0),
        "and then the gold one": (8, 1.0, 1.0, 8),
        "made to break it": (len(hostile_texts()), 0.0, 0.0, 0),
    }


def test_a_reward_that_pays_for_anything_does_not_pass():
    report = report_on(set_of(with_gold(lambda problem, completion: 1.0)))
    assert findings(report)["wrong answers do not"] is False
    assert not reward_table.passed([report])


def test_gold_in_several_forms_is_shown_for_a_reward_that_does_not_say():
    report = report_on(set_of(contains))
    assert rows(report)["gold answer as it is"] == (16, 1.0, 1.0, 16)
    assert rows(report)["gold in a box"] == (16, 0.0, 0.0, 0)
    assert findings(report)["gold answers get full marks"] is None
    assert reward_table.passed([report])


def test_a_usual_text_without_a_score_is_a_fault_and_a_hostile_one_is_told():
    usual = report_on(set_of(lambda problem, completion: 1 / len(completion)))
    hostile = report_on(set_of(lambda problem, completion: 1.0 if len(completion) < 20_000 else 1 / 0))
    assert findings(usual)["every usual text gets a score"] is False
    assert findings(hostile)["every usual text gets a score"] is True
    assert findings(hostile)["texts made to break it get a score"] is None


def test_a_reward_that_draws_lots_is_told():
    drawn = iter(range(10**6))
    report = report_on(set_of(lambda problem, completion: float(next(drawn))))
    assert findings(report)["one score a text, in order"] is None


def test_latencies_are_those_of_the_calls():
    def slow(problem, completion):
        time.sleep(0.2 if not completion else 0.0)
        return 1.0

    latency = report_on(set_of(slow)).latency_ms
    assert latency["max"] >= 200.0
    assert latency["p50"] < latency["max"] / 2
    assert percentiles([float(n) for n in range(101)]) == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}


def test_recorded_completions_are_scored_again():
    samples = [
        Sample(PROBLEMS[3], "#### 3", {"gsm8k": 1.0}),
        Sample(PROBLEMS[3], "#### 4", {"gsm8k": 1.0}),
        Sample(PROBLEMS[3], "#### none", {"gsm8k": 0.0}),
        Sample(PROBLEMS[3], "three", {}),
    ]
    recorded = report_on(load_rewards(["gsm8k"]), samples=samples).recorded
    assert (recorded.count, recorded.read, recorded.forms) == (4, 2, {"hash": 3, "none": 1})
    assert (recorded.mean, recorded.recorded_mean, recorded.changed) == (0.25, 2 / 3, 1)


def test_a_reward_that_reads_no_answers_has_no_parse_rate():
    samples = [Sample(PROBLEMS[3], "x", {"mine": 0.0})]
    assert report_on(set_of(contains), samples=samples).recorded.read is None
    parsed = set_of(lambda problem, completion: RewardResult(0.0, parsed=bool(completion)))
    assert report_on(parsed, samples=samples).recorded.read == 1


@pytest.mark.parametrize("function", [contains, lambda problem, completion: 1 / 0])
def test_what_was_found_is_strict_json_and_fits_a_terminal(function):
    report = report_on(set_of(function), samples=[Sample(PROBLEMS[3], "x", {"mine": 0.0})])
    shown = json.loads(reward_table.render([report], style="json"))
    assert shown["rewards"][0]["rows"][0]["kind"] == "gold answer as it is"
    assert shown["passed"] is reward_table.passed([report])
    table = [
        line for line in reward_table.render([report], style="table").splitlines() if line.startswith(" ") is False
    ]
    assert max(map(len, table[:12])) <= 80
