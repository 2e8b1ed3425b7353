"""Gradient checkpointing and torch.compile change no result beyond rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlctl.engine import prepacked, sampler, update
from rlctl.engine.checkpointing import checkpoint_layers
from rlctl.engine.compiling import compile_layers
from rlctl.engine.model import wrap
from rlctl.errors import ModelError
from rlctl.types import Prompt
from tests import defaults
from tests.engine.test_exactness import some_rows
from tests.tiny import build, tiny_config


def windowed() -> Any:
    """A model whose attention does not reach back to the start of the rows."""
    from transformers import MistralConfig

    return build(
        MistralConfig(
            vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=512, sliding_window=16,
        )
    )  # fmt: skip


def gradient(*options: str, model: Any = None, kernels: bool = False) -> tuple[torch.Tensor, int]:
    """(all gradients, bytes of activations kept for the backward pass)"""
    model = model or build(tiny_config())
    policy = wrap(model)
    policy = policy if kernels else replace(policy, llama=None)
    if "compile" in options:
        compile_layers(policy)
    if "checkpointing" in options:
        policy = checkpoint_layers(policy)
    kept: dict[int, int] = {}

    def count(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        update.forward_backward(
            policy, some_rows(260, lengths=(90, 80, 70, 60)), loss=defaults.loss(), loss_denominator=9.0,
            compute=defaults.compute(),
        )  # fmt: skip
    return torch.cat([p.grad.flatten() for p in model.parameters()]), sum(kept.values())


@pytest.mark.parametrize("kernels", [False, True])
def test_checkpointing_keeps_less_and_gives_the_same_gradient(kernels: bool) -> None:
    plain, checkpointed = gradient(kernels=kernels), gradient("checkpointing", kernels=kernels)
    torch.testing.assert_close(checkpointed[0], plain[0], rtol=1e-5, atol=1e-6)
    assert checkpointed[1] < plain[1] / 3


def test_layers_with_kernels_keep_about_half_of_what_autograd_keeps() -> None:
    plain, with_kernels = gradient(), gradient(kernels=True)
    torch.testing.assert_close(with_kernels[0], plain[0], rtol=1e-4, atol=1e-6)
    assert with_kernels[1] < 0.6 * plain[1]


@pytest.mark.parametrize("options", [("compile",), ("compile", "checkpointing")])
def test_compiled_layers_give_the_same_gradient(options: tuple[str, ...]) -> None:
    torch._dynamo.reset()
    torch.testing.assert_close(gradient(*options)[0], gradient()[0], rtol=1e-4, atol=1e-6)


def test_compiled_layers_with_a_window_that_cuts_are_refused() -> None:
    torch._dynamo.reset()
    with pytest.raises(ModelError, match="no sliding window") as error:
        gradient("compile", model=windowed())
    assert "local.compile = false" in (error.value.hint or "")


def test_one_graph_serves_all_layers_and_lengths() -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    model = build(tiny_config(num_hidden_layers=5))
    policy = replace(wrap(model), llama=None)
    compile_layers(policy)
    counters.clear()
    for lengths in ((4, 9, 5), (20, 3), (7, 7, 7, 30)):
        rows = some_rows(260, lengths=lengths)
        update.forward_backward(policy, rows, loss=defaults.loss(), loss_denominator=9.0, compute=defaults.compute())
    assert counters["stats"]["unique_graphs"] <= 2


def sampled(model: Any, *, n: int = 3) -> list[Any]:
    groups, _ = sampler.generate(
        wrap(model), [Prompt(np.arange(3, 3 + length, dtype=np.int32), length) for length in (7, 2, 12)], n=n,
        sampling=defaults.sampling(max_new_tokens=12), end_token_ids=[2], limits=sampler.Limits(1e9, 6),
    )  # fmt: skip
    return [completion for group in groups for completion in group]


@pytest.mark.parametrize("with_bias", [False, True])
def test_prepacked_weights_sample_what_plain_ones_do(monkeypatch: pytest.MonkeyPatch, with_bias: bool) -> None:
    # The product of one layer is rounded once either way: log-probs differ by the order of a sum at most.
    model = build(tiny_config(attention_bias=with_bias)).bfloat16()
    assert prepacked.pays(model.lm_head.weight), "this cpu has no bfloat16 products of oneDNN"
    packed = sampled(model)
    monkeypatch.setattr(prepacked, "pays", lambda _: False)
    monkeypatch.setattr(sampler, "pays", lambda _: False)
    plain = sampled(model)
    for ours, expected in zip(packed, plain, strict=True):
        same = ours.token_ids[: len(expected.token_ids)] == expected.token_ids[: len(ours.token_ids)]
        first = int(np.argmin(same)) if not same.all() else len(same)
        np.testing.assert_allclose(ours.logprobs[:first], expected.logprobs[:first], atol=0.05)
    assert sum((a.token_ids[0] == b.token_ids[0]) for a, b in zip(packed, plain, strict=True)) >= 8


def test_layers_are_as_they_were_after_sampling() -> None:
    model = build(tiny_config()).bfloat16()
    sampled(model)
    assert not any("forward" in vars(m) for m in model.modules())
