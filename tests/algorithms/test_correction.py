"""Weights of the trainer's over the sampler's probabilities, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlctl.algorithms.correction import CorrectionSpec, bounded_weights, corrected, raw_weights
from rlctl.types import TrainRow

LN2 = float(np.log(2))


def row(*log_ratios: float, advantage: float = 1.0) -> TrainRow:
    """A completion whose tokens have those log ratios of trainer to sampler."""
    n = len(log_ratios)
    old = np.array(log_ratios, np.float32) - 3
    return TrainRow(np.zeros(1, np.int32), np.zeros(n, np.int32), advantage, np.full(n, -3.0, np.float32), old)


def spec(**changes: Any) -> CorrectionSpec:
    base: dict[str, Any] = {"level": "token", "mode": "truncate", "combine": "product", "high": 2.0, "low": 0.5}
    return CorrectionSpec(**{**base, **changes})


def test_token_weights_are_truncated_above_only() -> None:
    weights = bounded_weights(row(0.0, LN2, 2 * LN2, -3 * LN2), spec())
    np.testing.assert_allclose(weights, [1, 2, 2, 0.125], rtol=1e-5)


def test_masked_weights_are_zero_outside_both_bounds() -> None:
    weights = bounded_weights(row(0.0, 0.9 * LN2, 2 * LN2, -3 * LN2), spec(mode="mask"))
    np.testing.assert_allclose(weights, [1, 2**0.9, 0, 0], rtol=1e-5)


def test_a_completion_weighs_the_product_or_the_geometric_mean_of_its_ratios() -> None:
    one = row(LN2, LN2, -LN2, LN2)
    np.testing.assert_allclose(raw_weights(one, spec(level="sequence")), [4] * 4, rtol=1e-5)
    np.testing.assert_allclose(raw_weights(one, spec(level="sequence", combine="geometric")), [2**0.5] * 4, rtol=1e-5)


def test_a_product_that_would_overflow_is_bounded() -> None:
    weights = raw_weights(row(*[15.0] * 100), spec(level="sequence"))
    np.testing.assert_allclose(weights, np.exp(20), rtol=1e-6)


def test_the_product_is_bounded_and_not_its_factors() -> None:
    # 30 - 25 nats: bounding each at 20 would make it 0.
    np.testing.assert_allclose(raw_weights(row(30.0, -25.0), spec(level="sequence")), [np.exp(5)] * 2, rtol=1e-5)
    geometric = raw_weights(row(30.0, -25.0), spec(level="sequence", combine="geometric"))
    np.testing.assert_allclose(geometric, [np.exp(2.5)] * 2, rtol=1e-5)


def test_advantages_are_multiplied_and_the_figures_are_those_before_the_bound() -> None:
    batches, found = corrected([[row(0.0, 2 * LN2, advantage=-3.0)], [row(-LN2)]], spec())
    np.testing.assert_allclose(batches[0][0].advantages, [-3, -6], rtol=1e-5)
    assert batches[0][0].advantage == -3.0
    assert found is not None
    assert (found.tokens, found.outside) == (3, 1)
    assert (found.weight_sum, found.weight_min, found.weight_max) == pytest.approx((1 + 4 + 0.5, 0.5, 4), rel=1e-5)
    # KL(sampler || trainer): k1 = -log ratio; k3 = ratio - 1 - log ratio.
    assert found.kl_sum == pytest.approx(-2 * LN2 + LN2, rel=1e-5)
    assert found.k3_sum == pytest.approx((4 - 1 - 2 * LN2) + (0.5 - 1 + LN2), rel=1e-5)


def test_without_a_correction_the_mismatch_is_still_told_where_it_is_known() -> None:
    batches, found = corrected([[row(LN2)]], None)
    assert batches[0][0].token_advantages is None
    assert found is not None
    assert found.weight_sum is None
    unscored = TrainRow(np.zeros(1, np.int32), np.zeros(1, np.int32), 1.0, np.zeros(1, np.float32))
    assert corrected([[unscored]], None)[1] is None


def test_an_empty_completion_has_no_weight() -> None:
    batches, found = corrected([[row(), row(LN2)]], spec(level="sequence"))
    assert len(batches[0][0].advantages) == 0
    assert found is not None
    assert found.tokens == 1
