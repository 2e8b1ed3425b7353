"""Gradient checkpointing and torch.compile change no result beyond rounding."""

from __future__ import annotations

import pytest
import torch

from rlctl.engine import sampler, update
from rlctl.engine.checkpointing import checkpoint_layers
from rlctl.engine.compiling import compile_layers
from rlctl.engine.model import wrap
from rlctl.engine.optimizer import MasterOptimizer
from rlctl.types import Prompt
from tests import defaults
from tests.engine.test_exactness import some_rows
from tests.tiny import build, tiny_config

OPTIONS = {"checkpointing": checkpoint_layers, "compile": compile_layers}


def gradient(*options: str) -> tuple[torch.Tensor, int]:
    """(all gradients, bytes of activations kept for the backward pass)"""
    model = build(tiny_config())
    for option in options:
        OPTIONS[option](model)
    kept: dict[int, int] = {}

    def count(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        update.forward_backward(
            wrap(model), some_rows(260, lengths=(90, 80, 70, 60)), loss=defaults.loss(), loss_denominator=9.0,
            compute=defaults.compute(),
        )  # fmt: skip
    return torch.cat([p.grad.flatten() for p in model.parameters()]), sum(kept.values())


def test_checkpointing_keeps_less_and_gives_the_same_gradient() -> None:
    plain, checkpointed = gradient(), gradient("checkpointing")
    torch.testing.assert_close(checkpointed[0], plain[0], rtol=1e-5, atol=1e-6)
    assert checkpointed[1] < plain[1] / 3


@pytest.mark.parametrize("options", [("compile",), ("compile", "checkpointing")])
def test_compiled_layers_give_the_same_gradient(options: tuple[str, ...]) -> None:
    torch._dynamo.reset()
    torch.testing.assert_close(gradient(*options)[0], gradient()[0], rtol=1e-4, atol=1e-6)


def test_one_graph_serves_all_layers_and_sampling_equals_the_eager_one() -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    model = build(tiny_config(num_hidden_layers=5))
    prompts = [Prompt(torch.arange(3, 3 + length, dtype=torch.int32).numpy(), length) for length in (7, 2, 12)]

    def sample() -> list[list[list[int]]]:
        groups, _ = sampler.generate(
            wrap(model), prompts, n=3, sampling=defaults.sampling(max_new_tokens=12), end_token_ids=[2],
            limits=sampler.Limits(1e9, 6),
        )  # fmt: skip
        return [[c.token_ids.tolist() for c in group] for group in groups]

    eager = sample()
    compile_layers(model)
    counters.clear()
    assert sample() == eager
    # Prefill and decoding: two graphs, whatever the number of layers, rows and lengths.
    assert counters["stats"]["unique_graphs"] <= 3


def test_bfloat16_rows_prepacked_for_sampling_are_unpacked_after_it() -> None:
    model = build(tiny_config())
    MasterOptimizer(model, dtype=torch.bfloat16, job=defaults.job())
    before = {name: id(m.forward.__func__) for name, m in model.named_modules()}
    sampler.generate(
        wrap(model), [Prompt(torch.arange(3, 9, dtype=torch.int32).numpy(), 1)], n=2,
        sampling=defaults.sampling(max_new_tokens=3), end_token_ids=[2], limits=sampler.Limits(1e9, 6),
    )  # fmt: skip
    assert {name: id(m.forward.__func__) for name, m in model.named_modules()} == before
