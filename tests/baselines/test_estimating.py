"""How much more and how surely, by hand: what steps say of a run, and what runs say of the code."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from rlctl.baselines.estimating import Belief, Estimate, Measured, estimate, satterthwaite, t_quantile, trimmed_mean

STEPS = 10
T_18 = 2.55
"""99 % quantile of Student's t with 18 degrees of freedom, from tables; with 17 it is 2.57."""
APART = 1e-4 / 0.36
"""Variance of a run where five lie a hundredth apart each: winsorised, 1 1 2 3 3 hundredths, and a fifth cut twice."""


def flat(*centres: float, beside: tuple[float, ...] | None = None) -> list[Measured]:
    """Runs whose steps all lie where the run does; `beside` is one circumstance of each."""
    known = [()] * len(centres) if beside is None else [(value,) for value in beside]
    return [Measured([c + number for number in range(STEPS)], x) for c, x in zip(centres, known, strict=True)]


def logs(found: Estimate) -> tuple[float, ...]:
    return tuple(map(math.log1p, found))


def test_runs_that_lie_apart_by_hand() -> None:
    # Of the baseline's spread 2 parts of 8 are seen and the others believed to be 0; that of the runs now would be
    # less than they show, with the baseline's beside it. Satterthwaite's degrees of freedom of the sum are 14.5.
    found = estimate(flat(0.0, 0.01, 0.02, 0.03, 0.04), flat(0.1, 0.11, 0.12, 0.13, 0.14), spread=0.0)
    old = 2 / 8 * APART
    reach = 2.61 * math.sqrt(old / 5 + APART / 5)
    assert logs(found) == pytest.approx((0.1, 0.1 - reach, 0.1 + reach), abs=3e-4)


def test_runs_that_agree_more_than_the_baselines_did_are_not_believed_to() -> None:
    found = estimate(flat(0.0, 0.01, 0.02, 0.03, 0.04), flat(*[0.12] * 5), spread=0.0)
    # Of the spread now 2 parts of 10 are seen and the others the baseline's; degrees of freedom of the sum: 17.8.
    old = 2 / 8 * APART
    reach = 2.56 * math.sqrt(old / 5 + 8 / 10 * old / 5)
    assert logs(found) == pytest.approx((0.1, 0.1 - reach, 0.1 + reach), abs=3e-4)


def test_runs_that_agree_are_believed_as_far_as_six_runs_weigh() -> None:
    found = estimate(flat(*[0.0] * 5), flat(*[0.0] * 5), spread=0.05)
    # The baseline shows 0 with 2 degrees of freedom beside 6, the runs now 0 with 2 beside 8.
    reach = T_18 * math.sqrt((6 / 8 + 6 / 10) * 0.05**2 / 5)
    assert logs(found) == pytest.approx((0.0, -reach, reach), rel=0.01)


def test_what_runs_in_a_row_have_in_common_is_not_averaged_out() -> None:
    def variance(lasting: float) -> float:
        return logs(estimate(flat(*[0.0] * 5), flat(*[0.0] * 5), spread=0.05, lasting=lasting))[2] ** 2

    assert variance(0.4) / variance(0.0) == pytest.approx((1 / 5 + 0.4) / (1 / 5))


def test_a_single_run_is_judged_by_the_spread_of_the_baselines_runs() -> None:
    found = estimate(flat(0.0, 0.01, 0.02, 0.03, 0.04), flat(0.12), spread=0.03)
    run = (6 * 0.03**2 + 2 * APART) / 8
    # Both are known with 8 degrees of freedom, of which Satterthwaite makes 11.1: t is 2.72 with 11.
    reach = 2.715 * math.sqrt(run / 5 + run)
    assert logs(found) == pytest.approx((0.1, 0.1 - reach, 0.1 + reach), abs=1e-3)


def test_one_run_of_five_that_is_off_moves_nothing() -> None:
    before = flat(0.0, 0.01, 0.02, 0.03, 0.04)
    usual = estimate(before, flat(0.0, 0.01, 0.02, 0.03, 0.04), spread=0.03)
    found = estimate(before, flat(0.0, 0.01, 0.02, 0.03, 0.4), spread=0.03)
    assert tuple(found) == pytest.approx(tuple(usual))


def test_steps_are_compared_with_the_same_step_and_some_that_meet_a_neighbour_left_out() -> None:
    run = Measured([float(number) for number in range(STEPS)])
    met = Measured([0.05 + number + (5.0 if number in (2, 7) else 0.0) for number in range(STEPS)])
    assert estimate([run] * 5, [met] * 5, spread=0.0).value == pytest.approx(math.expm1(0.05))


def test_noise_of_the_steps_is_in_the_interval_though_runs_agree() -> None:
    noisy = [Measured([0.1 * (-1) ** number for number in range(STEPS)])] * 5
    still = [Measured([0.0] * STEPS)] * 5
    found = estimate(still, noisy, spread=0.0)
    # Half of all runs have steps 0.1 off, of which winsorising changes nothing.
    believed = 0.5 * (0.1**2 * STEPS / (STEPS - 1)) / STEPS / 0.36
    assert logs(found)[2] == pytest.approx(T_18 * math.sqrt((6 / 8 + 6 / 10) * believed / 5), rel=0.01)


def test_what_is_felt_of_a_circumstance_is_taken_off_by_hand() -> None:
    # Each side's runs feel a quarter of what lies beside them, which is 0.2 more now: 0.1 apart, of which 0.05.
    before = flat(-0.05, -0.025, 0.0, 0.025, 0.05, beside=(-0.2, -0.1, 0.0, 0.1, 0.2))
    now = flat(0.05, 0.075, 0.1, 0.125, 0.15, beside=(0.0, 0.1, 0.2, 0.3, 0.4))
    found = estimate(before, now, spread=0.01, beliefs=[Belief(0.0, 0.3)])
    # The squares of the circumstances are 0.1 a side; the belief of 0 weighs as 0.01 ** 2 / 0.3 ** 2 beside them.
    weight = 0.2 + 0.01**2 / 0.3**2
    assert math.log1p(found.value) == pytest.approx(0.1 - 0.2 * 0.25 * 0.2 / weight)
    # Next to nothing is left of what the runs differ in; what is felt is uncertain by 0.01 ** 2 / weight.
    variance = (6 / 8 + 6 / 10) * 0.01**2 / 5 + 0.2**2 * 0.01**2 / weight
    assert math.log1p(found.high) - math.log1p(found.value) == pytest.approx(T_18 * math.sqrt(variance), rel=0.01)


def test_what_is_believed_is_taken_off_where_the_runs_tell_nothing_of_it() -> None:
    before = flat(0.0, 0.01, 0.02, 0.03, 0.04, beside=(0.5,) * 5)
    now = flat(0.1, 0.11, 0.12, 0.13, 0.14, beside=(0.9,) * 5)
    found = estimate(before, now, spread=0.03, beliefs=[Belief(0.2, 0.05)])
    assert math.log1p(found.value) == pytest.approx(0.1 - 0.2 * 0.4)
    sure = estimate(before, now, spread=0.03, beliefs=[Belief(0.2, 1e-6)])
    # As uncertain as the belief: 0.05 of 0.4, beside what runs leave uncertain.
    reach, least = (math.log1p(each.high) - math.log1p(each.value) for each in (found, sure))
    assert reach > math.hypot(least, 0.9 * T_18 * 0.05 * 0.4)


def test_a_circumstance_that_is_the_same_in_all_runs_takes_nothing_off() -> None:
    before = flat(0.0, 0.01, 0.02, 0.03, 0.04, beside=(0.5,) * 5)
    now = flat(0.1, 0.11, 0.12, 0.13, 0.14, beside=(0.5,) * 5)
    found = estimate(before, now, spread=0.03, beliefs=[Belief(0.2, 0.3)])
    assert math.log1p(found.value) == pytest.approx(0.1)


def test_the_interval_misses_as_seldom_as_it_says() -> None:
    draw = random.Random(0)

    def runs() -> list[Measured]:
        centres = [draw.gauss(0, 0.03) for _ in range(5)]
        return [Measured([draw.gauss(centre, 0.05) for _ in range(STEPS)], [draw.gauss(0, 0.1)]) for centre in centres]

    found = [estimate(runs(), runs(), spread=0.03, beliefs=[Belief(0.0, 0.3)]) for _ in range(1000)]
    missed = fmean(not each.low < 0 < each.high for each in found)
    assert 0.005 < missed < 0.035


def test_a_trimmed_mean_and_its_variance_by_hand() -> None:
    # A fifth of ten are two: 3..8 are kept, mean 5.5. Winsorised: 3 3 3 4 5 6 7 8 8 8, mean 5.5, squares 42.5.
    centre = trimmed_mean([1, 2, 3, 4, 5, 6, 7, 8, 9, 1000])
    assert (centre.value, centre.freedom) == (5.5, 5)
    assert centre.variance == pytest.approx(42.5 / 9 / 10 / 0.36)


def test_one_value_tells_nothing_of_its_variance() -> None:
    centre = trimmed_mean([7.0])
    assert (centre.value, centre.variance, centre.freedom) == (7.0, 0.0, 0)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (((1.0, 4), (1.0, 4)), 8),
        (((1.0, 10), (0.0, 3)), 10),
        (((3.0, 9), (1.0, 1)), 8),  # 16 / (9 / 9 + 1 / 1)
        (((0.0, 10), (0.0, 3)), 10),
    ],
)
def test_degrees_of_freedom_of_a_sum_by_hand(parts: tuple[tuple[float, int], ...], expected: float) -> None:
    assert satterthwaite(*parts) == pytest.approx(expected)


@pytest.mark.parametrize(("freedom", "expected"), [(4, 4.604), (10, 3.169), (30, 2.750), (100, 2.626)])
def test_quantiles_of_students_t_are_those_of_the_tables(freedom: int, expected: float) -> None:
    assert t_quantile(0.995, freedom) == pytest.approx(expected, rel=0.02)
