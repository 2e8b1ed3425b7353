from __future__ import annotations

import math

import pytest
import torch

from rlctl.engine.loss import kl_divergence, policy_loss, token_weights
from rlctl.engine.policy_losses import clipped_surrogate
from rlctl.types import LossSpec
from tests import defaults

NO_DUAL = defaults.loss(clip_ratio_c=None)


def loss_of(
    logp: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, spec: LossSpec, **more: torch.Tensor
) -> torch.Tensor:
    weights = torch.full_like(logp, 1 / len(logp))
    return policy_loss(logp, old_T=old, advantages_T=advantage, weights_T=weights, spec=spec, **more).total


def test_clipped_surrogate_takes_the_worse_of_plain_and_clipped() -> None:
    # Field fault 016: (ratio, A) = (1.5, 1), (1.5, -1), (.5, 1), (.5, -1) at clip 0.2.
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss, clipped = clipped_surrogate(ratio, advantages, NO_DUAL)
    torch.testing.assert_close(loss, torch.tensor([-1.2, 1.5, -0.5, 0.8]))
    assert clipped.tolist() == [True, False, False, True]


def test_clipped_tokens_have_no_gradient_and_the_others_do() -> None:
    logp = torch.log(torch.tensor([1.5, 1.5, 0.5, 0.5])).requires_grad_()
    loss_of(logp, torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]), NO_DUAL).backward()
    assert (logp.grad == 0).tolist() == [True, False, False, True]


def test_bounds_below_and_above_are_their_own() -> None:
    spec = defaults.loss(clip_ratio_low=0.1, clip_ratio_high=0.4, clip_ratio_c=None)
    loss, _ = clipped_surrogate(torch.tensor([1.5, 0.5]), torch.tensor([1.0, -1.0]), spec)
    torch.testing.assert_close(loss, torch.tensor([-1.4, 0.9]))


def test_dual_clip_bounds_only_negative_advantages() -> None:
    spec = defaults.loss(clip_ratio_c=3.0)
    loss, clipped = clipped_surrogate(torch.tensor([10.0, 10.0]), torch.tensor([-2.0, 2.0]), spec)
    torch.testing.assert_close(loss, torch.tensor([6.0, -2.4]))
    assert clipped.tolist() == [True, True]


@pytest.mark.parametrize(
    ("estimator", "logp", "ref", "expected"),
    [
        # Field fault 022: the two policies must not be swapped.
        ("k3", -1.0, -2.0, 0.367879),
        ("k3", -2.0, -1.0, 0.718282),
        ("k1", -1.0, -2.0, 1.0),
        ("k1", -2.0, -1.0, -1.0),
        ("k2", -1.0, -2.0, 0.5),
        ("k2", -2.0, -1.0, 0.5),
    ],
)
def test_kl_estimators(estimator: str, logp: float, ref: float, expected: float) -> None:
    value = kl_divergence(torch.tensor([logp]), torch.tensor([ref]), estimator)  # type: ignore[arg-type]
    assert value.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    # d = log p - log p_ref = 1 and -2. By hand: exp(-1) - 1 + 1 and exp(2) - 1 - 2; slopes of k3 are 1 - exp(-d).
    [
        ("k1", [1, -2], [1, 1]),
        ("k2", [0.5, 2], [1, -2]),
        ("k3", [0.367879, 4.389056], [0.632121, -6.389056]),
        ("abs", [1, 2], [1, -1]),
        ("k1+", [1, -2], [1, -2]),
        ("k3+", [0.367879, 4.389056], [1, -2]),
    ],
)
def test_kl_values_and_their_slopes(estimator: str, value: list[float], slope: list[float]) -> None:
    logp = torch.tensor([-1.0, -3.0], requires_grad=True)
    found = kl_divergence(logp, torch.tensor([-2.0, -1.0]), estimator)  # type: ignore[arg-type]
    found.sum().backward()
    assert found.tolist() == pytest.approx(value, abs=1e-5)
    assert logp.grad.tolist() == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize(
    ("estimator", "right"), [("k1", False), ("k2", True), ("k3", False), ("k1+", True), ("k3+", True)]
)
def test_the_expected_gradient_is_that_of_kl_where_it_is_said_to_be(estimator: str, right: bool) -> None:
    # Over a vocabulary of 5, every token weighed by its probability: the expectation, without a sample.
    generator = torch.Generator().manual_seed(0)
    logits, ref = (torch.randn(5, generator=generator, dtype=torch.float64) for _ in range(2))

    def gradient(estimate: bool) -> torch.Tensor:
        leaf = logits.clone().requires_grad_()
        logp, ref_logp = leaf.log_softmax(0), ref.log_softmax(0)
        if estimate:
            (logp.detach().exp() * kl_divergence(logp, ref_logp, estimator)).sum().backward()  # type: ignore[arg-type]
        else:
            (logp.exp() * (logp - ref_logp)).sum().backward()
        return leaf.grad

    assert torch.allclose(gradient(True), gradient(False), atol=1e-12) is right


def test_kl_of_an_outlier_is_finite_with_a_finite_gradient() -> None:
    # Field fault 025: exp(100) is infinite in float32.
    logp = torch.tensor([-100.0, -1.0], requires_grad=True)
    value = kl_divergence(logp, torch.tensor([0.0, -1.0]), "k3")
    value.sum().backward()
    assert value.tolist() == [10.0, 0.0]
    assert torch.isfinite(logp.grad).all()


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    # d = 50 and -50: far beyond where k3 is bounded, at 10.
    [
        ("k1", [50, -50], [1, 1]),
        ("k2", [1250, 1250], [50, -50]),
        ("abs", [50, 50], [1, -1]),
        ("k1+", [50, -50], [50, -50]),
        ("k3", [10, 10], [0, 0]),
        ("k3+", [10, 10], [50, -50]),
    ],
)
def test_only_k3_is_bounded_so_that_a_token_far_off_is_still_pulled_back(
    estimator: str, value: list[float], slope: list[float]
) -> None:
    logp = torch.tensor([-1.0, -51.0], requires_grad=True)
    found = kl_divergence(logp, torch.tensor([-51.0, -1.0]), estimator)  # type: ignore[arg-type]
    found.sum().backward()
    assert found.tolist() == value
    assert logp.grad.tolist() == slope


def test_kl_term_changes_loss_and_gradient() -> None:
    # Field fault 024: a KL that is always 0 has no gradient either.
    grads = []
    for coefficient in (0.0, 0.1):
        logp = torch.tensor([-1.0, -2.0], requires_grad=True)
        spec = defaults.loss(kl_coef=coefficient)
        loss_of(logp, logp.detach(), torch.tensor([1.0, -1.0]), spec, ref_T=torch.tensor([-1.5, -1.0])).backward()
        grads.append(logp.grad)
    assert not torch.equal(grads[0], grads[1])


def test_entropy_bonus_lowers_the_loss() -> None:
    logp, entropy = torch.tensor([-1.0, -2.0]), torch.tensor([0.5, 1.5])
    plain = loss_of(logp, logp, torch.zeros(2), NO_DUAL)
    spec = defaults.loss(clip_ratio_c=None, entropy_coeff=0.1)
    assert (plain - loss_of(logp, logp, torch.zeros(2), spec, entropy_T=entropy)).item() == pytest.approx(0.1)


def test_a_huge_log_ratio_is_clamped() -> None:
    logp = torch.tensor([0.0], requires_grad=True)
    value = loss_of(logp, torch.tensor([-1000.0]), torch.tensor([-1.0]), NO_DUAL)
    assert value.item() == pytest.approx(math.exp(20), rel=1e-5)


@pytest.mark.parametrize(
    ("mode", "denominator", "expected"),
    [
        # Field faults 010 and 013: lengths 2 and 8, token losses 1 and 0; the constant divisor is 8.
        ("token-mean", 10.0, 0.2),
        ("seq-mean-token-mean", 2.0, 0.5),
        ("seq-mean-token-sum", 2.0, 1.0),
        ("seq-mean-token-sum-norm", 16.0, 0.125),
    ],
)
@pytest.mark.parametrize("cut", [[[2, 8]], [[2], [8]]])
def test_aggregation_does_not_depend_on_how_rows_are_cut(
    mode: str, denominator: float, expected: float, cut: list[list[int]]
) -> None:
    total = 0.0
    for lengths in cut:
        weights = token_weights(torch.tensor(lengths), mode=mode, denominator=denominator)  # type: ignore[arg-type]
        total += sum(float(weight) * length * (length == 2) for weight, length in zip(weights, lengths, strict=True))
    assert total == pytest.approx(expected)


def test_constant_divisor_is_not_the_batch_maximum() -> None:
    # Field fault 013: lengths 2 and 4, every token loss 1, max_response_length 8.
    weights = token_weights(torch.tensor([2, 4]), mode="seq-mean-token-sum-norm", denominator=2 * 8)
    assert float(weights[0] * 2 + weights[1] * 4) == 0.375
