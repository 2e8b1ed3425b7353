"""Attention of one micro-batch in two exact pieces, each by torch's flash kernel, joined by their log-sum-exps.

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlctl.engine.packing import PackedBatch

PADDING = 0.25
"""Share of padding up to which completions of different lengths go into one call on a CPU."""


class Piece(Protocol):
    """Queries that meet keys, of which both are runs of the packed sequence."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """(outcome [s, H, D], log-sum-exp [s, H]) of packed [S, H, D] and [S, K, D]."""
        ...

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> Grads:
        """Shares of the gradients of q, k and v, given the whole outcome and log-sum-exp."""
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
    start = int(batch.prompt_lengths_G.sum())
    own = batch.completion_lengths_R
    groups = np.bincount(batch.group_of_row_R, weights=own, minlength=len(batch.prompt_lengths_G)).astype(np.int64)
    sequences = np.concatenate([batch.prompt_lengths_G, own])
    if device.type == "cuda":
        itself: Piece = _Varlen(sequences, sequences, causal=True, device=device)
        prompt: Piece | None = _Varlen(groups, batch.prompt_lengths_G, causal=False, device=device, q_start=start)
    else:
        itself = _PaddedRuns(sequences, num_prompts=len(batch.prompt_lengths_G), device=device)
        prompt = _Runs(groups, batch.prompt_lengths_G, q_start=start)
    return Pieces(itself, prompt if len(own) else None, start)


def supported(q: Tensor) -> bool:
    """Whether the kernels take such a tensor."""
    if q.device.type == "cuda":
        return q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
    return q.device.type == "cpu"


class SharedPrefixFlash(torch.autograd.Function):
    """[S, H, D], [S, K, D], [S, K, D] -> outcome [S, H, D], log-sum-exp [S, H]"""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Pieces, scale: float) -> tuple[Tensor, Tensor]:
        out, lse = plan.itself.forward(q, k, v, scale)
        if plan.prompt is not None:
            _join(out[plan.start :], lse[plan.start :], *plan.prompt.forward(q, k, v, scale))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan, ctx.scale = plan, scale
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        return (*gradients(grads[0], q, k, v, out, lse, ctx.plan, ctx.scale), None, None)


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
    return grad_q, grad_k, grad_v


def _join(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Join a second piece into the first, in place, in float32."""
    total = torch.logaddexp(lse, other_lse)
    joined = out.float().mul_((lse - total).exp_()[..., None])
    out.copy_(joined.addcmul_(other.float(), (other_lse - total).exp_()[..., None]))
    lse.copy_(total)


class _Varlen:
    """CUDA: one call for all runs, by cumulative lengths."""

    def __init__(
        self, q_lengths: np.ndarray, k_lengths: np.ndarray, *, causal: bool, device: torch.device, q_start: int = 0
    ) -> None:
        self.q_ends, self.k_ends = (_ends(x).to(device) for x in (q_lengths, k_lengths))
        self.longest = int(q_lengths.max(initial=0)), int(k_lengths.max(initial=0))
        self.q = slice(q_start, q_start + int(q_lengths.sum()))
        self.k = slice(0, int(k_lengths.sum()))
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q[self.q], k[self.k], v[self.k], self.q_ends, self.k_ends, *self.longest, 0.0, self.causal, False,
            scale=scale,
        )  # fmt: skip
        return out, lse.transpose(0, 1).contiguous()

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> Grads:
        unused = torch.empty(2, dtype=torch.uint64, device=q.device), torch.empty(0, device=q.device)
        grads: Grads = torch.ops.aten._flash_attention_backward(
            grad[self.q], q[self.q], k[self.k], v[self.k], out[self.q], lse[self.q].transpose(0, 1).contiguous(),
            self.q_ends, self.k_ends, *self.longest, 0.0, self.causal, *unused, scale=scale,
        )  # fmt: skip
        return grads


def _ends(lengths: np.ndarray) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])).to(torch.int32)


class _PaddedRuns:
    """CPU, causal: runs of like length in one call, padded on the right, where causality hides it."""

    def __init__(self, lengths: np.ndarray, *, num_prompts: int, device: torch.device) -> None:
        starts = np.cumsum(lengths) - lengths
        self.tables = [
            _Padded(starts[runs], lengths[runs], device)
            for first, last in ((0, num_prompts), (num_prompts, len(lengths)))
            for runs in _alike(lengths, first, last)
        ]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        out, lse = (
            torch.empty_like(q, memory_format=torch.contiguous_format),
            q.new_empty(q.shape[:2], dtype=torch.float),
        )
        for table in self.tables:
            part, part_lse = _flash(*(table.padded(x) for x in (q, k, v)), causal=True, scale=scale)
            table.write(out, part.transpose(1, 2))
            table.write(lse, part_lse.transpose(1, 2))
        return out, lse

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> Grads:
        grads = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        for table in self.tables:
            # Measured on short causal runs: float32 takes a half to a third of the time of bfloat16.
            padded_grad = table.padded(grad, zero=True).float()
            given = (table.padded(x).float() for x in (q, k, v, out))
            padded_lse = table.padded(lse[..., None])[..., 0]
            parts = _flash_backward((padded_grad, *given, padded_lse), causal=True, scale=scale)
            for whole, part in zip(grads, parts, strict=True):
                table.write(whole, part.transpose(1, 2).to(whole.dtype))
        return grads  # type: ignore[return-value]


class _Padded:
    """Runs of the packed sequence as a batch."""

    def __init__(self, starts: np.ndarray, lengths: np.ndarray, device: torch.device) -> None:
        width = int(lengths.max())
        column = np.arange(width)
        inside = column < lengths[:, None]
        self.shape = inside.shape
        self.dense = bool(inside.all() and np.array_equal(starts, starts[0] + np.arange(len(starts)) * width))
        self.run = slice(int(starts[0]), int(starts[0]) + inside.size)
        self.index = torch.from_numpy(np.where(inside, starts[:, None] + column, starts[:, None])).to(device)
        self.where = torch.from_numpy((starts[:, None] + column)[inside]).to(device)
        self.inside = torch.from_numpy(inside).to(device)

    def padded(self, x: Tensor, *, zero: bool = False) -> Tensor:
        """[S, heads, D] -> [runs, heads, longest, D]; the padding repeats a token, or is zero."""
        if self.dense:
            return x[self.run].view(*self.shape, *x.shape[1:]).transpose(1, 2)
        batch = x[self.index]
        return (batch.masked_fill_(~self.inside[..., None, None], 0.0) if zero else batch).transpose(1, 2)

    def write(self, whole: Tensor, part: Tensor) -> None:
        """Put [runs, longest, ...] where it belongs in [S, ...]."""
        if self.dense:
            whole[self.run] = part.reshape(-1, *part.shape[2:])
        else:
            whole[self.where] = part[self.inside]


def _alike(lengths: np.ndarray, first: int, last: int) -> Iterator[np.ndarray]:
    """Positions of runs that may share a call: the shortest is at least 1 - PADDING of the longest."""
    order = first + np.argsort(-lengths[first:last], kind="stable")
    while len(order):
        fits = int((lengths[order] >= lengths[order[0]] * (1 - PADDING)).sum())
        yield np.sort(order[:fits])
        order = order[fits:]


class _Runs:
    """CPU, not causal: run i of the queries meets run i of the keys."""

    def __init__(self, q_lengths: np.ndarray, k_lengths: np.ndarray, *, q_start: int) -> None:
        self.pairs = [
            (q, k) for q, k in zip(_slices(q_lengths, q_start), _slices(k_lengths, 0), strict=True) if q.stop > q.start
        ]
        self.q_start, self.num_q, self.num_k = q_start, int(q_lengths.sum()), int(k_lengths.sum())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        out = q.new_empty(self.num_q, *q.shape[1:])
        lse = q.new_empty(self.num_q, q.shape[1], dtype=torch.float)
        for mine, keys in self.pairs:
            part, part_lse = _flash(*(_alone(x) for x in (q[mine], k[keys], v[keys])), causal=False, scale=scale)
            here = self._here(mine)
            out[here], lse[here] = part[0].transpose(0, 1), part_lse[0].transpose(0, 1)
        return out, lse

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> Grads:
        grad_q = q.new_empty(self.num_q, *q.shape[1:])
        grad_k, grad_v = (x.new_zeros(self.num_k, *x.shape[1:]) for x in (k, v))
        for mine, keys in self.pairs:
            given = (_alone(x) for x in (grad[mine], q[mine], k[keys], v[keys], out[mine]))
            part_lse = lse[mine].transpose(0, 1)[None]
            part_q, part_k, part_v = _flash_backward((*given, part_lse), causal=False, scale=scale)
            grad_q[self._here(mine)] = part_q[0].transpose(0, 1)
            grad_k[keys], grad_v[keys] = part_k[0].transpose(0, 1), part_v[0].transpose(0, 1)
        return grad_q, grad_k, grad_v

    def _here(self, mine: slice) -> slice:
        return slice(mine.start - self.q_start, mine.stop - self.q_start)


def _slices(lengths: Sequence[int] | np.ndarray, start: int) -> list[slice]:
    ends = start + np.cumsum(lengths)
    return [slice(int(end - length), int(end)) for end, length in zip(ends, lengths, strict=True)]


def _alone(x: Tensor) -> Tensor:
    """[s, heads, D] -> [1, heads, s, D]"""
    return x.transpose(0, 1)[None]


def _flash(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, scale=scale
    )
    return result


def _flash_backward(given: Sequence[Tensor], *, causal: bool, scale: float) -> Grads:
    """`given` is grad, q, k, v, out, log-sum-exp."""
    result: Grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *given, 0.0, causal, scale=scale
    )
    return result
