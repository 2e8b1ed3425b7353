"""One decode step of a Llama-shaped decoder on a CPU: between two matrix products, one kernel.

A step of 64 rows through the modules of transformers is 1,500 small tensor operations, which take longer than the
products. Here a layer is seven products and four kernels (`elementwise.c`, `decode_attention.c`); the numbers are the
modules', roundings included, up to the order of float32 sums.

Letters: B rows, D hidden width, H query heads, K key heads, W width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlctl.engine import kernels
from rlctl.engine.attention import during
from rlctl.engine.decode import DecodeStep, KvCache, KvShape
from rlctl.engine.llama import LlamaDecoder, LlamaLayer, RmsNorm

_Product = Callable[[Tensor], Tensor]
_Hidden = Callable[[Tensor, Tensor, Tensor], Tensor]


class LlamaStep:
    """Decode steps with the weights, and the products, that the linear layers have when it is made."""

    def __init__(self, decoder: LlamaDecoder, elementwise: kernels.Functions) -> None:
        self.decoder, self.kernels = decoder, elementwise
        self.layers = [_Products.of(layer) for layer in decoder.layers]

    def __call__(self, ids_B: Tensor, positions_B: Tensor, step: DecodeStep) -> Tensor:
        """Hidden states after the last norm: [B], [B] -> [B, D]. Writes keys and values into the step's cache."""
        decoder = self.decoder
        residual_BD = nn.functional.embedding(ids_B, decoder.embedding.weight)
        cosine, sine = (x[:, 0].contiguous() for x in decoder.rotary(residual_BD, positions_B[:, None]))
        delta_BD: Tensor | None = None
        for number, (layer, products) in enumerate(zip(decoder.layers, self.layers, strict=True)):
            x_BD = self._add_norm(residual_BD, delta_BD, layer.norm)
            attended = self._attend(number, layer, products, x_BD, cosine, sine, step)
            x_BD = self._add_norm(residual_BD, products.o(attended), layer.mlp_norm)
            delta_BD = products.down(self._gated(products.gate(x_BD), products.up(x_BD)))
        return self._add_norm(residual_BD, delta_BD, decoder.norm)

    def _add_norm(self, residual_BD: Tensor, delta_BD: Tensor | None, norm: RmsNorm) -> Tensor:
        """Adds `delta` to `residual` in place; gives that, normalised."""
        out = torch.empty_like(residual_BD)
        delta = None if delta_BD is None else delta_BD.data_ptr()
        self.kernels.add_rms_norm(
            residual_BD.data_ptr(), delta, norm.weight.data_ptr(), out.data_ptr(), *residual_BD.shape, norm.eps
        )
        return out

    def _attend(
        self, number: int, layer: LlamaLayer, products: _Products, x_BD: Tensor, cosine: Tensor, sine: Tensor,
        step: DecodeStep,
    ) -> Tensor:  # fmt: skip
        """[B, D] -> [B, H * W]"""
        rows, width = len(x_BD), self.decoder.head_width
        q, k, v = products.q(x_BD), products.k(x_BD), products.v(x_BD)
        norms = [None if norm is None else norm.weight.data_ptr() for norm in (layer.q_norm, layer.k_norm)]
        self.kernels.rotate(
            q.data_ptr(), k.data_ptr(), cosine.data_ptr(), sine.data_ptr(), *norms,
            rows, q.shape[1] // width, k.shape[1] // width, width, q.shape[1], k.shape[1],
            layer.q_norm.eps if layer.q_norm else 0.0,
        )  # fmt: skip
        heads = (x.view(rows, -1, 1, width) for x in (q, k, v))
        return step.attend(number, *heads, scale=layer.scale, window=None).view(rows, -1)

    def _gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up, in the memory of gate."""
        self.kernels.silu_mul(gate.data_ptr(), up.data_ptr(), gate.data_ptr(), *gate.shape, gate.shape[1])
        return gate


@dataclass(frozen=True, slots=True)
class _Products:
    """What multiplies with the weights of one layer."""

    q: _Product
    k: _Product
    v: _Product
    o: _Product
    gate: _Product
    up: _Product
    down: _Product

    @classmethod
    def of(cls, layer: LlamaLayer) -> _Products:
        return cls(*(x.forward for x in (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)))


PROBE_ROWS = 3

CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Largest difference between the two ways, relative to the largest hidden state: rounding makes a hundredth of it."""


def checked(decoder: LlamaDecoder | None, hidden: _Hidden, *, vocab_size: int) -> LlamaDecoder | None:
    """The decoder, if a step by it gives what `hidden`, the transformers modules, gives; else None."""
    if decoder is None:
        return None
    weight = decoder.embedding.weight
    if weight.device.type != "cpu" or not (kernels.everywhere() and weight.dtype in CLOSE):
        return None
    elementwise = kernels.elementwise(weight.dtype)
    if elementwise is None or decoder.rotary(weight, torch.zeros(1, 1))[0].shape[-1] != decoder.head_width:
        return None
    ours, theirs = _probe_cache(decoder), _probe_cache(decoder)
    ids = torch.arange(PROBE_ROWS) * 7919 % vocab_size
    with torch.inference_mode():
        step = DecodeStep(ours)
        positions = torch.from_numpy(step.positions_B)
        fast = LlamaStep(decoder, elementwise)(ids, positions, step)
        with during(DecodeStep(theirs)) as handle:
            plain = hidden(ids[:, None], positions[:, None], handle)[:, 0]
    return decoder if bool((fast - plain).abs().max() <= CLOSE[plain.dtype] * plain.abs().max()) else None


def _probe_cache(decoder: LlamaDecoder) -> KvCache:
    """One prompt of a few made-up keys and values, the same at each call."""
    width = decoder.head_width
    heads = decoder.layers[0].k.out_features // width
    shape = KvShape(len(decoder.layers), heads, width)
    cache = KvCache(
        shape=shape, rows=PROBE_ROWS, groups=1, prompt_tokens=5, new_tokens=1, like=decoder.embedding.weight.detach()
    )
    generator = torch.Generator().manual_seed(0)
    kv = [
        tuple(torch.randn(1, heads, 5, width, generator=generator).to(cache.own_kv.dtype) for _ in range(2))
        for _ in decoder.layers
    ]
    cache.enter(dict(enumerate(kv)), [5], n=PROBE_ROWS)  # type: ignore[arg-type]
    return cache
