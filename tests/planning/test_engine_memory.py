"""The formulas of what the engine keeps, against what autograd is seen to save."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlctl.engine import lora
from rlctl.engine.model import Policy, wrap
from rlctl.engine.optimizer import MasterOptimizer
from rlctl.engine.packing import pack
from rlctl.planning import engine_memory as planned
from rlctl.planning.model import facts_of
from rlctl.types import JobSpec, LoraSpec, TrainRow
from tests.tiny import build, tiny_config


def policy_of(*, family: str, layers: int, dtype: torch.dtype, rank: int, modules: bool) -> Policy:
    from dataclasses import replace

    config = tiny_config(num_hidden_layers=layers) if family == "llama" else qwen3(layers)
    causal_lm = build(config)
    if rank:
        lora.inject(causal_lm, LoraSpec(rank, 32.0, ("all-linear",)))
    policy = wrap(causal_lm)
    MasterOptimizer(causal_lm, dtype=dtype, job=JOB)
    return replace(policy, llama=None) if modules else policy


JOB = JobSpec(
    model="", temperature=1.0, end_token_ids=(), needs_reference=False, max_tokens_per_device=1, max_prompt_length=1,
    max_response_length=1, weight_decay=0.0, betas=(0.9, 0.99), grad_clip=1.0,
)  # fmt: skip


def qwen3(layers: int) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip


def saved_bytes(policy: Policy) -> tuple[int, int]:
    """(bytes of distinct memory that a forward pass saves for its backward pass, less weights; its tokens)."""
    draw = np.random.default_rng(0)
    rows = [
        TrainRow(np.full(40, i, np.int32), draw.integers(0, 260, 20, dtype=np.int32), 1.0, np.zeros(20, np.float32))
        for i in range(3)
    ]
    (batch,) = pack(rows, max_tokens=10_000)
    weights = {p.untyped_storage().data_ptr() for p in policy.causal_lm.parameters()}
    seen: dict[int, int] = {}
    alive = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), policy.packed_hidden(batch) as _:
        return sum(seen.values()), len(batch.ids_S)


@pytest.mark.parametrize(
    ("modules", "rank"), [(False, 0), (True, 0), (True, 4)], ids=["taken apart", "modules", "modules, LoRA"]
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_layer_keeps_what_the_formula_says(family: str, dtype: torch.dtype, rank: int, *, modules: bool) -> None:
    made = {"family": family, "dtype": dtype, "rank": rank, "modules": modules}
    (three, tokens), (one, _) = (saved_bytes(policy_of(layers=n, **made)) for n in (3, 1))
    config = tiny_config(num_hidden_layers=1) if family == "llama" else qwen3(1)
    engine = planned.Engine(
        model=facts_of(config, build(config)),
        item_bytes=dtype.itemsize,
        packed_layers=not modules,
        checkpointing=False,
        logits_tile=None,
        lora=LoraSpec(rank, 32.0, ("all-linear",)) if rank else None,
    )
    # The difference of two depths: what the embedding, the last norm and the layout keep is no layer's.
    assert (three - one) / 2 / tokens == pytest.approx(planned.kept_per_token(engine), rel=0.02)
