"""The pieces of attention on a CPU, by tiles and by matrix units, against one masked softmax in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlctl.engine import attention_tiles, flash_amx
from rlctl.engine.flash import Piece

WAYS = ["float32 tiles", "bfloat16 tiles", "bfloat16 amx"]

runs_of = st.lists(st.tuples(st.integers(1, 150), st.integers(1, 290)), min_size=1, max_size=4)
shapes = st.sampled_from([(9, 3, 64), (4, 4, 32), (4, 1, 128), (4, 2, 40), (2, 2, 8)])


def skip_without_units(way: str) -> None:
    if way.endswith("amx") and not flash_amx.available():
        pytest.skip("this processor has no matrix units")


def piece(way: str, q_lengths: list[int], k_lengths: list[int], *, causal: bool, q_start: int = 0) -> Piece:
    q, k = np.array(q_lengths), np.array(k_lengths)
    if causal:
        tiles: Piece = attention_tiles.Causal(q, num_prompts=1, device=torch.device("cpu"))
    else:
        tiles = attention_tiles.Across(q, k, q_start=q_start)
    if way.endswith("tiles"):
        return tiles
    return flash_amx.Runs(q, k, causal=causal, q_start=q_start, other_types=tiles)


def plain(q: Tensor, k: Tensor, v: Tensor, runs: list[tuple[int, int]], *, causal: bool) -> tuple[Tensor, Tensor]:
    """Outcome and log-sum-exp of each run, masked, one after the other."""
    outs, sums, first_q, first_k = [], [], 0, 0
    for queries, keys in runs:
        mine = slice(first_k, first_k + keys)
        wide_k, wide_v = (x[mine].repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[first_q : first_q + queries], wide_k) * 0.2
        if causal:
            scores = scores.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1), float("-inf"))
        outs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), wide_v))
        sums.append(scores.logsumexp(-1).T)
        first_q, first_k = first_q + queries, first_k + keys
    return torch.cat(outs), torch.cat(sums)


def far(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm().clamp(min=1e-3))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("causal", [True, False])
@given(runs=runs_of, shape=shapes, seed=st.integers(0, 9), scale=st.sampled_from([0.1, 1.0, 3.0]))
@settings(max_examples=15)
def test_a_piece_is_one_masked_softmax_with_its_gradient(
    way: str, causal: bool, runs: list[tuple[int, int]], shape: tuple[int, int, int], seed: int, scale: float
) -> None:
    skip_without_units(way)
    heads, key_heads, width = shape
    runs = [(q, q) for q, _ in runs] if causal else runs
    q_lengths, k_lengths = [q for q, _ in runs], [k for _, k in runs]
    total = max(sum(q_lengths), sum(k_lengths))
    made = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, way.split()[0])
    # q, k and v are views of one product, as in a decoder.
    joined = (torch.randn(total, heads + 2 * key_heads, width, generator=made) * scale).to(dtype)
    q, k, v = torch.split(joined, [heads, key_heads, key_heads], dim=1)
    q, k, v = q[: sum(q_lengths)], k[: sum(k_lengths)], v[: sum(k_lengths)]
    grad = torch.randn(q.shape, generator=made).to(dtype)

    wide: list[Any] = [x.double().requires_grad_() for x in (q, k, v)]
    exact, exact_lse = plain(*wide, runs, causal=causal)
    exact_grads = torch.autograd.grad(exact, wide, grad.double())

    computed = piece(way, q_lengths, k_lengths, causal=causal)
    out, lse = computed.forward(q, k, v, 0.2)
    # Three roundings to bfloat16 of 2^-9 each, of weights, of their gradients and of the outcome.
    bound = 1e-5 if dtype == torch.float32 else 0.012
    assert far(out, exact.detach()) < bound
    torch.testing.assert_close(lse.double(), exact_lse.detach(), atol=1e-4, rtol=1e-5)
    # The gradient by a score is weight * (grad . v - grad . out), a difference of rounded terms; a key sums over rows.
    rounding = 2**-17 if dtype == torch.float32 else 2**-7
    terms = 0.2 * (width * len(q)) ** 0.5 * scale * float(max(q.abs().max(), k.abs().max(), 1.0))
    for ours, theirs in zip(computed.backward(grad, q, k, v, out, lse, 0.2), exact_grads, strict=True):
        largest = float(theirs.abs().max())
        assert float((ours.double() - theirs).abs().max()) < rounding * (8 * largest + terms)


@pytest.mark.parametrize("way", WAYS)
def test_queries_may_begin_later_and_a_run_may_be_empty(way: str) -> None:
    skip_without_units(way)
    dtype = getattr(torch, way.split()[0])
    q, k, v = (torch.randn(60, 2, 32).to(dtype) for _ in range(3))
    computed = piece(way, [0, 30, 20], [15, 5, 10], causal=False, q_start=10)
    out, lse = computed.forward(q, k, v, 0.2)
    exact, exact_lse = plain(q[10:].double(), k[15:30].double(), v[15:30].double(), [(30, 5), (20, 10)], causal=False)
    assert far(out, exact) < 0.01
    torch.testing.assert_close(lse.double(), exact_lse, atol=1e-4, rtol=1e-5)
    whole_out, whole_lse = torch.zeros_like(q), torch.zeros(60, 2)
    whole_out[10:], whole_lse[10:] = out, lse
    grad_q, grad_k, grad_v = computed.backward(torch.ones_like(q), q, k, v, whole_out, whole_lse, 0.2)
    assert grad_q.shape == out.shape
    assert len(grad_k) == len(grad_v) == 30
    assert not grad_k[:15].any()  # nobody asked the keys of the empty run
    assert not grad_v[:15].any()
    assert grad_v[15:].any()


@pytest.mark.parametrize("way", WAYS)
def test_a_key_after_a_query_has_no_effect_on_it(way: str) -> None:
    skip_without_units(way)
    dtype = getattr(torch, way.split()[0])
    q, k, v = (torch.randn(70, 2, 32).to(dtype) for _ in range(3))
    computed = piece(way, [70], [70], causal=True)
    before = computed.forward(q, k, v, 0.2)[0]
    k[40:], v[40:] = 50.0, -50.0
    after = computed.forward(q, k, v, 0.2)[0]
    assert torch.equal(before[:40], after[:40])
    assert not torch.equal(before[40:], after[40:])


@pytest.mark.parametrize("way", WAYS)
def test_attention_repeats_bit_for_bit(way: str) -> None:
    skip_without_units(way)
    dtype = getattr(torch, way.split()[0])
    q, k, v = (torch.randn(300, heads, 64).to(dtype) for heads in (6, 2, 2))
    computed = piece(way, [300], [200], causal=False)
    results = []
    for _ in range(3):
        out, lse = computed.forward(q, k, v, 0.2)
        results.append((out, lse, *computed.backward(q, q, k, v, out, lse, 0.2)))
    assert all(torch.equal(a, b) for again in results[1:] for a, b in zip(results[0], again, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_a_score_that_is_not_finite_is_seen(way: str) -> None:
    skip_without_units(way)
    dtype = getattr(torch, way.split()[0])
    q, k, v = (torch.randn(40, 2, 32).to(dtype) for _ in range(3))
    q[7, 1, 3] = float("nan")
    out, lse = piece(way, [40], [40], causal=True).forward(q, k, v, 0.2)
    assert torch.isnan(out[7, 1]).all()
    assert torch.isfinite(out[6]).all()
    assert torch.isfinite(lse[8]).all()


def test_without_the_units_tiles_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlctl.engine import flash
    from rlctl.engine.packing import pack_prompts

    monkeypatch.setattr(flash_amx, "available", lambda: False)
    made = flash.pieces(pack_prompts([np.arange(5, dtype=np.int32)]), torch.device("cpu"))
    assert isinstance(made.itself, attention_tiles.Causal)
