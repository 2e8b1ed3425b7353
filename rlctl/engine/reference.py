"""A fixed piece of work of a model's sizes, beside which a run is timed: what the machine gives at the moment.

It is written with torch alone and shares no code with the engine, so that nothing that makes the engine faster or
slower touches it. What stands here is what stored baselines are ratios to: whoever changes it changes VERSION.

Letters: T tokens, D hidden size, F feed-forward size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

VERSION = 1
TOKENS = 4096
LARGEST = 8192
"""Sizes are cut there: a reference need not take a second to say how fast the machine is."""


class Reference:
    """Products with weights of the model's sizes, and the reads and writes of memory between them."""

    def __init__(self, config: Any, *, device: torch.device, dtype: torch.dtype) -> None:
        text = config.get_text_config()
        hidden = min(text.hidden_size, LARGEST)
        inner = min(getattr(text, "intermediate_size", None) or 4 * hidden, LARGEST)
        draw = torch.Generator().manual_seed(0)

        def values(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=draw).mul(rows**-0.5).to(device=device, dtype=dtype)

        self.hidden_TD = values(TOKENS, hidden) * TOKENS**0.5
        self.weights = [values(hidden, hidden), values(hidden, inner), values(inner, hidden)]

    @torch.no_grad()
    def work(self, repetitions: int) -> None:
        """Do it so many times, to the end: on a GPU nothing is left in its queue."""
        square_DD, up_DF, down_FD = self.weights
        x_TD = self.hidden_TD
        for _ in range(repetitions):
            mixed_TD = x_TD + x_TD @ square_DD
            out_TD = mixed_TD + functional.silu(mixed_TD @ up_DF) @ down_FD
            x_TD = out_TD * torch.rsqrt(out_TD.square().mean(dim=1, keepdim=True) + 1e-6)
        if x_TD.is_cuda:
            torch.cuda.synchronize(x_TD.device)
