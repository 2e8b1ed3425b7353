"""What the metrics of a run say is wrong with it; every expectation is worked out by hand from the records."""

from __future__ import annotations

from typing import Any

import pytest

from rlctl.diagnosis import DEAD_GROUPS_LIMIT, MISMATCH_LIMIT, TRUNCATED_LIMIT, diagnose

HEALTHY = {
    "score/mean": 0.5,
    "reward/solved_none": 0.2,
    "reward/solved_some": 0.6,
    "reward/solved_all": 0.2,
    "reward/frac_zero_signal": 0.4,
    "actor/entropy": 0.3,
    "actor/updates": 1,
    "actor/skipped_updates": 0,
    "response_length/clip_ratio": 0.01,
    "training/rollout_probs_diff_mean": 0.002,
}


def steps(count: int, **changed: Any) -> list[dict[str, Any]]:
    named = {key.replace("__", "/"): value for key, value in changed.items()}
    return [{**HEALTHY, **named, "training/global_step": i + 1} for i in range(count)]


def keys(history: list[dict[str, Any]]) -> list[str]:
    return [finding.key for finding in diagnose(history, max_response_length=64)]


def test_a_healthy_run_has_no_finding() -> None:
    assert keys(steps(20)) == []


def test_nothing_is_said_of_nothing() -> None:
    assert diagnose([]) == []
    assert diagnose([{"training/global_step": 0, "val-core/x/acc/mean@1": 0.0}]) == []
    assert diagnose([{"score/mean": None, "timing_s/step": 1.0}] * 9) == []


def test_scores_that_are_all_zero() -> None:
    flat = steps(
        4,
        score__mean=0.0,
        reward__solved_none=1.0,
        reward__solved_some=0.0,
        reward__solved_all=0.0,
        reward__frac_zero_signal=1.0,
    )
    [finding] = diagnose(flat, max_response_length=64)  # the dead groups are not told a second time
    assert (finding.key, finding.text) == ("all_zero_rewards", "every score of the last 4 steps is 0")
    assert keys(flat[:2]) == []  # two steps may be chance


def test_scores_of_both_signs_with_mean_zero_are_not_all_zero() -> None:
    assert keys(steps(4, score__mean=0.0)) == []


def test_entropy_collapse_compares_the_last_steps_with_the_first() -> None:
    run = steps(5, actor__entropy=0.5) + steps(5, actor__entropy=0.1) + steps(5, actor__entropy=0.01)
    assert keys(run[:10]) == []  # a fifth is left
    [finding] = diagnose(run)
    assert finding.key == "entropy_collapse"
    assert "0.01 nats a token over the last 5 steps, 2 % of the 0.5 at the start" in finding.text


def test_entropy_that_was_zero_from_the_start_has_not_collapsed() -> None:
    assert keys(steps(12, actor__entropy=0.0)) == []


def test_lengths_that_hit_the_limit() -> None:
    [finding] = diagnose(steps(5, response_length__clip_ratio=0.35), max_response_length=1024)
    assert finding.key == "length_limit"
    assert finding.text == "35 % of the completions of the last 5 steps were cut at 1,024 tokens"
    assert "rollout.max_response_length" in finding.cure
    [unknown] = diagnose(steps(5, response_length__clip_ratio=0.35))
    assert unknown.text.endswith("were cut")


def test_a_mismatch_is_told_at_the_first_step() -> None:
    [finding] = diagnose(steps(1, training__rollout_probs_diff_mean=0.034))
    assert finding.key == "mismatch"
    assert "0.034 on average over the last step (limit 0.01)" in finding.text


@pytest.mark.parametrize(("solved", "cure"), [("all", "harder"), ("none", "easier")])
def test_dead_groups_are_told_by_what_makes_them_so(solved: str, cure: str) -> None:
    shares = {"reward__solved_all": 0.05, "reward__solved_none": 0.05, f"reward__solved_{solved}": 0.85}
    [finding] = diagnose(steps(5, reward__frac_zero_signal=0.9, **shares))
    assert finding.key == "dead_groups"
    assert finding.text.startswith("90 % of the groups of the last 5 steps teach nothing")
    assert cure in finding.cure
    assert "filter_groups" in finding.cure


def test_dead_groups_that_are_replaced_already_need_other_problems() -> None:
    [finding] = diagnose(steps(5, reward__frac_zero_signal=0.9, rollout__refills=3))
    assert "filter_groups" not in finding.cure


def test_refused_updates_are_counted() -> None:
    [finding] = diagnose([*steps(4), *steps(1, actor__updates=0, actor__skipped_updates=1)])
    assert finding.key == "refused_updates"
    assert finding.text.startswith("1 of 5 updates of the last 5 steps were refused")


def test_what_is_over_is_not_told_any_more() -> None:
    assert keys([*steps(5, training__rollout_probs_diff_mean=0.5), *steps(5)]) == []


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        ("training/rollout_probs_diff_mean", MISMATCH_LIMIT),
        ("response_length/clip_ratio", TRUNCATED_LIMIT),
        ("reward/frac_zero_signal", DEAD_GROUPS_LIMIT),
    ],
)
def test_below_a_limit_nothing_is_said_and_above_it_something(key: str, limit: float) -> None:
    assert keys([{**record, key: limit * 0.99} for record in steps(5)]) == []
    assert len(keys([{**record, key: limit * 1.01} for record in steps(5)])) == 1


def test_figures_that_are_no_numbers_are_passed_over() -> None:
    odd = [float("nan"), float("inf"), None, "0.5", True]
    assert (
        keys([{**record, "training/rollout_probs_diff_mean": v} for record, v in zip(steps(5), odd, strict=True)]) == []
    )


def test_the_gravest_comes_first_and_a_finding_is_one_line() -> None:
    bad = steps(5, training__rollout_probs_diff_mean=0.2, reward__frac_zero_signal=0.95)
    found = diagnose(bad + steps(5, training__rollout_probs_diff_mean=0.2, actor__entropy=0.001))
    assert [finding.key for finding in found] == ["mismatch", "entropy_collapse"]
    assert all("\n" not in finding.line and finding.cure in finding.line for finding in found)
