"""The pieces of `flash.py` by torch's flash-attention kernels: on a GPU, and on a CPU without kernels of our own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from rlctl.engine.flash import Grads

PADDING = 0.25
"""Share of padding up to which completions of different lengths go into one call on a CPU."""


class Varlen:
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


class PaddedRuns:
    """CPU, causal: runs of like length in one call, padded on the right, where causality hides it."""

    def __init__(self, lengths: np.ndarray, *, num_prompts: int, device: torch.device) -> None:
        starts = np.cumsum(lengths) - lengths
        self.tables = [
            Padded(starts[runs], lengths[runs], device)
            for first, last in ((0, num_prompts), (num_prompts, len(lengths)))
            for runs in alike(lengths, first, last)
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


class Padded:
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

    def tokens(self, x: Tensor, *, zero: bool = False) -> Tensor:
        """[S, ...] -> [runs, longest, ...]; the padding repeats a token, or is zero."""
        if self.dense:
            return x[self.run].view(*self.shape, *x.shape[1:])
        batch = x[self.index]
        return batch.masked_fill_(~self.inside.view(*self.shape, *(1,) * (x.ndim - 1)), 0.0) if zero else batch

    def padded(self, x: Tensor, *, zero: bool = False) -> Tensor:
        """[S, heads, D] -> [runs, heads, longest, D]"""
        return self.tokens(x, zero=zero).transpose(1, 2)

    def write(self, whole: Tensor, part: Tensor) -> None:
        """Put [runs, longest, ...] where it belongs in [S, ...]."""
        if self.dense:
            whole[self.run] = part.reshape(-1, *part.shape[2:])
        else:
            whole[self.where] = part[self.inside]


def alike(lengths: np.ndarray, first: int, last: int) -> Iterator[np.ndarray]:
    """Positions of runs that may share a call: the shortest is at least 1 - PADDING of the longest."""
    order = first + np.argsort(-lengths[first:last], kind="stable")
    order = order[lengths[order] > 0]
    while len(order):
        fits = int((lengths[order] >= lengths[order[0]] * (1 - PADDING)).sum())
        yield np.sort(order[:fits])
        order = order[fits:]


class Runs:
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
