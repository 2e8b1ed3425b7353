"""Exact draws from the full softmax: a uniform number falls into one token's share of the cumulative sum.

Blockwise: sums of blocks of the vocabulary first, then within the one block that was hit; a tenth of the cost of
softmax and multinomial over 49k tokens. A few rows at a time, so that on a CPU their weights stay in its cache; and
by a C kernel there (`draw.c`), where nothing filters the vocabulary.

Letters: B rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlctl.engine import kernels
from rlctl.types import Sampling

BLOCK = 256
"""Words in a block: about the square root of a large vocabulary balances the two halves of the search."""

TILE = {"cpu": 2**19, "cuda": 2**27}
"""Weights held at a time, in numbers: 2 MB on a cpu, 512 MB on a GPU, where it is launches that cost."""

Uniforms = np.ndarray[tuple[int], np.dtype[np.float64]]


def draw(logits_BV: Tensor, uniforms_B: Uniforms, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token a row and its log-prob at the temperature over the full vocabulary: [B, V] -> ([B], [B]).

    Token v is drawn when the uniform number falls into its share of the cumulative sum. At temperature 0 the
    likeliest token is taken and its log-prob is that at temperature 1.
    """
    plain = sampling.temperature != 0.0 and not _filters(sampling)
    kernel = kernels.draw(logits_BV.dtype) if plain and logits_BV.device.type == "cpu" else None
    if kernel is not None:
        return _draw_by(kernel, logits_BV.contiguous(), uniforms_B, sampling.temperature)
    rows = max(1, TILE.get(logits_BV.device.type, TILE["cpu"]) // logits_BV.shape[1])
    uniforms = torch.from_numpy(uniforms_B).to(logits_BV.device)
    parts = [
        _draw_tile(logits_BV[start : start + rows], uniforms[start : start + rows], sampling)
        for start in range(0, len(logits_BV), rows)
    ]
    return torch.cat([tokens for tokens, _ in parts]), torch.cat([logprobs for _, logprobs in parts])


def _draw_by(
    kernel: kernels.Kernel, logits_BV: Tensor, uniforms_B: Uniforms, temperature: float
) -> tuple[Tensor, Tensor]:
    rows, vocab = logits_BV.shape
    tokens, logprobs = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.float32)
    scratch = torch.empty(rows, -(-vocab // BLOCK), dtype=torch.float64)
    uniforms_B = np.ascontiguousarray(uniforms_B, dtype=np.float64)
    kernel(
        logits_BV.data_ptr(), uniforms_B.ctypes.data, scratch.data_ptr(), tokens.data_ptr(), logprobs.data_ptr(),
        rows, vocab, temperature,
    )  # fmt: skip
    return tokens, logprobs


def _draw_tile(logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    most = logits_BV.amax(-1, keepdim=True).float()
    scaled = logits_BV - most
    if sampling.temperature not in (0.0, 1.0):
        scaled = scaled.div_(sampling.temperature)
    weights_BV = scaled.exp_()
    if sampling.temperature == 0.0:
        tokens = logits_BV.argmax(-1)
    elif _filters(sampling):
        tokens = _inverse_cdf(_filtered(weights_BV, sampling), uniforms_B)[0]
    else:
        tokens, totals_B = _inverse_cdf(weights_BV, uniforms_B)
        return tokens, (weights_BV.gather(1, tokens[:, None])[:, 0] / totals_B).log().float()
    return tokens, (weights_BV.gather(1, tokens[:, None])[:, 0] / weights_BV.sum(-1)).log()


def _inverse_cdf(weights_BV: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """(the token in whose share of the summed weights the uniform number falls, that sum): [B, V], [B] -> [B], [B]."""
    rows, vocab = weights_BV.shape
    if vocab % BLOCK:
        weights_BV = torch.nn.functional.pad(weights_BV, (0, -vocab % BLOCK))
    blocks = weights_BV.view(rows, -1, BLOCK)
    ends = blocks.sum(-1).double().cumsum(-1)
    target = uniforms_B[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, target, right=True).clamp_(max=ends.shape[1] - 1)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    row = torch.arange(rows, device=weights_BV.device)
    inside = blocks[row, block[:, 0]].double()
    within = torch.searchsorted(inside.cumsum(-1), target - before, right=True)
    # Rounding may carry the target past the block's last weight: take its last token that has one.
    last = BLOCK - 1 - (inside > 0).flip(-1).int().argmax(-1, keepdim=True)
    # Only weights that are not numbers lead past the vocabulary; their log-prob then tells.
    tokens = (block * BLOCK + torch.minimum(within, last))[:, 0].clamp_(max=vocab - 1)
    return tokens, ends[:, -1]


def _filters(sampling: Sampling) -> bool:
    return sampling.min_p > 0 or sampling.top_k > 0 or sampling.top_p < 1


def _filtered(weights_BV: Tensor, sampling: Sampling) -> Tensor:
    """Weights with min-p, top-k and top-p applied in vLLM's order; the likeliest token always stays."""
    if sampling.min_p > 0:
        weights_BV = weights_BV.masked_fill(weights_BV < sampling.min_p * weights_BV.amax(-1, keepdim=True), 0.0)
    if 0 < sampling.top_k < weights_BV.shape[1]:
        kth = weights_BV.topk(sampling.top_k, dim=-1).values[:, -1:]
        weights_BV = weights_BV.masked_fill(weights_BV < kth, 0.0)
    if sampling.top_p < 1:
        ordered, order = weights_BV.sort(-1, descending=True)
        mass_before = (ordered.cumsum(-1) - ordered) / ordered.sum(-1, keepdim=True)
        weights_BV = weights_BV.masked_fill(
            torch.zeros_like(weights_BV, dtype=torch.bool).scatter_(1, order, mass_before >= sampling.top_p), 0.0
        )
    return weights_BV
