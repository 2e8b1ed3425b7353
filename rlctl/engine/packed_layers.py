"""The layers of a Llama-shaped decoder over a packed micro-batch on a CPU, with their gradient written out.

Through autograd, a layer is fifty operations that each pass over memory, and keep what they need for the way back:
35 KB a token and layer of SmolLM2. Here it is four products and five kernels there, eight products and six kernels
back, and 11 KB: norms, gates and rotations are cheap to compute again.

    there   n = norm(x)     q k v = n Wqkv   a = attention(rotate(q), rotate(k), v)   x' = x + a Wo
            m = norm(x')    g u = m Wgu                                               y = x' + (silu(g) * u) Wd
    kept    x, q, k, v (turned), a and its log-sum-exp, x', g, u

Letters: S packed tokens, D hidden width, H query heads, K key heads, W width of a head, F width of the MLP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlctl.engine import flash, kernels
from rlctl.engine.attention import PackedLayout
from rlctl.engine.llama import LlamaDecoder, LlamaLayer, RmsNorm


def hidden(decoder: LlamaDecoder, ids_S: Tensor, positions_S: Tensor, layout: PackedLayout) -> Tensor:
    """Hidden states after the last norm: [S], [S] -> [S, D]."""
    x_SD = _Embedding.apply(decoder.embedding, decoder.embedding.weight, ids_S)  # type: ignore[no-untyped-call]
    cosine, sine = (x[0].contiguous() for x in decoder.rotary(x_SD, positions_S[None]))
    for number, layer in enumerate(decoder.layers):
        work = _Work(layer, number, layout, cosine, sine, decoder.head_width, decoder.recompute)
        x_SD = _Layer.apply(work, x_SD, *_parameters(layer))  # type: ignore[no-untyped-call]
    result: Tensor = _Norm.apply(x_SD, decoder.norm, decoder.norm.weight)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True, slots=True)
class _Work:
    """One layer, and what it is to compute on."""

    layer: LlamaLayer
    number: int
    layout: PackedLayout
    cosine_SW: Tensor
    sine_SW: Tensor
    head_width: int
    recompute: bool


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the way back needs, besides the input."""

    q_SHW: Tensor
    k_SKW: Tensor
    v_SKW: Tensor
    attended_SHW: Tensor
    lse_SH: Tensor
    middle_SD: Tensor
    gate_up_S2F: Tensor
    q_before_norm: Tensor | None = None
    k_before_norm: Tensor | None = None

    def tensors(self) -> list[Tensor | None]:
        return [getattr(self, field.name) for field in fields(self)]


class _Layer(torch.autograd.Function):
    """(work, x [S, D], parameters in the order of `_parameters`) -> y [S, D]"""

    @staticmethod
    def forward(ctx: Any, work: _Work, x_SD: Tensor, *parameters: Tensor) -> Tensor:
        y_SD, kept = _there(work, x_SD)
        ctx.work = work
        ctx.save_for_backward(x_SD, *([] if work.recompute else kept.tensors()))
        return y_SD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_SD, *saved = ctx.saved_tensors
        kept = _Kept(*saved) if saved else _there(ctx.work, x_SD)[1]
        grad_x, by_parameter = _back(ctx.work, x_SD, kept, grads[0].contiguous())
        return None, grad_x, *(by_parameter.get(p) for p in _parameters(ctx.work.layer))


def _there(work: _Work, x_SD: Tensor) -> tuple[Tensor, _Kept]:
    layer, width = work.layer, work.head_width
    normed_SD = _norm(x_SD, layer.norm)
    heads = [m.out_features // width for m in (layer.q, layer.k, layer.v)]
    qkv = F.linear(normed_SD, *_joined(layer.q, layer.k, layer.v)).view(len(x_SD), -1, width)
    q, k, v = torch.split(qkv, heads, dim=1)
    before: tuple[Tensor, ...] = ()
    if layer.q_norm is not None and layer.k_norm is not None:
        before = (q.contiguous(), k.contiguous())
        q, k = _norm(before[0], layer.q_norm), _norm(before[1], layer.k_norm)
    _rotate(q, k, work)
    if work.layout.prompt_kv is not None:
        work.layout.keep(work.number, k, v)
    attended, lse = flash.outcome(q, k, v, work.layout.pieces, layer.scale)
    middle_SD = F.linear(attended.flatten(1), layer.o.weight, layer.o.bias)
    normed_SD = _norm(middle_SD, layer.mlp_norm, add=x_SD)
    gate_up = F.linear(normed_SD, *_joined(layer.gate, layer.up))
    y_SD = F.linear(_gated(gate_up), layer.down.weight, layer.down.bias).add_(middle_SD)
    return y_SD, _Kept(q, k, v, attended, lse, middle_SD, gate_up, *before)


Gradients = dict[Tensor, Tensor]


def _back(work: _Work, x_SD: Tensor, kept: _Kept, grad_SD: Tensor) -> tuple[Tensor, Gradients]:
    """(gradient by x, gradients by parameters)"""
    layer = work.layer
    found: Gradients = {}
    grad_gated = grad_SD @ layer.down.weight
    grad_gate_up = torch.empty_like(kept.gate_up_S2F)
    _functions(x_SD).silu_mul_backward(
        grad_gated.data_ptr(), kept.gate_up_S2F.data_ptr(), grad_gate_up.data_ptr(), *grad_gated.shape
    )
    _by_linear(found, (layer.down,), grad_SD, grad_gated)
    grad_middle = grad_SD.clone()
    grad_normed = grad_gate_up @ _joined(layer.gate, layer.up)[0]
    normed = _norm_back(found, layer.mlp_norm, kept.middle_SD, grad_normed, into=grad_middle)
    _by_linear(found, (layer.gate, layer.up), grad_gate_up, normed)

    _by_linear(found, (layer.o,), grad_middle, kept.attended_SHW.flatten(1))
    grad_attended = (grad_middle @ layer.o.weight).view_as(kept.attended_SHW)
    grad_qkv = _attention_back(found, work, kept, grad_attended)
    grad_normed = grad_qkv @ _joined(layer.q, layer.k, layer.v)[0]
    normed = _norm_back(found, layer.norm, x_SD, grad_normed, into=grad_middle)
    _by_linear(found, (layer.q, layer.k, layer.v), grad_qkv, normed)
    return grad_middle, found


def _attention_back(found: Gradients, work: _Work, kept: _Kept, grad_SHW: Tensor) -> Tensor:
    """[S, H, W] -> [S, (H + 2 K) W], the gradient by what the joined product of q, k and v gave."""
    layer = work.layer
    grad_q, grad_k, grad_v = flash.gradients(
        grad_SHW, kept.q_SHW, kept.k_SKW, kept.v_SKW, kept.attended_SHW, kept.lse_SH, work.layout.pieces, layer.scale
    )
    for x in (grad_q, grad_k):
        _functions(x).rotate_backward(x.data_ptr(), work.cosine_SW.data_ptr(), work.sine_SW.data_ptr(), *x.shape)
    if layer.q_norm is not None and layer.k_norm is not None:
        grad_q = _head_norm_back(found, layer.q_norm, kept.q_before_norm, grad_q)
        grad_k = _head_norm_back(found, layer.k_norm, kept.k_before_norm, grad_k)
    return torch.cat([grad_q, grad_k, grad_v], dim=1).flatten(1)


def _head_norm_back(found: Gradients, norm: RmsNorm, before: Tensor | None, grad: Tensor) -> Tensor:
    assert before is not None
    into = torch.zeros_like(before)
    _norm_back(found, norm, before, grad, into=into)
    return into


def _parameters(layer: LlamaLayer) -> list[Tensor]:
    norms = (layer.norm, layer.mlp_norm, layer.q_norm, layer.k_norm)
    linears = (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)
    of_linears = [p for m in linears for p in (m.weight, m.bias) if p is not None]
    return [*(norm.weight for norm in norms if norm is not None), *of_linears]


def _joined(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """The weights of layers with one input as one weight, and their biases."""
    weights: list[Tensor] = [m.weight for m in linears]
    biases: list[Tensor] = [m.bias for m in linears if m.bias is not None]
    return torch.cat(weights), torch.cat(biases) if biases else None


def _by_linear(found: Gradients, linears: Sequence[nn.Linear], grad_SO: Tensor, x_SI: Tensor) -> None:
    """Gradients by the weights and biases of layers with one input."""
    sizes = [m.out_features for m in linears]
    for m, part in zip(linears, torch.split(grad_SO.T @ x_SI, sizes), strict=True):
        found[m.weight] = part
    for m, columns in zip(linears, torch.split(grad_SO, sizes, dim=1), strict=True):
        if m.bias is not None:
            found[m.bias] = columns.sum(0, dtype=torch.float32).to(columns.dtype)


def _functions(x: Tensor) -> kernels.Functions:
    found = kernels.elementwise(x.dtype)
    assert found is not None, "a decoder is taken apart only where the kernels are"
    return found


def _norm(x: Tensor, norm: RmsNorm, *, add: Tensor | None = None) -> Tensor:
    """x normalised over its last dimension, `add` added to it in place before."""
    out = torch.empty_like(x)
    more = None if add is None else add.data_ptr()
    rows = x.numel() // x.shape[-1]
    _functions(x).add_rms_norm(
        x.data_ptr(), more, norm.weight.data_ptr(), out.data_ptr(), rows, x.shape[-1], norm.eps
    )  # fmt: skip
    return out


def _norm_back(found: Gradients, norm: RmsNorm, x: Tensor, grad_out: Tensor, *, into: Tensor) -> Tensor:
    """Adds the gradient by x to `into`; gives what the norm gave."""
    rows, width, parts = x.numel() // x.shape[-1], x.shape[-1], torch.get_num_threads()
    out, by_weight = torch.empty_like(x), torch.empty(parts, width, dtype=torch.float32)
    _functions(x).rms_norm_backward(
        grad_out.data_ptr(), x.data_ptr(), norm.weight.data_ptr(), into.data_ptr(), out.data_ptr(),
        by_weight.data_ptr(), rows, width, parts, norm.eps,
    )  # fmt: skip
    found[norm.weight] = by_weight.sum(0).to(norm.weight.dtype)
    return out


def _rotate(q: Tensor, k: Tensor, work: _Work) -> None:
    _functions(q).rotate(
        q.data_ptr(), k.data_ptr(), work.cosine_SW.data_ptr(), work.sine_SW.data_ptr(), None, None,
        len(q), q.shape[1], k.shape[1], q.shape[2], q.stride(0), k.stride(0), 0.0,
    )  # fmt: skip


def _gated(gate_up: Tensor) -> Tensor:
    """[S, 2 F] -> [S, F]: silu(gate) * up"""
    rows, both = gate_up.shape
    width = both // 2
    out = gate_up.new_empty(rows, width)
    up = gate_up.data_ptr() + width * gate_up.element_size()
    _functions(gate_up).silu_mul(gate_up.data_ptr(), up, out.data_ptr(), rows, width, both)
    return out


class _Norm(torch.autograd.Function):
    """(x [S, D], norm, its weight [D]) -> [S, D]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: RmsNorm, weight: nn.Parameter) -> Tensor:
        ctx.norm = norm
        ctx.save_for_backward(x)
        return _norm(x, ctx.norm)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        found: Gradients = {}
        grad_x = torch.zeros_like(x)
        _norm_back(found, ctx.norm, x, grads[0].contiguous(), into=grad_x)
        return grad_x, None, found[ctx.norm.weight]


class _Embedding(torch.autograd.Function):
    """(embedding, its weight [V, D], ids [S]) -> [S, D]

    The gradient goes straight into `main_grad`, where an optimizer keeps one: as a matrix of its own it is a vocabulary
    wide and nearly all zeros.
    """

    @staticmethod
    def forward(ctx: Any, embedding: nn.Embedding, weight: nn.Parameter, ids_S: Tensor) -> Tensor:
        ctx.embedding, ctx.ids = embedding, ids_S
        return F.embedding(ids_S, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, padding = ctx.embedding.weight, ctx.embedding.padding_idx
        learns_S = torch.ones_like(ctx.ids, dtype=torch.bool) if padding is None else ctx.ids != padding
        sums = getattr(weight, "main_grad", None)
        into = torch.zeros_like(weight) if sums is None else sums
        into.index_add_(0, ctx.ids[learns_S], grads[0][learns_S].to(into.dtype))
        return None, into if sums is None else None, None
