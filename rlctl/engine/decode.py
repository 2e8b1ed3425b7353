"""Keys and values while sampling, and the attention of one decode step over them.

A row is one completion in the making. Rows stand densely in slots 0..B-1, so that a step is one batch without holes;
when a row ends, the last one moves into its slot. The prompt of a group is held once:

    prompt_k  [L, groups, K, D, P]    written once, when the group enters; transposed, as its product wants it
    prompt_v  [L, groups, K, P, D]
    own_kv    [L, rows,   K, C, D]    one token a step

All are allocated whole; on a CPU the system hands out memory page by page, as rows grow.

Letters: B live rows, G group slots, M most live rows of one group, P longest prompt, C longest completion,
H query heads, K key heads, D width of a head, L layers, A keys a step looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlctl.engine import kernels
from rlctl.errors import BackendError

Index = npt.NDArray[np.int64]

TASK_ROWS = 8
"""Rows of a group that one thread takes together: enough to read the prompt seldom, few enough to share the work."""


class KvCache:
    """Slots for `rows` completions of `groups` prompts, and which row belongs to which."""

    def __init__(
        self, *, shape: KvShape, rows: int, groups: int, prompt_tokens: int, new_tokens: int, like: Tensor
    ) -> None:
        self.prompt_k = like.new_empty(shape.layers, groups, shape.heads, shape.width, prompt_tokens)
        self.prompt_v = like.new_empty(shape.layers, groups, shape.heads, prompt_tokens, shape.width)
        self.own_kv = like.new_empty(2, shape.layers, rows, shape.heads, new_tokens, shape.width)
        self.shape = shape
        self.max_rows = rows
        self.prompt_lengths_G: Index = np.zeros(groups, dtype=np.int64)
        self.free_groups = list(range(groups))[::-1]
        self.group_B: Index = np.zeros(0, dtype=np.int64)
        self.lengths_B: Index = np.zeros(0, dtype=np.int64)
        """Own tokens of each live row."""
        self.kernel = kernels.decode_attention(like.dtype, shape.width) if like.device.type == "cpu" else None

    @property
    def num_rows(self) -> int:
        return len(self.group_B)

    @property
    def free_rows(self) -> int:
        return self.max_rows - self.num_rows

    def enter(self, prompt_kv: dict[int, tuple[Tensor, Tensor]], prompt_lengths: Sequence[int], *, n: int) -> None:
        """Take groups of n rows in; `prompt_kv` has, for each layer, [new groups, K, longest, D] twice."""
        slots = [self.free_groups.pop() for _ in prompt_lengths]
        where = torch.tensor(slots, device=self.own_kv.device)
        for layer, (keys, values) in prompt_kv.items():
            self.prompt_k[layer, where, :, :, : keys.shape[2]] = keys.transpose(-1, -2)
            self.prompt_v[layer, where, :, : values.shape[2]] = values
        self.prompt_lengths_G[slots] = prompt_lengths
        self.group_B = np.concatenate([self.group_B, np.repeat(slots, n)])
        self.lengths_B = np.concatenate([self.lengths_B, np.zeros(len(slots) * n, dtype=np.int64)])

    def leave(self, done_B: npt.NDArray[np.bool_]) -> Index:
        """Free the slots of finished rows; gives, for each slot that is still used, the row that now stands in it."""
        kept = int((~done_B).sum())
        order = np.arange(kept)
        holes, movers = np.flatnonzero(done_B[:kept]), kept + np.flatnonzero(~done_B[kept:])
        order[holes] = movers
        if len(holes):
            length = int(self.lengths_B[movers].max())
            to, source = (torch.from_numpy(x).to(self.own_kv.device) for x in (holes, movers))
            self.own_kv[:, :, to, :, :length] = self.own_kv[:, :, source, :, :length]
        before = set(self.group_B.tolist())
        self.group_B, self.lengths_B = self.group_B[order], self.lengths_B[order]
        self.free_groups += sorted(before - set(self.group_B.tolist()), reverse=True)
        return order


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token's keys and values are: 2 * layers * heads * width numbers."""

    layers: int
    heads: int
    width: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return 2 * self.layers * self.heads * self.width * dtype.itemsize


class DecodeStep:
    """What every layer of one decode step shares: who attends to what. Made before the step; advances the cache."""

    def __init__(self, cache: KvCache) -> None:
        self.cache = cache
        self.positions_B: Index = cache.prompt_lengths_G[cache.group_B] + cache.lengths_B
        self.own_lengths_B = cache.lengths_B.copy()
        cache.lengths_B += 1
        self._order = np.argsort(cache.group_B, kind="stable")
        groups, self._counts = np.unique(cache.group_B, return_counts=True)
        self._groups = groups
        self._tables = _KernelTables(self) if cache.kernel is not None else _TorchTables(self)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        """[B, H, 1, D], [B, K, 1, D], [B, K, 1, D] -> [B, 1, H, D]; writes key and value into the cache."""
        return self._tables.attend(layer, query, key, value, scale, window)


class _KernelTables:
    """The step as the C kernel wants it."""

    def __init__(self, step: DecodeStep) -> None:
        cache = self.cache = step.cache
        starts = np.cumsum(step._counts) - step._counts
        self.tasks: Index = np.array(
            [
                (group, start + done, min(TASK_ROWS, count - done))
                for group, start, count in zip(step._groups, starts, step._counts, strict=True)
                for done in range(0, count, TASK_ROWS)
            ],
            dtype=np.int64,
        )
        self.rows = step._order.astype(np.int64)
        self.lengths = step.own_lengths_B
        self._tables = tuple(x.ctypes.data for x in (self.tasks, self.rows, self.lengths, cache.prompt_lengths_G))
        caches = (cache.own_kv[0], cache.own_kv[1], cache.prompt_k, cache.prompt_v)
        self._layers = [
            tuple(x.data_ptr() + layer * x[0].nbytes for x in caches) for layer in range(cache.shape.layers)
        ]
        self._capacities = (cache.own_kv.shape[4], cache.prompt_v.shape[3])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        rows, heads, _, width = query.shape
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        out = torch.empty(rows, 1, heads, width, dtype=query.dtype)
        kv_heads = self.cache.shape.heads
        assert self.cache.kernel is not None
        failed = self.cache.kernel(
            query.data_ptr(), key.data_ptr(), value.data_ptr(), out.data_ptr(), *self._layers[layer], *self._tables,
            len(self.tasks), kv_heads, heads // kv_heads, *self._capacities, window or 0, scale,
        )  # fmt: skip
        if failed:
            raise BackendError("out of memory while sampling.", hint="lower local.kv_cache_gb or local.max_num_seqs.")
        return out


class _TorchTables:
    """The step as index tensors: prompt scores are one product a group, own scores one a row."""

    def __init__(self, step: DecodeStep) -> None:
        cache, device = step.cache, step.cache.own_kv.device
        self.cache = cache
        widest = int(step._counts.max())
        member = np.arange(len(step._order)) - np.repeat(np.cumsum(step._counts) - step._counts, step._counts)
        table = np.repeat(np.arange(len(step._groups)), step._counts)
        rows_GM = np.zeros((len(step._groups), widest), dtype=np.int64)
        rows_GM[table, member] = step._order
        place_B = np.empty(len(step._order), dtype=np.int64)
        place_B[step._order] = table * widest + member

        def on_device(x: Index) -> Tensor:
            return torch.from_numpy(x).to(device)

        self.groups_G, self.rows_GM, self.place_B = on_device(step._groups), on_device(rows_GM), on_device(place_B)
        self.dense = np.array_equal(step._groups, np.arange(len(step._groups)))
        self.all_B = torch.arange(len(step._order), device=device)
        self.own_B = on_device(step.own_lengths_B)
        self.prompt_B = on_device(cache.prompt_lengths_G[cache.group_B])
        self.prompt_width = int(cache.prompt_lengths_G[step._groups].max())
        self.own_width = int(step.own_lengths_B.max()) + 1
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        cache = self.cache
        rows, heads, _, width = query.shape
        kv_heads = cache.shape.heads
        own_k, own_v = cache.own_kv[:, layer, :rows]
        own_k[self.all_B, :, self.own_B] = key[:, :, 0]
        own_v[self.all_B, :, self.own_B] = value[:, :, 0]
        own_k, own_v = own_k[:, :, : self.own_width], own_v[:, :, : self.own_width]
        groups = slice(len(self.groups_G)) if self.dense else self.groups_G
        prompt_k = cache.prompt_k[layer, groups, :, :, : self.prompt_width]
        prompt_v = cache.prompt_v[layer, groups, :, : self.prompt_width]
        q = query.view(rows, kv_heads, heads // kv_heads, width) * scale
        to_prompt = self._by_row(self._by_group(q) @ prompt_k)
        scores = torch.cat([to_prompt, q @ own_k.transpose(-1, -2)], dim=-1).float() + self._mask(window)
        weights = scores.softmax(-1).to(query.dtype)
        to_prompt, to_own = weights[..., : self.prompt_width], weights[..., self.prompt_width :]
        out = self._by_row(self._by_group(to_prompt) @ prompt_v) + to_own @ own_v
        whole: Tensor = out.reshape(rows, 1, heads, width)
        return whole

    def _by_group(self, x: Tensor) -> Tensor:
        """[B, K, per_kv, X] -> [G, K, M * per_kv, X]"""
        groups, members = self.rows_GM.shape
        return x[self.rows_GM].transpose(1, 2).reshape(groups, x.shape[1], members * x.shape[2], x.shape[3])

    def _by_row(self, x: Tensor) -> Tensor:
        """[G, K, M * per_kv, X] -> [B, K, per_kv, X]"""
        groups, members = self.rows_GM.shape
        by_member = x.view(groups, x.shape[1], members, -1, x.shape[3]).transpose(1, 2)
        by_row: Tensor = by_member.flatten(0, 1)[self.place_B]
        return by_row

    def _mask(self, window: int | None) -> Tensor:
        """[B, 1, 1, A] to add: -inf where a row's prompt or its own tokens end, or the window begins."""
        if window not in self._masks:
            prompt = torch.arange(self.prompt_width, device=self.own_B.device)
            own = torch.arange(self.own_width, device=self.own_B.device)
            visible = torch.cat([prompt < self.prompt_B[:, None], own <= self.own_B[:, None]], dim=1)
            if window is not None:
                position = torch.cat([prompt.expand(len(self.own_B), -1), self.prompt_B[:, None] + own], dim=1)
                visible &= position > (self.prompt_B + self.own_B)[:, None] - window
            mask = torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, float("-inf"))
            self._masks[window] = mask[:, None, None]
        return self._masks[window]
