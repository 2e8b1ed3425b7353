"""Weights of linear layers in oneDNN's blocked layout, for sampling on a CPU in bfloat16.

A product of few rows (a decode step has tens) spends as long on rearranging the weight as on multiplying with it.
While sampling, the weights do not change: they are rearranged once (0.1 s for 134 M parameters, as much memory
again) and halve the time of every product.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def prepacked_linears(module: nn.Module, *, rows: int) -> Iterator[None]:
    """Inside, every plain nn.Linear of `module` multiplies with its rearranged weight; inference only."""
    plain = [m for m in module.modules() if type(m) is nn.Linear and pays(m.weight)]
    for linear in plain:
        linear.forward = Prepacked(linear.weight, linear.bias, rows=rows)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        for linear in plain:
            del linear.forward
