"""Group sampling: one prefill per prompt, n completions that share its keys and values, exact draws.

All rows step together, one token each. A token is drawn from the full float32 distribution by inverting
its cumulative sum, blockwise: sums of blocks of the vocabulary first, then within the one block where the
uniform number falls; a tenth of the cost of softmax and multinomial over 49k tokens. Uniform numbers come
from `seeds.py`, so that what a sample draws does not depend on what else is in the batch.

Letters: G prompts, n rows a prompt, B = G * n rows, V vocabulary, D hidden width.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlctl import seeds
from rlctl.engine.attention import DecodeCache, PackedLayout
from rlctl.engine.model import Policy
from rlctl.engine.packing import pack_prompts
from rlctl.errors import BackendError
from rlctl.types import Completion, GenerateStats, Prompt, Sampling

BLOCK = 256
"""Words in a block of the draw: about the square root of a large vocabulary balances its two halves."""


def generate(
    policy: Policy,
    prompts: Sequence[Prompt],
    *,
    n: int,
    sampling: Sampling,
    end_token_ids: Sequence[int],
    kv_cache_bytes: float,
) -> tuple[list[list[Completion]], GenerateStats]:
    """`n` completions a prompt, [G][n], and what they cost. Prompts that do not fit the cache are taken in turns."""
    start = time.perf_counter()
    completions: list[list[Completion]] = []
    flops = 0.0
    for batch in _batches(policy, prompts, n, sampling.max_new_tokens, kv_cache_bytes):
        run = _GroupRun(policy, batch, n, sampling, end_token_ids)
        completions += run.sample()
        flops += run.flops
    tokens = sum(len(c.token_ids) for group in completions for c in group)
    return completions, GenerateStats(flops=flops, seconds=time.perf_counter() - start, tokens=tokens)


def _batches(
    policy: Policy, prompts: Sequence[Prompt], n: int, max_new: int, kv_cache_bytes: float
) -> Iterator[list[Prompt]]:
    """Prompts in order, in batches whose keys and values fit, counted at full length; at least one prompt each."""
    limit = kv_cache_bytes / kv_bytes_per_token(policy)
    batch: list[Prompt] = []
    for prompt in prompts:
        longest = max(len(p.token_ids) for p in [*batch, prompt])
        if batch and (len(batch) + 1) * (longest + n * max_new) > limit:
            yield batch
            batch = []
        batch.append(prompt)
    if batch:
        yield batch


def kv_bytes_per_token(policy: Policy) -> int:
    """Memory of one token's keys and values over all layers, in bytes."""
    config = policy.causal_lm.config.get_text_config()  # type: ignore[operator, union-attr]
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * policy.dtype.itemsize)


@dataclass
class _Rows:
    """The rows still being sampled: which they are, and their state. All [B] but for the counts."""

    number: np.ndarray[tuple[int], np.dtype[np.int64]]
    seeds: np.ndarray[tuple[int], np.dtype[np.uint64]]
    done: Tensor
    positions: Tensor


class _GroupRun:
    """One batch of prompts from prefill to the last end token."""

    def __init__(
        self, policy: Policy, prompts: Sequence[Prompt], n: int, sampling: Sampling, end_token_ids: Sequence[int]
    ) -> None:
        self.policy, self.prompts, self.n, self.sampling = policy, prompts, n, sampling
        self.ends = torch.tensor(sorted(end_token_ids), dtype=torch.long, device=policy.device)
        self.flops = 0.0
        num_rows = len(prompts) * n
        self.tokens = np.zeros((num_rows, sampling.max_new_tokens), dtype=np.int32)
        self.logprobs = np.zeros((num_rows, sampling.max_new_tokens), dtype=np.float32)
        self.lengths = np.zeros(num_rows, dtype=np.int64)
        self.ended = np.zeros(num_rows, dtype=bool)

    @torch.inference_mode()
    def sample(self) -> list[list[Completion]]:
        hidden_BD, cache, rows = self._prefill()
        for step in range(self.sampling.max_new_tokens):
            tokens = self._draw(hidden_BD, rows, step)
            if bool(rows.done.all()) or step + 1 == self.sampling.max_new_tokens:
                break
            tokens, rows = self._drop_finished_groups(tokens, rows, cache)
            hidden_BD = self._decode(tokens, rows, cache)
        return self._completions()

    def _prefill(self) -> tuple[Tensor, DecodeCache, _Rows]:
        policy, n = self.policy, self.n
        batch = pack_prompts([prompt.token_ids for prompt in self.prompts])
        layout = PackedLayout(batch, device=policy.device, keep_prompt_kv=True)
        ids, positions = (torch.from_numpy(x).to(policy.device)[None] for x in (batch.ids_S, batch.positions_S))
        last = torch.from_numpy(np.cumsum(batch.prompt_lengths_G) - 1).to(policy.device)
        hidden_GD = policy.hidden(ids, positions, layout)[0, last]
        self._count(tokens=len(batch.ids_S), predicted=len(self.prompts), pairs=batch.attention_pairs)
        rows = _Rows(
            number=np.arange(len(self.prompts) * n),
            seeds=np.array([seeds.sample_seed(p.seed, i) for p in self.prompts for i in range(n)], dtype=np.uint64),
            done=torch.zeros(len(self.prompts) * n, dtype=torch.bool, device=policy.device),
            positions=layout.prompt_lengths_G.repeat_interleave(n),
        )
        return hidden_GD.repeat_interleave(n, 0), DecodeCache(layout, n=n), rows

    def _decode(self, tokens: Tensor, rows: _Rows, cache: DecodeCache) -> Tensor:
        cache.advance()
        hidden = self.policy.hidden(tokens[:, None], rows.positions[:, None], cache)[:, 0]
        rows.positions = rows.positions + 1
        self._count(tokens=len(tokens), predicted=len(tokens), pairs=int(rows.positions.sum()))
        return hidden

    def _draw(self, hidden_BD: Tensor, rows: _Rows, step: int) -> Tensor:
        """Next token of every row; written down for the rows that are not done, which may be done now."""
        logits = torch.nn.functional.linear(hidden_BD, self.policy.head_weight, self.policy.head_bias).float()
        tokens, logprobs = draw(logits, seeds.uniforms(rows.seeds, step), self.sampling)
        if not bool(torch.isfinite(logprobs).all()):
            raise BackendError("the model's logits are infinite or not a number.", hint="lower trainer.lr.")
        live = ~rows.done
        number = rows.number[live.cpu().numpy()]
        self.tokens[number, step] = tokens[live].cpu().numpy()
        self.logprobs[number, step] = logprobs[live].cpu().numpy()
        self.lengths[number] = step + 1
        rows.done = rows.done | torch.isin(tokens, self.ends)
        self.ended[rows.number[rows.done.cpu().numpy()]] = True
        return tokens

    def _drop_finished_groups(self, tokens: Tensor, rows: _Rows, cache: DecodeCache) -> tuple[Tensor, _Rows]:
        keep_G = ~rows.done.view(-1, self.n).all(1)
        if bool(keep_G.all()):
            return tokens, rows
        cache.keep_groups(keep_G)
        keep = keep_G.repeat_interleave(self.n)
        kept = keep.cpu().numpy()
        return tokens[keep], _Rows(rows.number[kept], rows.seeds[kept], rows.done[keep], rows.positions[keep])

    def _completions(self) -> list[list[Completion]]:
        flat = [
            Completion(self.tokens[i, :length].copy(), self.logprobs[i, :length].copy(), "stop" if ended else "length")
            for i, (length, ended) in enumerate(zip(self.lengths, self.ended, strict=True))
        ]
        return [flat[i : i + self.n] for i in range(0, len(flat), self.n)]

    def _count(self, *, tokens: int, predicted: int, pairs: int) -> None:
        shape = self.policy.shape
        self.flops += (
            float("nan") if shape is None else shape.forward_flops(tokens=tokens, predicted=predicted, pairs=pairs)
        )


def draw(
    logits_BV: Tensor, uniforms_B: np.ndarray[tuple[int], np.dtype[np.float64]], sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """One token a row and its log-prob at the temperature over the full vocabulary: [B, V] -> ([B], [B]).

    Exact: token v is drawn when the uniform number falls into its share of the cumulative sum. At temperature 0
    the likeliest token is taken and its log-prob is that at temperature 1.
    """
    scaled = logits_BV / sampling.temperature if sampling.temperature not in (0.0, 1.0) else logits_BV
    weights_BV = (scaled - scaled.amax(-1, keepdim=True)).exp_()
    if sampling.temperature == 0.0:
        tokens = logits_BV.argmax(-1)
        return tokens, scaled.gather(1, tokens[:, None])[:, 0] - scaled.logsumexp(-1)
    drawn_from = _filtered(weights_BV, sampling)
    tokens = _inverse_cdf(drawn_from, torch.from_numpy(uniforms_B).to(logits_BV.device))
    chosen = weights_BV.gather(1, tokens[:, None])[:, 0]
    return tokens, (chosen / weights_BV.sum(-1)).log()


def _inverse_cdf(weights_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """The token in whose share of the summed weights the uniform number falls: [B, V], [B] -> [B]."""
    rows, vocab = weights_BV.shape
    blocks = torch.nn.functional.pad(weights_BV, (0, -vocab % BLOCK)).view(rows, -1, BLOCK)
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = uniforms_B[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, target, right=True).clamp_(max=ends.shape[1] - 1)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    row = torch.arange(rows, device=weights_BV.device)
    inside = blocks[row, block[:, 0]].double()
    within = torch.searchsorted(inside.cumsum(-1), target - before, right=True)
    # Rounding may carry the target past the block's last weight: take its last token that has one.
    last = BLOCK - 1 - (inside > 0).flip(-1).int().argmax(-1, keepdim=True)
    # Only weights that are not numbers lead past the vocabulary; their log-prob then tells.
    return (block * BLOCK + torch.minimum(within, last))[:, 0].clamp_(max=vocab - 1)


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
