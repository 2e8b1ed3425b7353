"""The work beside which runs are timed: of any model's sizes, always the same, within bounds of memory."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from rlctl.engine.reference import LARGEST_TRAINED, TRAINED_LAYERS, Reference, Trained

CPU = torch.device("cpu")


def sizes(hidden: int, inner: int, vocabulary: int) -> LlamaConfig:
    return LlamaConfig(hidden_size=hidden, intermediate_size=inner, vocab_size=vocabulary, num_attention_heads=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", [1, 24, 48, 192])
def test_it_is_made_of_any_sizes(hidden: int, dtype: torch.dtype) -> None:
    reference = Reference(sizes(hidden, 3 * hidden, 7), device=CPU, dtype=dtype)
    reference.work(2, like="sampling")
    reference.work(2, like="update")


def test_an_update_does_the_same_work_however_often_it_is_done() -> None:
    trained = Trained(heads=2, hidden=64, inner=96, vocabulary=50, device=CPU, dtype=torch.float32)
    before = [weight.detach().clone() for weight in trained._weights]
    losses = set()
    for _ in range(3):
        trained.step()
        losses.add(round(trained._loss().item(), 4))
    assert len(losses) == 1
    assert all(torch.allclose(was, now, atol=1e-6) for was, now in zip(before, trained._weights, strict=True))
    assert not any(torch.equal(was, now) for was, now in zip(before, trained._masters, strict=True))  # it has learnt
    assert all(weight.grad is None for weight in trained._weights)


def test_the_small_model_stays_small_beside_a_large_one() -> None:
    trained = Trained.of_sizes(sizes(8192, 28672, 152_000), device=CPU, dtype=torch.bfloat16)
    hidden, inner, vocabulary = LARGEST_TRAINED.values()
    num_weights = vocabulary * hidden + TRAINED_LAYERS * (4 * hidden**2 + 3 * hidden * inner)
    assert sum(weight.numel() for weight in trained._weights) == num_weights
    # Beside each weight its gradient, in both dtypes, the master and two moments.
    assert num_weights * (2 + 2 + 4 + 4 + 4 + 4) < 250e6
