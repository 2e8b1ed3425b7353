"""Intervals, majority votes and paired tests against hand-worked values, a slow second computation, and coverage."""

from __future__ import annotations

import itertools
import math
import random
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.statistics import compare, interval, majority, mcnemar, permutation


def naive_bca(values: list[float], *, resamples: int, seed: int) -> tuple[float, float]:
    """The textbook's algorithm with its explicit jackknife, in plain Python and with other random numbers."""
    rng, normal, size = random.Random(seed), NormalDist(), len(values)
    mean = sum(values) / size
    means = sorted(sum(rng.choices(values, k=size)) / size for _ in range(resamples))
    below = sum((m < mean) + 0.5 * (m == mean) for m in means) / resamples
    bias = normal.inv_cdf(below)
    left_out = [(sum(values) - value) / (size - 1) for value in values]
    centre = sum(left_out) / size
    cubes, squares = (sum((centre - one) ** power for one in left_out) for power in (3, 2))
    acceleration = cubes / (6 * squares**1.5)
    ends = []
    for tail in (0.025, 0.975):
        z = bias + normal.inv_cdf(tail)
        ends.append(means[int(normal.cdf(bias + z / (1 - acceleration * z)) * resamples)])
    return ends[0], ends[1]


@pytest.mark.parametrize("kind", ["binary", "skewed", "wide"])
def test_the_interval_is_that_of_the_textbook(kind: str) -> None:
    rng = random.Random(kind)
    values = {
        "binary": [float(rng.random() < 0.1) for _ in range(80)],
        "skewed": [rng.random() ** 6 for _ in range(60)],
        "wide": [rng.gauss(0, 3) for _ in range(40)],
    }[kind]
    found = interval(values, seed=1)
    low, high = naive_bca(values, resamples=20_000, seed=2)
    assert found.value == pytest.approx(sum(values) / len(values))
    # Means of 80 zeros and ones lie 1/80 apart, and either neighbour is as good.
    near = 1.01 / 80 if kind == "binary" else 0.05 * (high - low)
    assert found.low == pytest.approx(low, abs=near)
    assert found.high == pytest.approx(high, abs=near)


def test_95_percent_intervals_hold_the_truth_about_95_percent_of_the_time() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        found = interval((rng.random(60) < 0.3).astype(float).tolist(), seed=trial)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.3 <= found.high
    # 95 % of 200 is 190; a binomial count that far out of 178..199 has a probability below 1e-4.
    assert 178 <= held <= 199


def test_the_seed_decides_the_interval() -> None:
    values = [math.sin(i) for i in range(40)]
    assert interval(values, seed=3) == interval(values, seed=3)
    assert interval(values, seed=3) != interval(values, seed=4)


def test_none_solved_of_a_hundred_still_has_an_upper_end() -> None:
    # Clopper-Pearson: (1 - p)^100 = 0.025, so p = 0.0362.
    found = interval([0.0] * 100, seed=0)
    assert (found.low, found.high) == (0.0, pytest.approx(0.036217, abs=1e-6))
    all_solved = interval([1.0] * 100, seed=0)
    assert (all_solved.low, all_solved.high) == (pytest.approx(1 - 0.036217, abs=1e-6), 1.0)


@pytest.mark.parametrize("values", [[0.5], [0.25] * 10])
def test_where_nothing_can_be_said_there_is_no_interval(values: list[float]) -> None:
    found = interval(values, seed=0)
    assert (found.value, found.low, found.high) == (values[0], None, None)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=40))
def test_an_interval_lies_within_the_scores_and_around_their_mean(values: list[float]) -> None:
    found = interval(values, seed=0)
    if found.low is not None and found.high is not None:
        assert 0 <= found.low <= found.value + 1e-12
        assert found.value - 1e-12 <= found.high <= 1


def test_thousands_of_problems_take_seconds() -> None:
    # 10,000 resamples of 20,000 problems, in pieces that fit into memory.
    found = interval([float(i % 3 == 0) for i in range(20_000)], seed=0)
    # The standard error is sqrt(2/9 / 20000) = 0.00333.
    assert found.low == pytest.approx(1 / 3 - 1.96 * 0.003333, abs=4e-4)
    assert found.high == pytest.approx(1 / 3 + 1.96 * 0.003333, abs=4e-4)


@pytest.mark.parametrize(
    ("answers", "index"),
    [
        (["7", "8", "8"], 1),
        (["7", "8"], 0),  # a tie goes to the answer given first
        (["8", "7", "7", "8"], 0),
        ([None, None, "7"], 2),  # no answer has no vote
        ([None, None], None),
        ([], None),
    ],
)
def test_majority(answers: list[str | None], index: int | None) -> None:
    assert majority(answers) == index


# Paired tests


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [(0, 0, 1.0), (3, 3, 1.0), (5, 1, 14 / 64), (1, 5, 14 / 64), (10, 0, 2 / 1024), (0, 1, 1.0)],
)
def test_exact_mcnemar_by_hand(better: int, worse: int, p: float) -> None:
    assert mcnemar(better, worse) == pytest.approx(p)


def test_exact_mcnemar_of_many_flips_agrees_with_the_normal_approximation() -> None:
    z = (530 - 470 - 1) / math.sqrt(1000)
    assert mcnemar(530, 470) == pytest.approx(math.erfc(z / math.sqrt(2)), abs=1e-3)
    assert 0 < mcnemar(1000, 500) < 1e-30
    assert mcnemar(9_000, 9_000) == 1.0


def test_permutation_of_few_differences_tries_all_signs() -> None:
    assert permutation(np.array([1.0, 1.0, 1.0]), seed=0) == 2 / 8
    assert permutation(np.array([0.0, 0.0]), seed=0) == 1.0
    differences = [0.5, -0.25, 1.0, 0.75, 0.0, 0.1]
    signs = itertools.product((1, -1), repeat=5)
    moved = [d for d in differences if d]
    as_far = [abs(sum(s * d for s, d in zip(sign, moved, strict=True))) >= sum(moved) - 1e-9 for sign in signs]
    assert permutation(np.array(differences), seed=0) == pytest.approx(sum(as_far) / 32)


def test_sampled_signs_come_near_to_all_of_them_and_are_never_certain() -> None:
    rng = np.random.default_rng(1)
    differences = rng.normal(0.3, 1.0, 60)
    # For many differences the test comes to that of a normal sum.
    z = differences.sum() / math.sqrt((differences**2).sum())
    assert permutation(differences, seed=0) == pytest.approx(2 * NormalDist().cdf(-abs(z)), abs=0.02)
    assert permutation(np.ones(60), seed=0) == pytest.approx(1 / 10_001)


def test_right_and_wrong_are_compared_by_mcnemar_and_shares_by_permutation() -> None:
    first, second = [0.0, 0.0, 1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0, 1.0, 0.0]
    found = compare(first, second, seed=0)
    assert (found.test, found.better, found.worse, found.num_problems) == ("exact McNemar", 3, 1, 6)
    assert found.p_value == pytest.approx(10 / 16)
    assert found.difference.value == pytest.approx(2 / 6)
    assert compare([0.5, 0.0], [1.0, 0.0], seed=0).test == "paired permutation"


def test_the_same_scores_do_not_differ() -> None:
    found = compare([0.0, 1.0, 0.5], [0.0, 1.0, 0.5], seed=0)
    assert (found.difference.value, found.p_value) == (0.0, 1.0)


def test_p_values_of_equal_models_are_spread_evenly() -> None:
    rng = np.random.default_rng(5)
    small = sum(
        compare(rng.choice([0, 0.5, 1], 30).tolist(), rng.choice([0, 0.5, 1], 30).tolist(), seed=i).p_value < 0.1
        for i in range(200)
    )
    assert 8 <= small <= 35
