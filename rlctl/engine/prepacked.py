"""Weights of linear layers in oneDNN's blocked layout, for sampling on a CPU in bfloat16.

A product of few rows (a decode step has tens) spends as long on rearranging the weight as on multiplying with it.
While sampling, the weights do not change: they are rearranged once (0.1 s for 134 M parameters, as much memory
again) and halve the time of every product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn


def pays(weight: Tensor) -> bool:
    """Whether this machine multiplies that weight faster when it is rearranged."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported")
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


class Prepacked:
    """x -> x W^T + b with the weight rearranged for about `rows` rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, rows: int) -> None:
        self.bias = None if bias is None else bias.detach()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return result


SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one module, by the names of the Llama, Qwen and SmolLM families, that multiply the same input."""


@contextmanager
def prepacked_linears(module: nn.Module, *, rows: int) -> Iterator[None]:
    """Inside, every plain nn.Linear of `module` multiplies with its rearranged weight; inference only.

    Siblings multiply as one: the first computes all, the others take their part.
    """
    changed: list[nn.Linear] = []
    for linears in _families(module):
        bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])
        family = _Family(Prepacked(torch.cat([linear.weight.detach() for linear in linears]), bias, rows=rows), linears)
        for i, linear in enumerate(linears):
            linear.forward = partial(family.part, i)  # type: ignore[method-assign]
        changed += linears
    try:
        yield
    finally:
        for linear in changed:
            del linear.forward


def _families(module: nn.Module) -> Iterator[list[nn.Linear]]:
    """Every plain linear layer that gains from it: siblings together, others alone."""
    for parent in module.modules():
        plain = {name: m for name, m in parent.named_children() if type(m) is nn.Linear and pays(m.weight)}
        for names in SIBLINGS:
            family = [plain[name] for name in names if name in plain]
            if len(family) == len(names) and len({linear.bias is None for linear in family}) == 1:
                yield family
                plain = {name: m for name, m in plain.items() if name not in names}
        yield from ([linear] for linear in plain.values())


class _Family:
    """Linear layers with the same input, as one product."""

    def __init__(self, packed: Prepacked, linears: Sequence[nn.Linear]) -> None:
        self.packed = packed
        self.sizes = [linear.out_features for linear in linears]
        self.input: Tensor | None = None
        self.parts: tuple[Tensor, ...] = ()

    def part(self, i: int, x: Tensor) -> Tensor:
        if self.input is not x:
            self.input, self.parts = x, self.packed(x).split(self.sizes, dim=-1)  # type: ignore[no-untyped-call]
        mine = self.parts[i]
        if i + 1 == len(self.sizes):
            self.input, self.parts = None, ()
        return mine
