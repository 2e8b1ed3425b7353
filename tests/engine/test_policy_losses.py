"""Each policy loss against hand-worked numbers, and against a second implementation over padded matrices.

The second one is written as the papers write it, over whole sequences, and differentiated by autograd in float64.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rlctl.engine import update
from rlctl.engine.loss import log_ratio, policy_loss, row_means, token_weights
from rlctl.engine.model import wrap
from rlctl.types import LossSpec, TrainRow
from tests import defaults
from tests.engine.test_exactness import plain_logprobs, some_rows
from tests.tiny import build, tiny_config

LOSSES = ["vanilla", "sequence", "gspo", "cispo", "gmpo", "sapo", "gpg", "clip_cov", "kl_cov"]


def spec_of(name: str, **changes: object) -> LossSpec:
    own = "seq-mean-token-mean" if name in ("gspo", "gmpo", "sapo") else "token-mean"
    if name == "sequence":
        return defaults.loss(importance_sampling="sequence", **changes)
    return defaults.loss(policy_loss=name, **{"loss_agg_mode": own, **changes})


def flat_loss(
    logp: list[Tensor],
    old: list[Tensor],
    advantages: list[Tensor],
    spec: LossSpec,
    selected: list[Tensor] | None = None,
) -> Tensor:
    """The loss of whole rows by the engine's functions, in one piece."""
    lengths = torch.tensor([len(row) for row in logp])
    row_of_token = torch.repeat_interleave(torch.arange(len(logp)), lengths)
    denominator = float(lengths.sum()) if spec.loss_agg_mode == "token-mean" else float(len(logp))
    weights = token_weights(lengths, mode=spec.loss_agg_mode, denominator=denominator).double()[row_of_token]
    flat, flat_old, flat_advantages = torch.cat(logp), torch.cat(old), torch.cat(advantages)
    means = row_means(
        log_ratio(flat.detach(), flat_old),
        advantages_T=flat_advantages,
        row_of_token_T=row_of_token,
        lengths_R=lengths,
        spec=spec,
    )
    return policy_loss(
        flat,
        old_T=flat_old,
        advantages_T=flat_advantages,
        weights_T=weights,
        spec=spec,
        row_mean_T=means,
        selected_T=None if selected is None else torch.cat(selected),
    ).total


def one(name: str, ratios: list[float], advantage: float, **changes: object) -> tuple[float, list[float]]:
    """(loss, gradient by each log-prob times their number) of one completion, whose tokens have those ratios."""
    logp = torch.log(torch.tensor(ratios, dtype=torch.float64)).requires_grad_()
    full = torch.full_like(logp, advantage).detach()
    selected = [torch.zeros(len(ratios), dtype=torch.bool)] if name in ("clip_cov", "kl_cov") else None
    loss = flat_loss([logp], [torch.zeros_like(full)], [full], spec_of(name, **changes), selected)
    loss.backward()
    return loss.item(), (logp.grad * len(ratios)).tolist()


def test_gspo_clips_the_geometric_mean_of_the_ratios() -> None:
    # sqrt(2 * 0.5) = 1: inside, though each token is outside. The gradient of each token is -A s.
    assert one("gspo", [2.0, 0.5], 1.0) == (pytest.approx(-1.0), pytest.approx([-1.0, -1.0]))
    # sqrt(2 * 2) = 2 is cut to 1.2, and has no gradient.
    assert one("gspo", [2.0, 2.0], 1.0) == (pytest.approx(-1.2), [0.0, 0.0])


def test_gspo_has_no_dual_clip_and_the_ratio_of_completions_has() -> None:
    assert one("gspo", [5.0, 5.0], -1.0)[0] == pytest.approx(5.0)
    assert one("sequence", [5.0, 5.0], -1.0)[0] == pytest.approx(3.0)


def test_cispo_caps_the_weight_at_one_plus_high_and_cuts_no_gradient() -> None:
    # Loss -sg(min(r, 1.2)) A log p; the gradient is -1.2 A and not 0.
    loss, gradient = one("cispo", [2.0], 1.0)
    assert loss == pytest.approx(-1.2 * np.log(2))
    assert gradient == pytest.approx([-1.2])
    assert one("cispo", [0.5], 1.0)[1] == pytest.approx([-0.8])


def test_gmpo_is_the_geometric_mean_of_ratios_clipped_where_it_pays() -> None:
    # A > 0: log 2 is cut to 0.2, log 0.9 is not cut: exp((0.2 + log 0.9) / 2). The cut token has no gradient.
    loss, gradient = one("gmpo", [2.0, 0.9], 1.0)
    mean = np.exp((0.2 + np.log(0.9)) / 2)
    assert loss == pytest.approx(-mean)
    assert gradient == pytest.approx([0.0, -mean])
    # A < 0: the large ratio is not cut, the small one is.
    assert one("gmpo", [2.0, 0.5], -1.0)[0] == pytest.approx(np.exp((np.log(2) - 0.2) / 2))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_token_whose_weight_is_0_stays_in_gmpos_mean(advantage: float) -> None:
    # Inside both bounds, so the mean is sqrt(1.1 * 0.9); only the first token has a part in loss and gradient.
    logp = torch.log(torch.tensor([1.1, 0.9], dtype=torch.float64)).requires_grad_()
    weighed = advantage * torch.tensor([1.0, 0.0], dtype=torch.float64)
    loss = flat_loss([logp], [torch.zeros(2, dtype=torch.float64)], [weighed], spec_of("gmpo"))
    loss.backward()
    mean = np.sqrt(1.1 * 0.9)
    assert loss.item() == pytest.approx(-advantage * mean / 2)
    assert (logp.grad * 2).tolist() == pytest.approx([-advantage * mean, 0.0])


def test_sapo_has_the_policy_gradient_at_ratio_one() -> None:
    # 4/tau sigmoid(0) = 2/tau; the slope of the gate is sigmoid' * 4 = 1.
    assert one("sapo", [1.0], 1.0) == (pytest.approx(-2.0), pytest.approx([-1.0]))
    assert one("sapo", [1.0], -1.0) == (pytest.approx(2 / 1.05), pytest.approx([1.0]))


def test_policy_gradient_has_no_ratio() -> None:
    assert one("gpg", [3.0], 2.0) == (pytest.approx(-2 * np.log(3)), pytest.approx([-2.0]))


def test_selected_tokens_are_held_back() -> None:
    logp = torch.log(torch.tensor([1.1, 1.1], dtype=torch.float64)).requires_grad_()
    zeros, ones = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    selected = [torch.tensor([True, False])]
    flat_loss([logp], [zeros], [ones], spec_of("clip_cov"), selected).backward()
    assert logp.grad.tolist() == pytest.approx([0.0, -0.55])
    logp.grad = None
    loss = flat_loss([logp], [zeros], [ones], spec_of("kl_cov", ppo_kl_coef=0.5), selected)
    loss.backward()
    assert loss.item() == pytest.approx(-1.1 + 0.25 * np.log(1.1))
    assert logp.grad.tolist() == pytest.approx([-0.55 + 0.25, -0.55])


def test_kl_cov_holds_back_a_token_however_far_it_has_gone() -> None:
    # 25 nats up, where the ratio is bounded: the penalty pulls all the same, and there is nothing else.
    logp = torch.tensor([25.0], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(1, dtype=torch.float64)
    flat_loss([logp], [zero], [zero], spec_of("kl_cov", ppo_kl_coef=0.5), [torch.tensor([True])]).backward()
    assert logp.grad.tolist() == [0.5]


def naive(
    name: str, logp: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, spec: LossSpec, selected: Tensor
) -> Tensor:
    """[B, T] of all, over whole sequences, as the papers have it."""
    ratio = (logp - old).exp()
    lengths = mask.sum(1)
    low, high = 1 - spec.clip_ratio_low, 1 + spec.clip_ratio_high

    def clipped(r: Tensor, a: Tensor) -> Tensor:
        return torch.maximum(-a * r, -a * r.clamp(low, high))

    if name in ("gspo", "sequence"):
        # The paper's own form, differentiated through the mean; each token's advantage is its row's.
        s = (((logp - old) * mask).sum(1) / lengths).exp()
        loss = clipped(s, advantage[:, 0])
        if name == "gspo":
            return loss.mean()
        loss = torch.where(advantage[:, 0] < 0, torch.minimum(loss, -advantage[:, 0] * spec.clip_ratio_c), loss)
        return (loss * lengths).sum() / lengths.sum()
    if name == "gmpo":
        sign = advantage.sign()
        inside = (logp - old).clamp(-spec.clip_ratio_low, spec.clip_ratio_high)
        kept = sign * torch.minimum(sign * (logp - old), sign * inside)
        return (-advantage[:, 0] * ((kept * mask).sum(1) / lengths).exp()).mean()
    if name == "sapo":
        tau = torch.where(advantage > 0, spec.tau_pos, spec.tau_neg)
        loss = -advantage * 4 / tau / (1 + (-tau * (ratio - 1)).exp())
        return ((loss * mask).sum(1) / lengths).mean()
    if name == "vanilla":
        loss = clipped(ratio, advantage)
        loss = torch.where(advantage < 0, torch.minimum(loss, -advantage * spec.clip_ratio_c), loss)
    elif name == "cispo":
        loss = -ratio.clamp(low, high).detach() * advantage * logp
    elif name == "gpg":
        loss = -advantage * logp
    elif name == "clip_cov":
        loss = clipped(ratio, advantage) * ~selected
    else:
        loss = -advantage * ratio + selected * spec.ppo_kl_coef * (logp - old).abs()
    return (loss * mask).sum() / mask.sum()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_equal_a_second_implementation(name: str, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)

    def normal(*size: int, scale: float) -> Tensor:
        return torch.randn(*size, generator=draw, dtype=torch.float64) * scale

    rows, width = 5, 7
    lengths = torch.randint(1, width + 1, (rows,), generator=draw)
    mask = torch.arange(width) < lengths[:, None]
    old = normal(rows, width, scale=1.0) - 3
    logp = old + normal(rows, width, scale=0.3)
    advantage = normal(rows, 1, scale=1.0).expand(rows, width)
    selected = torch.rand(rows, width, generator=draw) < 0.3
    spec = spec_of(name, ppo_kl_coef=0.7)

    padded = logp.clone().requires_grad_()
    expected = naive(name, padded, old, advantage, mask.double(), spec, selected)
    expected.backward()
    ragged = logp.clone().requires_grad_()
    wanted = [selected[i, :n] for i, n in enumerate(lengths)] if name in ("clip_cov", "kl_cov") else None
    cut = [[x[i, :n] for i, n in enumerate(lengths)] for x in (ragged, old, advantage)]
    loss = flat_loss(cut[0], cut[1], cut[2], spec, wanted)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(ragged.grad, padded.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_engine_gradients_do_not_depend_on_packing_nor_tiles(name: str) -> None:
    # The logits of a row come in several tiles, its siblings in several micro-batches; the naive loss knows of neither.
    model = build(tiny_config())
    draw = np.random.default_rng(3)
    rows: list[TrainRow] = []
    for row in some_rows(260):
        logp = plain_logprobs(model, row).detach().numpy()
        old = logp + draw.normal(0, 0.3, len(logp)).astype(np.float32)
        selected = draw.random(len(logp)) < 0.4 if name in ("clip_cov", "kl_cov") else None
        rows.append(TrainRow(row.prompt_ids, row.completion_ids, row.advantage, old, old, selected=selected))
    spec = spec_of(name)
    tokens = sum(len(row.completion_ids) for row in rows)
    denominator = float(tokens if spec.loss_agg_mode == "token-mean" else len(rows))

    width = max(len(row.completion_ids) for row in rows)
    logp, old, advantage, mask, chosen = (torch.zeros(len(rows), width) for _ in range(5))
    for i, row in enumerate(rows):
        n = len(row.completion_ids)
        logp[i, :n] = plain_logprobs(model, row)
        old[i, :n] = torch.from_numpy(row.old_logprobs)
        advantage[i] = row.advantage
        mask[i, :n] = 1
        if row.selected is not None:
            chosen[i, :n] = torch.from_numpy(row.selected).float()
    expected = naive(name, logp, old, advantage, mask, spec, chosen.bool())
    expected.backward()
    naive_gradient = torch.cat([p.grad.flatten() for p in model.parameters()])

    for max_tokens, tile in ((10_000, None), (40, 4), (15, 3)):
        model.zero_grad()
        compute = defaults.compute(max_tokens=max_tokens, tile_tokens=tile)
        stats = update.forward_backward(wrap(model), rows, loss=spec, loss_denominator=denominator, compute=compute)
        ours = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert stats.loss == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
        assert (ours - naive_gradient).abs().max() <= 1e-4 * naive_gradient.abs().max() + 1e-7


@pytest.mark.parametrize("name", ["gspo", "gmpo", "sequence"])
def test_losses_of_whole_rows_need_no_old_log_probs_for_one_update(name: str) -> None:
    # Before the first update every ratio is 1: the same gradient as with old log-probs that are the current ones.
    policy, spec, gradients = wrap(build(tiny_config())), spec_of(name), []
    rows = some_rows(260)
    scored = [
        row.with_old(old)
        for row, old in zip(rows, update.log_probs(policy, rows, compute=defaults.compute()), strict=True)
    ]
    for given in (rows, scored):
        policy.causal_lm.zero_grad()
        compute = defaults.compute(max_tokens=40, tile_tokens=4)
        update.forward_backward(policy, given, loss=spec, loss_denominator=5.0, compute=compute)
        gradients.append(torch.cat([p.grad.flatten() for p in policy.causal_lm.parameters()]))
    assert (gradients[0] - gradients[1]).abs().max() <= 1e-4 * gradients[1].abs().max()


def test_advantages_of_single_tokens_weigh_them() -> None:
    policy, gradients = wrap(build(tiny_config())), []
    row = some_rows(260)[0]
    for own in (None, np.full(len(row.completion_ids), row.advantage, np.float32)):
        policy.causal_lm.zero_grad()
        given = [
            TrainRow(row.prompt_ids, row.completion_ids, row.advantage, row.rollout_logprobs, token_advantages=own)
        ]
        update.forward_backward(policy, given, loss=defaults.loss(), loss_denominator=4.0, compute=defaults.compute())
        gradients.append(torch.cat([p.grad.flatten() for p in policy.causal_lm.parameters()]))
    assert torch.equal(*gradients)
    first = np.zeros(len(row.completion_ids), np.float32)
    first[0] = row.advantage
    policy.causal_lm.zero_grad()
    alone = TrainRow(row.prompt_ids, row.completion_ids[:1], row.advantage, row.rollout_logprobs[:1])
    masked = TrainRow(row.prompt_ids, row.completion_ids, row.advantage, row.rollout_logprobs, token_advantages=first)
    update.forward_backward(policy, [alone], loss=defaults.loss(), loss_denominator=4.0, compute=defaults.compute())
    expected = torch.cat([p.grad.flatten() for p in policy.causal_lm.parameters()])
    policy.causal_lm.zero_grad()
    update.forward_backward(policy, [masked], loss=defaults.loss(), loss_denominator=4.0, compute=defaults.compute())
    found = torch.cat([p.grad.flatten() for p in policy.causal_lm.parameters()])
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
