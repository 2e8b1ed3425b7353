"""A fixed piece of work of a model's sizes, beside which a run is timed: what the machine gives at the moment.

It is written with torch alone and shares no code with the engine, so that nothing that makes the engine faster or
slower touches it. What stands here is what stored baselines are ratios to: whoever changes it raises `FORMAT` of
`rlctl/baselines/file.py`.

What a neighbour takes away depends on the work, so each judged phase has work of its kind beside it: steps of a few
rows as in sampling, and as in an update products of thousands of tokens with some such steps.

How fast a piece of work is depends by some percent on which pages of memory it was given, for as long as it keeps them.
So there are several copies of what is worked on, in turn.

Letters: N tokens, or rows that are sampled at once; D hidden size, F feed-forward size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rlctl.types import JudgedPhase

TOKENS = 4096
ROWS = 16
ROW_STEPS = 80
"""Steps of these rows in a repetition for sampling; half of them, about a quarter of the time, in one for an update."""
LARGEST = 8192
"""Sizes are cut there: a reference need not take a second to say how fast the machine is."""
COPIES = 16
COPIED_BYTES = 2**26
"""All copies together, but for the first; what is larger has so many pages that they average out."""


class Reference:
    """Products with weights of the model's sizes, and the reads and writes of memory between them."""

    def __init__(self, config: Any, *, device: torch.device, dtype: torch.dtype) -> None:
        text = config.get_text_config()
        hidden = min(text.hidden_size, LARGEST)
        inner = min(getattr(text, "intermediate_size", None) or 4 * hidden, LARGEST)
        draw = torch.Generator().manual_seed(0)

        def values(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=draw).mul(rows**-0.5).to(device=device, dtype=dtype)

        first = Operands(values(TOKENS, hidden) * TOKENS**0.5, values(hidden, hidden), values(hidden, inner),
                         values(inner, hidden))  # fmt: skip
        copies = min(COPIES, max(1, COPIED_BYTES // first.num_bytes))
        self._operands = cycle([first, *(first.copied() for _ in range(copies - 1))])
        self._is_cuda = device.type == "cuda"
        self._device = device

    @torch.no_grad()
    def work(self, repetitions: int, *, like: JudgedPhase) -> None:
        """Do it so many times, to the end: on a GPU nothing is left in its queue."""
        for _ in range(repetitions):
            operands = next(self._operands)
            if like == "update":
                operands.layers(operands.hidden_ND, times=1)
                operands.layers(operands.hidden_ND[:ROWS], times=ROW_STEPS // 2)
            else:
                operands.layers(operands.hidden_ND[:ROWS], times=ROW_STEPS)
        if self._is_cuda:
            torch.cuda.synchronize(self._device)


@dataclass(frozen=True, slots=True)
class Operands:
    """What a repetition works on."""

    hidden_ND: Tensor
    square_DD: Tensor
    up_DF: Tensor
    down_FD: Tensor

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.hidden_ND, self.square_DD, self.up_DF, self.down_FD))

    def copied(self) -> Operands:
        return Operands(self.hidden_ND.clone(), self.square_DD.clone(), self.up_DF.clone(), self.down_FD.clone())

    def layers(self, x_ND: Tensor, *, times: int) -> None:
        for _ in range(times):
            mixed_ND = x_ND + x_ND @ self.square_DD
            out_ND = mixed_ND + functional.silu(mixed_ND @ self.up_DF) @ self.down_FD
            x_ND = out_ND * torch.rsqrt(out_ND.square().mean(dim=1, keepdim=True) + 1e-6)
