"""Weights of linear layers in oneDNN's blocked layout, for sampling on a CPU in bfloat16.

A product of few rows (a decode step has tens) spends as long on rearranging the weight as on multiplying with it.
While sampling, the weights do not change: they are rearranged once (0.1 s for 134 M parameters, as much memory
again) and halve the time of every product.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType

import torch
from torch import Tensor, nn


def pays(weight: Tensor) -> bool:
    """Whether this machine multiplies that weight faster when it is rearranged."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
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
        _packs[linear.weight.data_ptr()] = Prepacked(linear.weight, linear.bias, rows=rows)
        linear.forward = MethodType(_forward, linear)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for linear in plain:
            del linear.forward, _packs[linear.weight.data_ptr()]


def _forward(linear: nn.Linear, x: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        result: Tensor = torch.ops.rlctl.prepacked_linear(x, linear.weight)
        return result
    return _packs[linear.weight.data_ptr()](x)


# A compiled graph cannot hold a tensor in oneDNN's layout: it names the pack by the plain weight.
_packs: dict[int, Prepacked] = {}
_library = torch.library.Library("rlctl", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("prepacked_linear(Tensor x, Tensor weight) -> Tensor")  # type: ignore[no-untyped-call]
_library.impl("prepacked_linear", lambda x, weight: _packs[weight.data_ptr()](x), "CPU")  # type: ignore[no-untyped-call]


@torch.library.register_fake("rlctl::prepacked_linear", lib=_library)  # type: ignore[untyped-decorator]
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])
