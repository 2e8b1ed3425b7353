"""The FLOPs behind every MFU against torch's own counter, on a whole update of shrunk models.

The counter sees no kernel of the engine's own, so it watches a plain transformers forward and backward over the same
packed tokens. That one multiplies every query with every key, and masks afterwards: its attention counts S x S pairs,
of which the formula counts those that are not masked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rlctl.engine import update
from rlctl.engine.model import wrap
from rlctl.engine.packing import PackedBatch, pack
from tests import defaults
from tests.engine.test_exactness import family, some_rows

FAMILIES = ["Llama-3.2-1B-Instruct", "Qwen3-0.6B", "OLMo-2-1124-7B-Instruct", "phi-2"]
"""Heads shared by queries; a head_dim that is not hidden / heads; norms elsewhere; a feed-forward without a gate."""


@pytest.mark.parametrize("name", FAMILIES)
def test_the_flops_of_an_update_are_those_that_torch_counts(shared: Path, name: str) -> None:
    model = family(shared, name)
    rows = some_rows(512, lengths=(40, 61, 17, 33, 52))
    (batch,) = pack(rows, max_tokens=10_000)
    counted = counted_flops(model, batch)
    loss = update.forward_backward(
        wrap(model), rows, loss=defaults.loss(), loss_denominator=203.0, compute=defaults.compute(max_tokens=10_000)
    )
    assert loss.flops == pytest.approx(counted, rel=0.02)


def counted_flops(model: Any, batch: PackedBatch) -> float:
    """What torch counts, its S x S attention products scaled to the pairs that are not masked."""
    model.set_attn_implementation("eager")
    mask = visible(batch)
    ids, positions = torch.from_numpy(batch.ids_S), torch.from_numpy(batch.positions_S)
    counter = FlopCounterMode(display=False)
    with counter:
        hidden_SD = model.get_decoder()(
            input_ids=ids[None], position_ids=positions[None], attention_mask=additive(mask), use_cache=False
        ).last_hidden_state[0]
        logits_TV = model.get_output_embeddings()(hidden_SD[torch.from_numpy(batch.predictors_T)])
        torch.nn.functional.cross_entropy(logits_TV, torch.from_numpy(batch.targets_T)).backward()
    model.zero_grad()
    by_operation = counter.get_flop_counts()["Global"]
    # Batched products are those of attention; with weights, products are plain.
    attention = by_operation.pop(torch.ops.aten.bmm)
    return sum(by_operation.values()) + attention * float(mask.mean())


def visible(batch: PackedBatch) -> np.ndarray:
    """[S, S] whether query s sees key k: its own sequence up to itself, and the prompt before it."""
    owner, prompt_of = np.full(len(batch.ids_S), -1), np.full(len(batch.ids_S), -1)
    for group, length in enumerate(batch.prompt_lengths_G):
        prompt_of[batch.prompt_index_GP[group, :length]] = group
    groups = prompt_of.copy()
    for row, length in enumerate(batch.completion_lengths_R):
        index = batch.completion_index_RC[row, :length]
        owner[index], groups[index] = row, batch.group_of_row_R[row]
    same_sequence = (owner[:, None] == owner[None]) & (groups[:, None] == groups[None])
    to_prompt = (owner[:, None] >= 0) & (prompt_of[None] == groups[:, None])
    causal = batch.positions_S[:, None] >= batch.positions_S[None]
    seen: np.ndarray = (same_sequence | to_prompt) & causal
    return seen


def additive(mask: np.ndarray) -> torch.Tensor:
    return torch.where(torch.from_numpy(mask), 0.0, float("-inf"))[None, None]
