"""The engine against plain transformers: log-probs, sampling and the gradient of a whole GRPO update."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rlctl.engine import sampler, update
from rlctl.engine.attention import SHARED_PREFIX
from rlctl.engine.model import Policy, check_exact, wrap
from rlctl.errors import ModelError
from rlctl.types import LossSpec, Prompt, Sampling, TrainRow
from tests import defaults
from tests.tiny import build, tiny_config

REFUSED = {"gemma-2-2b-it"}
"""Soft-capped attention and logits, which the engine does not compute."""
FAMILIES = [
    "Llama-3.2-1B-Instruct", "Llama-3.2-3B-Instruct", "Mistral-7B-Instruct-v0.3", "OLMo-2-1124-7B-Instruct",
    "Olmo-3.1-32B-Instruct", "Phi-3-mini-4k-instruct", "Phi-4-mini-instruct", "Qwen2.5-7B-Instruct", "Qwen3-0.6B",
    "Qwen3-8B", "SmolLM2-135M-Instruct", "SmolLM3-3B", "gemma-3-1b-it", "phi-2", "phi-4",
]  # fmt: skip


def family(shared: Path, name: str, **overrides: Any) -> nn.Module:
    from transformers import AutoConfig

    config = json.loads((shared / "data/model_configs" / f"{name}.json").read_text())
    return build(AutoConfig.for_model(**{**config, **overrides}))


def some_rows(vocab: int, *, lengths: tuple[int, ...] = (4, 1, 6, 3, 9), seed: int = 0) -> list[TrainRow]:
    """Two groups with prompts of 21 and 3 tokens (the shrunk models' windows are 8), and rows of those lengths."""
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(0, vocab, length, dtype=np.int32) for length in (21, 3)]
    rows = []
    for i, length in enumerate(lengths):
        own = draw.integers(0, vocab, length, dtype=np.int32)
        rows.append(TrainRow(prompts[i % 2], own, float(draw.normal()), np.zeros(length, np.float32)))
    return rows


def plain_logprobs(model: Any, row: TrainRow, temperature: float = 1.0) -> torch.Tensor:
    """By transformers' own attention, one row at a time, no padding."""
    model.set_attn_implementation("eager")
    try:
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.completion_ids]).astype(np.int64))
        logp = (model(input_ids=ids[None], use_cache=False).logits[0].float() / temperature).log_softmax(-1)
        start = len(row.prompt_ids)
        return logp[start - 1 : -1].gather(1, ids[start:, None])[:, 0]
    finally:
        model.set_attn_implementation(SHARED_PREFIX)


@pytest.mark.parametrize("name", FAMILIES)
def test_logprobs_equal_a_plain_forward(shared: Path, name: str) -> None:
    model = family(shared, name)
    rows = some_rows(512)
    ours = update.log_probs(wrap(model), rows, compute=defaults.compute(max_tokens=40))
    for row, mine in zip(rows, ours, strict=True):
        with torch.no_grad():
            expected = plain_logprobs(model, row)
        np.testing.assert_allclose(mine, expected.numpy(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_family_that_does_more_than_the_engine_is_refused(shared: Path, name: str) -> None:
    with pytest.raises(ModelError, match="does not compute"):
        check_exact(wrap(family(shared, name)), name)


def test_a_scaled_head_is_refused_by_the_check_at_load() -> None:
    model = build(tiny_config())
    policy = wrap(model)
    plain_head = model.lm_head.forward
    model.lm_head.forward = lambda hidden: plain_head(hidden) * 0.5
    with pytest.raises(ModelError, match=r"differ from transformers' by"):
        check_exact(policy, "scaled")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["Llama-3.2-1B-Instruct", "Qwen2.5-7B-Instruct", "Qwen3-0.6B", "SmolLM3-3B"])
def test_gradient_of_an_update_equals_a_naive_padded_one(shared: Path, name: str, tied: bool) -> None:
    model = family(shared, name, tie_word_embeddings=tied)
    draw = np.random.default_rng(1)  # old log-probs so far off that some tokens are clipped on either side
    loss = defaults.loss(kl_coef=0.05, entropy_coeff=0.01)
    rows = [
        row.with_old(lp + draw.normal(0, 0.3, len(lp)).astype(np.float32)).with_reference(lp - 0.2)
        for row in some_rows(512)
        for lp in [plain_logprobs(model, row, 0.8).detach().numpy()]
    ]
    denominator = float(sum(len(row.completion_ids) for row in rows))
    compute = defaults.compute(temperature=0.8, max_tokens=40, tile_tokens=4)
    stats = update.forward_backward(wrap(model), rows, loss=loss, loss_denominator=denominator, compute=compute)
    ours = {key: p.grad.clone() for key, p in model.named_parameters()}
    model.zero_grad()
    expected = naive_padded_loss(model, rows, loss, temperature=0.8)
    expected.backward()
    assert stats.loss == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    assert 0 < stats.clipped_tokens < stats.tokens
    for key, p in model.named_parameters():
        scale = p.grad.abs().max()
        assert (ours[key] - p.grad).abs().max() <= 1e-4 * scale, key


def naive_padded_loss(model: Any, rows: list[TrainRow], loss: LossSpec, *, temperature: float) -> torch.Tensor:
    """The textbook way: right-padded batch, whole logits, token mean over the mask."""
    model.set_attn_implementation("eager")
    sequences = [np.concatenate([row.prompt_ids, row.completion_ids]) for row in rows]
    width = max(map(len, sequences))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    attention, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width)
    old, ref, advantage = (torch.zeros(len(rows), width) for _ in range(3))
    for i, (row, sequence) in enumerate(zip(rows, sequences, strict=True)):
        start, end = len(row.prompt_ids), len(sequence)
        ids[i, :end] = torch.from_numpy(sequence.astype(np.int64))
        attention[i, :end] = 1
        mask[i, start:end] = 1 if row.policy_mask is None else torch.from_numpy(row.policy_mask).float()
        old[i, start:end] = torch.from_numpy(row.old_logprobs)
        ref[i, start:end] = torch.from_numpy(row.ref_logprobs)
        advantage[i, start:end] = row.advantage
    logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits.float() / temperature
    model.set_attn_implementation(SHARED_PREFIX)
    logp = logits[:, :-1].log_softmax(-1)
    mask, old, ref, advantage = (x[:, 1:] for x in (mask, old, ref, advantage))
    token = logp.gather(2, ids[:, 1:, None])[..., 0]
    entropy = -(logp.exp() * logp).sum(-1)
    ratio = (token - old).exp()
    clipped = ratio.clamp(1 - loss.clip_ratio_low, 1 + loss.clip_ratio_high)
    pg = torch.maximum(-advantage * ratio, -advantage * clipped)
    pg = torch.where(advantage < 0, torch.minimum(pg, -advantage * loss.clip_ratio_c), pg)
    kl = (ref - token).exp() - 1 - (ref - token)
    return ((pg + loss.kl_coef * kl - loss.entropy_coeff * entropy) * mask).sum() / mask.sum()


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    completions=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=9),
    max_tokens=st.integers(1, 200),
    tile=st.integers(1, 50),
    order=st.randoms(use_true_random=False),
)
def test_any_shape_and_order_of_groups_gives_the_naive_gradient(
    prompts: list[int], completions: list[tuple[int, int]], max_tokens: int, tile: int, order: random.Random
) -> None:
    draw = np.random.default_rng(sum(prompts))
    ids = [draw.integers(0, 260, length, dtype=np.int32) for length in prompts]
    model = build(tiny_config())
    rows = []
    for group, length in completions:
        own = draw.integers(0, 260, length, dtype=np.int32)
        row = TrainRow(ids[group % len(ids)], own, float(draw.normal()), np.zeros(length, np.float32))
        logp = plain_logprobs(model, row).detach().numpy()
        rows.append(row.with_old(logp + draw.normal(0, 0.2, length).astype(np.float32)).with_reference(logp))
    loss = defaults.loss()
    expected = naive_padded_loss(model, rows, loss, temperature=1.0)
    expected.backward()
    naive = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    order.shuffle(rows)
    compute = defaults.compute(max_tokens=max_tokens, tile_tokens=tile)
    tokens = float(sum(len(row.completion_ids) for row in rows))
    stats = update.forward_backward(wrap(model), rows, loss=loss, loss_denominator=tokens, compute=compute)
    ours = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert stats.loss == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    assert (ours - naive).abs().max() <= 1e-4 * naive.abs().max() + 1e-7


def test_bfloat16_differs_from_float32_by_its_rounding() -> None:
    # Two layers, each rounding to 8 bits: measured 0.02 nats and 1 % of the gradient; twice that is allowed.
    rows = some_rows(260, lengths=(40, 30, 35, 20))
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        policy = wrap(build(tiny_config()).to(dtype))
        logp = np.concatenate(update.log_probs(policy, rows, compute=defaults.compute()))
        update.forward_backward(
            policy, rows, loss=defaults.loss(), loss_denominator=100.0, compute=defaults.compute(tile_tokens=16)
        )
        grads = [p.grad.float().flatten() for p in policy.causal_lm.parameters() if p.grad is not None]
        results.append((logp, torch.cat(grads)))
    (logp, grad), (rounded_logp, rounded_grad) = results
    assert np.abs(rounded_logp - logp).max() < 0.04
    assert (rounded_grad - grad).norm() < 0.02 * grad.norm()


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_gradient_does_not_depend_on_the_cut_nor_on_tiling(mode: str) -> None:
    # Field faults 010 and 012: also with a last window that is not full.
    rows = some_rows(260, lengths=(4, 1, 6, 3, 9, 2, 5))
    grads = []
    for max_tokens, tile in ((1000, None), (14, 3), (1, 1000)):
        model = build(tiny_config())
        compute = defaults.compute(max_tokens=max_tokens, tile_tokens=tile)
        update.forward_backward(
            wrap(model), rows, loss=defaults.loss(loss_agg_mode=mode), loss_denominator=7.0, compute=compute,  # type: ignore[arg-type]
        )  # fmt: skip
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for other in grads[1:]:
        torch.testing.assert_close(grads[0], other, rtol=1e-4, atol=1e-6)


def test_logprobs_do_not_depend_on_what_else_is_in_the_batch() -> None:
    # Field faults 027 and 033: no padding token is ever attended to.
    policy = wrap(build(tiny_config()))
    rows = some_rows(260)
    together = update.log_probs(policy, rows, compute=defaults.compute())
    for row, mine in zip(rows, together, strict=True):
        (alone,) = update.log_probs(policy, [row], compute=defaults.compute())
        np.testing.assert_allclose(mine, alone, atol=1e-5)


def test_each_token_is_scored_by_the_position_before_it() -> None:
    # Field fault 034. A model that is sure of id + 1 behind every id: its layers add nothing, and its head knows the
    # embedding of the id before.
    model = build(tiny_config(tie_word_embeddings=False))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
        embedded = model.get_input_embeddings().weight
        embedded.normal_()
        model.get_output_embeddings().weight.copy_(1e3 * torch.nn.functional.normalize(embedded).roll(1, dims=0))
    rows = [
        TrainRow(np.array([1, 2], np.int32), np.array(ids, np.int32), 1.0, np.zeros(len(ids), np.float32))
        for ids in ([3, 4, 5], [3], [4], [2])
    ]
    sure, one, *shifted = update.log_probs(wrap(model), rows, compute=defaults.compute())
    assert (sure.tolist(), one.tolist()) == ([0.0] * 3, [0.0])
    assert all(logp[0] < -50 for logp in shifted)


def test_two_passes_are_bitwise_equal_even_with_dropout_in_the_config() -> None:
    # Field fault 031.
    policy = wrap(build(tiny_config(attention_dropout=0.5)))
    rows = some_rows(260)
    first, second = (update.log_probs(policy, rows, compute=defaults.compute()) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_rows_without_completion_tokens_have_no_loss_and_break_nothing() -> None:
    # Field fault 015.
    policy = wrap(build(tiny_config()))
    empty = TrainRow(np.array([1, 2], np.int32), np.zeros(0, np.int32), 1.0, np.zeros(0, np.float32))
    alone = update.forward_backward(
        policy, [empty], loss=defaults.loss(), loss_denominator=1.0, compute=defaults.compute()
    )
    assert (alone.loss, alone.tokens) == (0.0, 0)
    beside = update.forward_backward(
        policy, [empty, *some_rows(260)], loss=defaults.loss(), loss_denominator=1.0, compute=defaults.compute()
    )
    assert beside.rows == 5
    assert len(update.log_probs(policy, [empty, *some_rows(260)], compute=defaults.compute())[0]) == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_sampled_logprobs_are_the_trainers(shared: Path, name: str) -> None:
    # Sliding windows of 4 to 8 tokens, grouped keys, layers without rope: decoding goes its own way through all.
    policy = wrap(family(shared, name))
    limit = 30 if name == "Phi-4-mini-instruct" else 60  # above 64 positions its rotary scaling switches
    rows = sampled_rows(policy, defaults.sampling(temperature=0.7, max_new_tokens=limit), n=3)
    scored = update.log_probs(policy, rows, compute=defaults.compute(temperature=0.7))
    for row, mine in zip(rows, scored, strict=True):
        np.testing.assert_allclose(row.rollout_logprobs, mine, atol=1e-4)


def sampled_rows(policy: Policy, sampling: Sampling, *, n: int) -> list[TrainRow]:
    prompts = [Prompt(np.arange(3, 3 + length, dtype=np.int32), length) for length in (7, 2)]
    groups, _ = sampler.generate(
        policy, prompts, n=n, sampling=sampling, end_token_ids=[2], limits=sampler.Limits(1e9, 256)
    )
    return [
        TrainRow(prompt.token_ids, c.token_ids, 1.0, c.logprobs)
        for prompt, group in zip(prompts, groups, strict=True)
        for c in group
    ]


@pytest.mark.parametrize("name", [*FAMILIES, *sorted(REFUSED)])
def test_flop_formula_counts_the_weights_that_are_there_or_says_why_not(shared: Path, name: str) -> None:
    policy = wrap(family(shared, name))
    if policy.shape is None:
        assert "sliding" in policy.shape_note
    else:
        decoder: Any = policy.decoder
        counted = sum(m.weight.numel() for m in decoder.modules() if isinstance(m, nn.Linear))
        assert policy.shape.body_parameters == counted


def test_statistics_of_an_update_by_hand() -> None:
    policy = wrap(build(tiny_config()))
    draw = np.random.default_rng(2)
    plain = some_rows(260)
    now = update.log_probs(policy, plain, compute=defaults.compute())
    # All old log-probs are larger, so every ratio is below 1: the largest deviation is a negative one.
    old = [lp + np.abs(draw.normal(0, 0.3, len(lp))).astype(np.float32) for lp in now]
    rows = [replace(row.with_old(o), rollout_logprobs=lp - 0.5) for row, o, lp in zip(plain, old, now, strict=True)]
    stats = update.forward_backward(
        policy, rows, loss=defaults.loss(), loss_denominator=1.0, compute=defaults.compute()
    )
    new, before = np.concatenate(now), np.concatenate(old)
    gap = np.exp(new) - np.exp(new - 0.5)
    assert stats.ppo_kl_sum == pytest.approx((before - new).sum(), rel=1e-4)
    assert stats.max_ratio_deviation == pytest.approx(np.abs(np.exp(new - before) - 1).max(), rel=1e-4)
    assert stats.rollout_probs_diff_sum == pytest.approx(gap.sum(), rel=1e-4)
    assert stats.rollout_probs_diff_max == pytest.approx(gap.max(), rel=1e-4)
    assert stats.entropy_sum == pytest.approx(sum(plain_entropy(policy.causal_lm, row) for row in rows), rel=1e-4)
    assert 0 < stats.entropy_sum < stats.tokens * np.log(260)
    assert stats.tokens_delivered == sum(len(r.prompt_ids) + len(r.completion_ids) for r in rows)
    assert stats.tokens_computed == 21 + 3 + stats.tokens


def plain_entropy(model: Any, row: TrainRow) -> float:
    model.set_attn_implementation("eager")
    try:
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.completion_ids]).astype(np.int64))
        with torch.no_grad():
            logp = model(input_ids=ids[None], use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)
        return float(-(logp.exp() * logp).sum())
    finally:
        model.set_attn_implementation(SHARED_PREFIX)
