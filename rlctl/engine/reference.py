"""A fixed piece of work of a model's sizes, beside which a run is timed: what the machine gives at the moment.

It is written with torch alone and shares no code with the engine, so that nothing that makes the engine faster or
slower touches it. What stands here is what stored baselines are ratios to: whoever changes it raises `FORMAT` of
`rlctl/baselines/file.py`.

What a neighbour takes away depends on the work, so each judged phase has work of its kind beside it: steps of a few
rows as in sampling; as in an update, products of thousands of tokens, and the gradient and the optimizer's step of a
small model. The gradient matters: beside neighbours of six kinds an update slowed down as this work did, within 1 %,
and by up to 5 % more than products and elementwise work alone (docs/smoke.md).

How fast a piece of work is depends by some percent on which pages of memory it was given, for as long as it keeps them.
So there are several copies of what is multiplied and trained, in turn.

Letters: N tokens, or rows that are sampled at once; D hidden size, F feed-forward size, V vocabulary; B rows of T
tokens; L layers.
"""

from __future__ import annotations

from copy import deepcopy
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
"""Steps of these rows in a repetition for sampling."""
LARGEST = 8192
"""Sizes are cut there: a reference need not take a second to say how fast the machine is."""
COPIES = 16
COPIED_BYTES = 2**26
"""All copies together, but for the first; what is larger has so many pages that they average out."""
TRAINED_SHAPE = (8, 64)
"""B and T of what the small model is trained on."""
TRAINED_LAYERS = 2
HEAD = 32
"""Features of an attention head of it, where they divide its hidden size."""
LARGEST_TRAINED = {"hidden": 512, "inner": 2048, "vocabulary": 4096}
"""Sizes of the small model are cut there: with its optimizer it then holds some 200 MB."""


class Reference:
    """Products with weights of the model's sizes, the reads and writes of memory between them, and a small model."""

    def __init__(self, config: Any, *, device: torch.device, dtype: torch.dtype) -> None:
        text = config.get_text_config()
        hidden = min(text.hidden_size, LARGEST)
        inner = min(getattr(text, "intermediate_size", None) or 4 * hidden, LARGEST)
        draw = torch.Generator().manual_seed(0)

        def values(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=draw).mul(rows**-0.5).to(device=device, dtype=dtype)

        first = Operands(values(TOKENS, hidden) * TOKENS**0.5, values(hidden, hidden), values(hidden, inner),
                         values(inner, hidden))  # fmt: skip
        self._operands = cycle([first, *(first.copied() for _ in range(_further_copies(first.num_bytes)))])
        trained = Trained.of_sizes(text, device=device, dtype=dtype)
        self._trained = cycle([trained, *(deepcopy(trained) for _ in range(_further_copies(trained.num_bytes)))])
        self._is_cuda = device.type == "cuda"
        self._device = device

    def work(self, repetitions: int, *, like: JudgedPhase) -> None:
        """Do it so many times, to the end: on a GPU nothing is left in its queue."""
        for _ in range(repetitions):
            operands = next(self._operands)
            if like == "update":
                operands.layers(operands.hidden_ND, times=1)
                next(self._trained).step()
            else:
                operands.layers(operands.hidden_ND[:ROWS], times=ROW_STEPS)
        if self._is_cuda:
            torch.cuda.synchronize(self._device)


def _further_copies(num_bytes: int) -> int:
    return min(COPIES, max(1, COPIED_BYTES // num_bytes)) - 1


@dataclass(frozen=True, slots=True)
class Operands:
    """What is multiplied in a repetition."""

    hidden_ND: Tensor
    square_DD: Tensor
    up_DF: Tensor
    down_FD: Tensor

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.hidden_ND, self.square_DD, self.up_DF, self.down_FD))

    def copied(self) -> Operands:
        return Operands(self.hidden_ND.clone(), self.square_DD.clone(), self.up_DF.clone(), self.down_FD.clone())

    @torch.no_grad()
    def layers(self, x_ND: Tensor, *, times: int) -> None:
        for _ in range(times):
            mixed_ND = x_ND + x_ND @ self.square_DD
            out_ND = mixed_ND + functional.silu(mixed_ND @ self.up_DF) @ self.down_FD
            x_ND = out_ND * torch.rsqrt(out_ND.square().mean(dim=1, keepdim=True) + 1e-6)


class Trained:
    """A decoder of a few layers, its gradient by autograd, and Adam on float32 masters, written out."""

    def __init__(self, *, heads: int, hidden: int, inner: int, vocabulary: int, **where: Any) -> None:
        draw = torch.Generator().manual_seed(0)

        def weight(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=draw).mul(rows**-0.5).to(**where).requires_grad_()

        shapes_L = [[(hidden, hidden)] * 4 + [(hidden, inner)] * 2 + [(inner, hidden)]] * TRAINED_LAYERS
        self._heads = heads
        self._embedding_VD = weight(vocabulary, hidden)
        self._layers = [[weight(*shape) for shape in shapes] for shapes in shapes_L]
        self._weights = [self._embedding_VD, *(weight for layer in self._layers for weight in layer)]
        self._masters = [weight.detach().float().clone() for weight in self._weights]
        self._means = [torch.zeros_like(master) for master in self._masters]
        self._squares = [torch.zeros_like(master) for master in self._masters]
        self._ids_BT = torch.randint(vocabulary, TRAINED_SHAPE, generator=draw).to(where["device"])

    @classmethod
    def of_sizes(cls, config: Any, **where: Any) -> Trained:
        """Of the sizes that a model's config tells, cut at the largest."""
        hidden = min(config.hidden_size, LARGEST_TRAINED["hidden"])
        inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        return cls(
            heads=1 if hidden % HEAD else hidden // HEAD,
            hidden=hidden,
            inner=min(inner, LARGEST_TRAINED["inner"]),
            vocabulary=min(config.vocab_size, LARGEST_TRAINED["vocabulary"]),
            **where,
        )

    @property
    def num_bytes(self) -> int:
        states = (self._weights, self._masters, self._means, self._squares)
        return sum(tensor.nbytes for state in states for tensor in state)

    def step(self) -> None:
        with torch.enable_grad():
            gradients = torch.autograd.grad(self._loss(), self._weights)
        with torch.no_grad():
            for gradient, *state in zip(
                gradients, self._weights, self._masters, self._means, self._squares, strict=True
            ):
                _adam(gradient.float(), *state)

    def _loss(self) -> Tensor:
        x_BTD = functional.embedding(self._ids_BT, self._embedding_VD)
        for query, key, value, out, gate, up, down in self._layers:
            normed_BTD = _normed(x_BTD)
            q, k, v = (self._by_head(normed_BTD @ weight) for weight in (query, key, value))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x_BTD = x_BTD + mixed.transpose(1, 2).reshape_as(x_BTD) @ out
            normed_BTD = _normed(x_BTD)
            x_BTD = x_BTD + (functional.silu(normed_BTD @ gate) * (normed_BTD @ up)) @ down
        logits_BTV = (x_BTD @ self._embedding_VD.T).float()
        return functional.cross_entropy(logits_BTV.flatten(0, 1), self._ids_BT.flatten())

    def _by_head(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.view(*TRAINED_SHAPE, self._heads, -1).transpose(1, 2)


def _normed(x_ND: Tensor) -> Tensor:
    return x_ND * torch.rsqrt(x_ND.float().square().mean(dim=-1, keepdim=True) + 1e-6).to(x_ND.dtype)


def _adam(gradient: Tensor, weight: Tensor, master: Tensor, mean: Tensor, square: Tensor) -> None:
    """A step too small to move the weights anywhere: the millionth costs what the first did."""
    mean.lerp_(gradient, 0.1)
    square.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
    master.addcdiv_(mean, square.sqrt().add_(1e-8), value=-1e-9)
    weight.copy_(master)
