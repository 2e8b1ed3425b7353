"""The pieces of `flash.py` on a CPU with matrix units (Intel AMX), in bfloat16: all of a piece in one kernel.

Against `attention_tiles.py`, a block of scores never leaves the cache, and runs of any lengths share a call without
padding. float32 and other processors are computed there.

Letters: s tokens of a piece, H query heads, K key heads, D width of a head.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlctl.engine import kernels
from rlctl.engine.attention_tiles import row_dots
from rlctl.engine.flash import Grads, Piece

ROWS = 256
"""The fewest rows (tokens times H / K) that are worth their own copy of the keys."""


def available() -> bool:
    """Whether processor, compiler and system have the units; RLCTL_NO_AMX=1 leaves them alone."""
    return _kernels() is not None and not os.environ.get("RLCTL_NO_AMX")


@functools.cache
def _kernels() -> Any:
    """Without permission from the system, their first instruction would end the process."""
    found = kernels.flash_amx(torch.bfloat16)
    return found if found is not None and found.enable() == 0 else None


class Runs:
    """Run i of the queries meets run i of the keys: all of it or, `causal`, up to itself.

    `other_types` computes the same in float32.
    """

    def __init__(
        self, q_lengths: np.ndarray, k_lengths: np.ndarray, *, causal: bool, other_types: Piece, q_start: int = 0
    ) -> None:
        self.other_types = other_types
        starts = [np.cumsum(lengths) - lengths for lengths in (q_lengths, k_lengths)]
        runs = np.stack([starts[0], q_lengths, starts[1], k_lengths], axis=1).astype(np.int64)
        self.runs = np.ascontiguousarray(runs[q_lengths > 0])
        self.queries = slice(q_start, q_start + int(q_lengths.sum()))
        self.num_keys = int(k_lengths.sum())
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        if q.dtype != torch.bfloat16:
            return self.other_types.forward(q, k, v, scale)
        q, k, v = (_by_token(x) for x in (q[self.queries], k, v))
        out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float)
        _kernels().there(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lse.data_ptr(), self.runs.ctypes.data,
            len(self.runs), self._parts(q, k), q.shape[1], k.shape[1], q.shape[2],
            q.stride(0), k.stride(0), v.stride(0), self.causal, scale,
        )  # fmt: skip
        return out, lse

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> Grads:
        """The shares of keys and values are float32, and of the piece's own keys alone."""
        if q.dtype != torch.bfloat16:
            return self.other_types.backward(grad, q, k, v, out, lse, scale)
        grad, q, out, lse = (x[self.queries] for x in (grad, q, out, lse))
        dots, lse = row_dots(grad, out), lse.contiguous()
        grad, q, k, v = (_by_token(x) for x in (grad, q, k, v))
        parts = self._parts(q, k)
        grad_q = q.new_empty(q.shape)
        grad_k, grad_v = (x.new_zeros(parts, self.num_keys, *x.shape[1:], dtype=torch.float) for x in (k, v))
        _kernels().back(
            grad.data_ptr(), q.data_ptr(), k.data_ptr(), v.data_ptr(), lse.data_ptr(), dots.data_ptr(),
            grad_q.data_ptr(), grad_k.data_ptr(), grad_v.data_ptr(), self.runs.ctypes.data,
            len(self.runs), parts, q.shape[1], k.shape[1], q.shape[2],
            grad.stride(0), q.stride(0), k.stride(0), v.stride(0), self.num_keys, self.causal, scale,
        )  # fmt: skip
        return grad_q, grad_k.sum(0) if parts > 1 else grad_k[0], grad_v.sum(0) if parts > 1 else grad_v[0]

    def _parts(self, q: Tensor, k: Tensor) -> int:
        """Into how many parts the rows of a run are cut, so that every core has work: two tasks each at least."""
        tasks = len(self.runs) * k.shape[1]
        wanted = -(-2 * torch.get_num_threads() // max(tasks, 1))
        longest = int(self.runs[:, 1].max(initial=1)) * (q.shape[1] // k.shape[1])
        return max(1, min(wanted, longest // ROWS))


def _by_token(x: Tensor) -> Tensor:
    """[s, heads, D] with a token's numbers side by side; tokens may lie apart, as in a joined product of q, k and v."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
