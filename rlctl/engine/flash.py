"""Attention of one micro-batch in two exact pieces, each by a flash kernel or tiles, joined by their log-sum-exps.

A completion sees its prompt and itself. Computed as one attention a row, the prompt's keys would be copied and met
n times; here the n completions of a group meet them as one long query:

    itself   every prompt and every completion, causal           [p p p] [c c] [c c c] ...
    prompt   all completion tokens of a group x its prompt       [c c c c c] x [p p p]

With o_i, l_i the outcome and log-sum-exp of a piece, l = log(exp l_1 + exp l_2) and o = exp(l_1 - l) o_1 +
exp(l_2 - l) o_2. The backward pass needs no joining: flash attention's gradient formula, given the whole o and l,
is a sum over keys, so that each piece gives its share.

Sources: flash attention, https://arxiv.org/abs/2205.14135; sharing a prefix this way, Hydragen,
https://arxiv.org/abs/2402.05099 (there for decoding only).

Letters: S packed tokens, s tokens of a piece, H query heads, K key heads, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlctl.engine.packing import PackedBatch


class Piece(Protocol):
    """Queries that meet keys, of which both are runs of the packed sequence."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """(outcome [s, H, D], log-sum-exp [s, H]) of packed [S, H, D] and [S, K, D]."""
        ...

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> Grads:
        """Shares of the gradients of q, k and v (k and v in their type or float32), given the whole outcome and lse."""
        ...


Grads = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of one micro-batch: `itself` covers all S tokens; `prompt` those from `start` on, or is None."""

    itself: Piece
    prompt: Piece | None
    start: int


def pieces(batch: PackedBatch, device: torch.device) -> Pieces:
    """How to compute that micro-batch on the device."""
    from rlctl.engine import attention_tiles, flash_amx, flash_torch

    start = int(batch.prompt_lengths_G.sum())
    own = batch.completion_lengths_R
    groups = np.bincount(batch.group_of_row_R, weights=own, minlength=len(batch.prompt_lengths_G)).astype(np.int64)
    sequences = np.concatenate([batch.prompt_lengths_G, own])
    if device.type == "cuda":
        itself: Piece = flash_torch.Varlen(sequences, sequences, causal=True, device=device)
        prompt: Piece = flash_torch.Varlen(groups, batch.prompt_lengths_G, causal=False, device=device, q_start=start)
    elif attention_tiles.available():
        itself = attention_tiles.Causal(sequences, num_prompts=len(batch.prompt_lengths_G), device=device)
        prompt = attention_tiles.Across(groups, batch.prompt_lengths_G, q_start=start)
        if flash_amx.available():
            itself = flash_amx.Runs(sequences, sequences, causal=True, other_types=itself)
            prompt = flash_amx.Runs(groups, batch.prompt_lengths_G, causal=False, q_start=start, other_types=prompt)
    else:
        itself = flash_torch.PaddedRuns(sequences, num_prompts=len(batch.prompt_lengths_G), device=device)
        prompt = flash_torch.Runs(groups, batch.prompt_lengths_G, q_start=start)
    return Pieces(itself, prompt if len(own) else None, start)


def supported(q: Tensor) -> bool:
    """Whether the kernels take such a tensor."""
    if q.device.type == "cuda":
        return q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
    return q.device.type == "cpu" and q.dtype in (torch.float32, torch.bfloat16)


class SharedPrefixFlash(torch.autograd.Function):
    """[S, H, D], [S, K, D], [S, K, D] -> outcome [S, H, D], log-sum-exp [S, H]"""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Pieces, scale: float) -> tuple[Tensor, Tensor]:
        out, lse = outcome(q, k, v, plan, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan, ctx.scale = plan, scale
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        return (*gradients(grads[0], q, k, v, out, lse, ctx.plan, ctx.scale), None, None)


def outcome(q: Tensor, k: Tensor, v: Tensor, plan: Pieces, scale: float) -> tuple[Tensor, Tensor]:
    """(outcome [S, H, D], log-sum-exp [S, H])"""
    out, lse = plan.itself.forward(q, k, v, scale)
    if plan.prompt is not None:
        _join(out[plan.start :], lse[plan.start :], *plan.prompt.forward(q, k, v, scale))
    return out, lse


def gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, plan: Pieces, scale: float
) -> Grads:
    """The gradients of q, k and v, of their shapes."""
    grad = grad.contiguous()
    grad_q, grad_k, grad_v = plan.itself.backward(grad, q, k, v, out, lse, scale)
    if plan.prompt is not None:
        more_q, more_k, more_v = plan.prompt.backward(grad, q, k, v, out, lse, scale)
        grad_q[plan.start :] += more_q
        grad_k[: plan.start] += more_k
        grad_v[: plan.start] += more_v
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype)


def _join(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Join a second piece into the first, in place, in float32."""
    total = torch.logaddexp(lse, other_lse)
    joined = out.float().mul_((lse - total).exp_()[..., None])
    out.copy_(joined.addcmul_(other.float(), (other_lse - total).exp_()[..., None]))
    lse.copy_(total)
