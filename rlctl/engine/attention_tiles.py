"""The pieces of `flash.py` on a CPU by batched matrix products over tiles of scores.

A processor with matrix units multiplies ten times as fast as flash attention's loops add up, as long as what stands
between the products (`attention_tiles.c`) is one pass over a tile that stays in its cache:

    there   s = q k^T in float32      w = softmax(s)            o = w v
    back    s again, g = do v^T       w, ds = kernel(s, g)      dv = w^T do    dq = ds k    dk = ds^T q

Scores are float32, for their rounding to bfloat16 would move probabilities by a hundredth. The query heads that share
a key head are rows of one product, token by token.

Letters: S packed tokens, H query heads, K key heads, D width of a head, b sequences times K, M tokens times H / K,
N keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlctl.engine import kernels
from rlctl.engine.flash import Grads
from rlctl.engine.flash_torch import Padded, alike

TILE = 2**20
"""Scores at a time: 4 MB in float32, about what the caches of a few cores hold."""

TOKENS = 128
"""Queries at a time of one long sequence, which bounds what is computed above the diagonal."""


def available() -> bool:
    """Whether the kernels can be built here."""
    return kernels.everywhere()


class Causal:
    """Runs of the packed sequence, each with itself; those of like length are padded on the right into one batch."""

    def __init__(self, lengths: np.ndarray, *, num_prompts: int, device: torch.device) -> None:
        starts = np.cumsum(lengths) - lengths
        self.scratch = _Scratch()
        self.tables = [
            Padded(starts[runs], lengths[runs], device)
            for first, last in ((0, num_prompts), (num_prompts, len(lengths)))
            for runs in alike(lengths, first, last)
        ]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float)
        for table in self.tables:
            part, part_lse = _there(
                *(table.tokens(x) for x in (q, k, v)), causal=True, scale=scale, scratch=self.scratch
            )
            table.write(out, part)
            table.write(lse, part_lse)
        return out, lse

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> Grads:
        grads = tuple(x.new_empty(x.shape) for x in (q, k, v))
        dots = row_dots(grad, out)
        for table in self.tables:
            # Padding has no gradient: zeros, and so is their product with the outcome.
            grad_here, dots_here = (table.tokens(x, zero=True) for x in (grad, dots))
            q_here, k_here, v_here, lse_here = (table.tokens(x) for x in (q, k, v, lse))
            parts = _back(
                grad_here, q_here, k_here, v_here, dots_here, lse_here, causal=True, scale=scale, scratch=self.scratch
            )
            for whole, part in zip(grads, parts, strict=True):
                table.write(whole, part)
        return grads  # type: ignore[return-value]


class Across:
    """Not causal: run i of the queries meets run i of the keys."""

    def __init__(self, q_lengths: np.ndarray, k_lengths: np.ndarray, *, q_start: int) -> None:
        q_ends, k_ends = np.cumsum(q_lengths), np.cumsum(k_lengths)
        runs = zip(q_ends - q_lengths, q_ends, k_ends - k_lengths, k_ends, strict=True)
        self.pairs = [(slice(a, b), slice(c, d)) for a, b, c, d in runs if b > a]
        self.q = slice(q_start, q_start + int(q_lengths.sum()))
        self.num_k = int(k_lengths.sum())
        self.scratch = _Scratch()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        q = q[self.q]
        out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float)
        for mine, keys in self.pairs:
            part, part_lse = _there(
                q[None, mine], k[None, keys], v[None, keys], causal=False, scale=scale, scratch=self.scratch
            )
            out[mine], lse[mine] = part[0], part_lse[0]
        return out, lse

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> Grads:
        grad, q, out, lse = (x[self.q] for x in (grad, q, out, lse))
        grad_q = q.new_empty(q.shape)
        grad_k, grad_v = (x.new_zeros(self.num_k, *x.shape[1:]) for x in (k, v))
        dots = row_dots(grad, out)
        for mine, keys in self.pairs:
            grad_here, q_here, dots_here, lse_here = (x[None, mine] for x in (grad, q, dots, lse))
            k_here, v_here = k[None, keys], v[None, keys]
            parts = _back(
                grad_here, q_here, k_here, v_here, dots_here, lse_here, causal=False, scale=scale, scratch=self.scratch
            )
            grad_q[mine], grad_k[keys], grad_v[keys] = (part[0] for part in parts)
        return grad_q, grad_k, grad_v


class _Scratch:
    """Memory of a tile, the same for all tiles and layers: fresh memory costs as much as a product."""

    def __init__(self) -> None:
        self.buffers: dict[str, Tensor] = {}

    def tile(self, name: str, shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
        size = shape[0] * shape[1] * shape[2]
        if name not in self.buffers or len(self.buffers[name]) < size:
            self.buffers[name] = torch.empty(size, dtype=dtype)
        return self.buffers[name][:size].view(shape)


def _there(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, scratch: _Scratch) -> tuple[Tensor, Tensor]:
    """[sequences, tokens, H, D], [sequences, keys, K, D] twice -> of q's shape, log-sum-exp of its first three."""
    kernel = _kernels(q.dtype)
    per_token = q.shape[2] // k.shape[2]
    q_bMD, k_bND, v_bND = (_rows(x, k.shape[2]) for x in (q, k, v))
    wide_q, wide_k = q_bMD.float(), k_bND.float()
    out, lse = torch.empty_like(q_bMD), q.new_empty(q_bMD.shape[:2], dtype=torch.float)
    for tile in _tiles(q_bMD, k_bND, per_token, causal):
        scores = scratch.tile("scores", tile.shape, torch.float)
        torch.bmm(tile.of_rows(wide_q), tile.of_keys(wide_k).transpose(1, 2), out=scores)
        weights = scratch.tile("weights", tile.shape, q.dtype)
        tile_lse = scores.new_empty(tile.shape[:2])
        kernel.softmax(
            scores.data_ptr(),
            weights.data_ptr(),
            tile_lse.data_ptr(),
            *tile.shape,
            per_token,
            tile.first,
            causal,
            scale,
        )
        tile.of_rows(lse).copy_(tile_lse)
        _product(weights, tile.of_keys(v_bND), into=tile.of_rows(out))
    return _tokens(out, q), _tokens(lse[..., None], q)[..., 0]


def _back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, dots: Tensor, lse: Tensor, *, causal: bool, scale: float,
    scratch: _Scratch,
) -> Grads:  # fmt: skip
    """The gradients of q, k and v of `_there`, given the whole log-sum-exp and grad . out."""
    kernel = _kernels(q.dtype)
    heads = k.shape[2]
    per_token = q.shape[2] // heads
    grad_bMD, q_bMD, k_bND, v_bND = (_rows(x, heads) for x in (grad, q, k, v))
    dots_bM, lse_bM = (_rows(x[..., None], heads)[..., 0] for x in (dots, lse))
    wide_q, wide_k = q_bMD.float(), k_bND.float()
    tiles = list(_tiles(q_bMD, k_bND, per_token, causal))
    grad_q, grad_k, grad_v = torch.empty_like(q_bMD), _Sum(k_bND, tiles), _Sum(v_bND, tiles)
    for tile in tiles:
        scores = scratch.tile("scores", tile.shape, torch.float)
        torch.bmm(tile.of_rows(wide_q), tile.of_keys(wide_k).transpose(1, 2), out=scores)
        weights, grads = (scratch.tile(name, tile.shape, q.dtype) for name in ("weights", "grads"))
        torch.bmm(tile.of_rows(grad_bMD), tile.of_keys(v_bND).transpose(1, 2), out=grads)
        tile_lse, tile_dots = (tile.of_rows(x).contiguous() for x in (lse_bM, dots_bM))
        kernel.softmax_backward(
            scores.data_ptr(), grads.data_ptr(), tile_lse.data_ptr(), tile_dots.data_ptr(), weights.data_ptr(),
            *tile.shape, per_token, tile.first, causal, scale,
        )  # fmt: skip
        _product(grads, tile.of_keys(k_bND), into=tile.of_rows(grad_q))
        grad_k.add(tile, grads.transpose(1, 2), tile.of_rows(q_bMD))
        grad_v.add(tile, weights.transpose(1, 2), tile.of_rows(grad_bMD))
    return _tokens(grad_q, q), _tokens(grad_k.total(), k), _tokens(grad_v.total(), v)


class _Sum:
    """A gradient to which several tiles of queries may add, then in float32."""

    def __init__(self, like: Tensor, tiles: Sequence[_Tile]) -> None:
        self.dtype = like.dtype
        self.several = any(tile.first for tile in tiles)
        self.sum = torch.zeros_like(like, dtype=torch.float) if self.several else torch.empty_like(like)

    def add(self, tile: _Tile, a: Tensor, b: Tensor) -> None:
        mine = tile.of_keys(self.sum)
        if self.several:
            mine += torch.bmm(a, b)
        else:
            _product(a, b, into=mine)

    def total(self) -> Tensor:
        return self.sum.to(self.dtype)


def _product(a: Tensor, b: Tensor, *, into: Tensor) -> None:
    if into.is_contiguous():
        torch.bmm(a, b, out=into)
    else:
        into.copy_(torch.bmm(a, b))


@dataclass(frozen=True, slots=True)
class _Tile:
    """Some sequences, a run of their rows whose first token is `first`, and the keys 0..keys-1 that those see."""

    batch: slice
    rows: slice
    keys: int
    first: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.batch.stop - self.batch.start, self.rows.stop - self.rows.start, self.keys

    def of_rows(self, x: Tensor) -> Tensor:
        return x[self.batch, self.rows]

    def of_keys(self, x: Tensor) -> Tensor:
        return x[self.batch, : self.keys]


def _tiles(q_bMD: Tensor, k_bND: Tensor, per_token: int, causal: bool) -> Iterator[_Tile]:
    batch, tokens, keys = len(q_bMD), q_bMD.shape[1] // per_token, k_bND.shape[1]
    step = TOKENS if causal else max(TOKENS, TILE // (keys * per_token))
    for first in range(0, tokens, step):
        last = min(first + step, tokens)
        seen = last if causal else keys
        together = max(1, TILE // (seen * (last - first) * per_token))
        for start in range(0, batch, together):
            sequences = slice(start, min(start + together, batch))
            yield _Tile(sequences, slice(first * per_token, last * per_token), seen, first)


def _rows(x: Tensor, heads: int) -> Tensor:
    """[sequences, tokens, H, D] -> [sequences * K, tokens * H / K, D]"""
    sequences, tokens, _, width = x.shape
    by_head = x.reshape(sequences, tokens, heads, -1, width).transpose(1, 2)
    return by_head.reshape(sequences * heads, -1, width)


def _tokens(x_bMD: Tensor, like: Tensor) -> Tensor:
    """The way back, to the first three dimensions of `like`."""
    sequences, tokens, heads, _ = like.shape
    by_head = x_bMD.view(sequences, -1, tokens, heads * sequences // len(x_bMD), x_bMD.shape[2])
    return by_head.transpose(1, 2).reshape(sequences, tokens, heads, x_bMD.shape[2])


def row_dots(grad: Tensor, out: Tensor) -> Tensor:
    """grad . out of each head: [S, H, D] twice -> [S, H], float32"""
    grad, out = grad.contiguous(), out.contiguous()
    dots = grad.new_empty(grad.shape[:2], dtype=torch.float)
    _kernels(grad.dtype).row_dots(grad.data_ptr(), out.data_ptr(), dots.data_ptr(), dots.numel(), grad.shape[2])
    return dots


def _kernels(dtype: torch.dtype) -> kernels.Functions:
    found = kernels.attention_tiles(dtype)
    assert found is not None, "`available` was asked"
    return found
