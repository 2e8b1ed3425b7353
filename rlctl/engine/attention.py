"""Attention in which the completions of a prompt share that prompt, on unmodified Hugging Face models.

Registered through transformers' AttentionInterface under the name SHARED_PREFIX. The model is called
with a keyword `shared_prefix`, which transformers hands through to every attention layer: a PackedLayout
(training, scoring and prefill: one packed sequence) or a DecodeCache (sampling: one new token a row).
No Cache object of transformers takes part, so its changing interface does not matter.

Letters: S packed tokens, G prompts, P longest prompt, R rows, C longest completion, n rows a prompt,
H query heads, K key heads, D width of a head, L layers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlctl.engine.packing import PackedBatch
from rlctl.errors import ModelError

SHARED_PREFIX = "rlctl_shared_prefix"


class PackedLayout:
    """Where prompts and completions stand in a packed sequence, as index tensors and masks on the device.

    With `keep_prompt_kv` the prompts' keys and values of each layer are kept for a DecodeCache.
    """

    def __init__(self, batch: PackedBatch, *, device: torch.device, keep_prompt_kv: bool = False) -> None:
        self.prompt_index_GP = torch.from_numpy(batch.prompt_index_GP).to(device)
        self.completion_index_RC = torch.from_numpy(batch.completion_index_RC).to(device)
        self.prompt_lengths_G = torch.from_numpy(batch.prompt_lengths_G).to(device)
        self.group_of_row_R = torch.from_numpy(batch.group_of_row_R).to(device)
        self.prompt_valid_GP = _before(self.prompt_lengths_G, self.prompt_index_GP.shape[1])
        own_lengths_R = torch.from_numpy(batch.completion_lengths_R).to(device)
        self.completion_valid_RC = _before(own_lengths_R, self.completion_index_RC.shape[1])
        self.num_rows = len(batch.rows)
        self.prompt_kv: dict[int, tuple[Tensor, Tensor]] | None = {} if keep_prompt_kv else None
        self._masks: dict[int | None, tuple[Tensor | None, Tensor | None]] = {}

    def masks(self, window: int | None) -> tuple[Tensor | None, Tensor | None]:
        """Boolean masks for (prompts among themselves, completions over prompt and self); None = plain causal."""
        if window not in self._masks:
            self._masks[window] = (self._prompt_mask(window), self._completion_mask(window))
        return self._masks[window]

    def _prompt_mask(self, window: int | None) -> Tensor | None:
        width = self.prompt_index_GP.shape[1]
        if window is None or width <= window:
            return None
        position = torch.arange(width, device=self.prompt_index_GP.device)
        distance = position[:, None] - position
        return ((distance >= 0) & (distance < window))[None, None]

    def _completion_mask(self, window: int | None) -> Tensor | None:
        """[R, 1, C, P + C]"""
        if not self.num_rows:
            return None
        device = self.completion_index_RC.device
        own = torch.arange(self.completion_index_RC.shape[1], device=device)
        prompt = torch.arange(self.prompt_index_GP.shape[1], device=device)
        lengths_R = self.prompt_lengths_G[self.group_of_row_R]
        to_own = (own[:, None] - own)[None].expand(self.num_rows, -1, -1)
        to_prompt = lengths_R[:, None, None] + own[None, :, None] - prompt
        distance = torch.cat([to_prompt, to_own], dim=2)
        visible = distance >= 0
        visible[:, :, : len(prompt)] &= (prompt < lengths_R[:, None])[:, None, :]
        if window is not None:
            visible &= distance < window
        # A padded query sees at least itself, so no softmax is over nothing.
        return visible[:, None]


def _before(lengths: Tensor, width: int) -> Tensor:
    return torch.arange(width, device=lengths.device) < lengths[:, None]


class DecodeCache:
    """Keys and values while sampling: the prompts' once a group, each row's own in a growing buffer."""

    def __init__(self, layout: PackedLayout, *, n: int) -> None:
        assert layout.prompt_kv is not None
        self.n = n
        self.prompt_kv = layout.prompt_kv  # [L] of ([G, K, P, D], [G, K, P, D])
        self.prompt_lengths_G = layout.prompt_lengths_G
        self.own_k: dict[int, Tensor] = {}  # [L] of [G * n, K, capacity, D]
        self.own_v: dict[int, Tensor] = {}
        self.length = 0
        """Tokens of each row that are in the buffer, the one being computed included."""
        self._masks: dict[int | None, tuple[Tensor, Tensor | None]] = {}

    def advance(self) -> None:
        """Make room for one more token a row; call before each forward pass."""
        self.length += 1
        self._masks = {}

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put one token's key and value a row, [B, K, 1, D], and give back all of them."""
        if layer not in self.own_k or self.length > self.own_k[layer].shape[2]:
            self.own_k[layer] = _grown(self.own_k.get(layer), key)
            self.own_v[layer] = _grown(self.own_v.get(layer), value)
        self.own_k[layer][:, :, self.length - 1 : self.length] = key
        self.own_v[layer][:, :, self.length - 1 : self.length] = value
        return self.own_k[layer][:, :, : self.length], self.own_v[layer][:, :, : self.length]

    def masks(self, window: int | None) -> tuple[Tensor, Tensor | None]:
        """Additive masks of the step: prompt [G, 1, 1, P] and own [length] (None = all visible)."""
        if window not in self._masks:
            width = next(iter(self.prompt_kv.values()))[0].shape[2]
            key = torch.arange(width, device=self.prompt_lengths_G.device)
            visible = key < self.prompt_lengths_G[:, None]
            own = None
            if window is not None:
                visible &= self.prompt_lengths_G[:, None] + self.length - 1 - key < window
                age = self.length - 1 - torch.arange(self.length, device=visible.device)
                own = _additive(age < window)
            self._masks[window] = (_additive(visible)[:, None, None], own)
        return self._masks[window]

    def keep_groups(self, keep_G: Tensor) -> None:
        """Forget the groups that are finished."""
        rows = keep_G.repeat_interleave(self.n)
        self.prompt_kv = {layer: (k[keep_G], v[keep_G]) for layer, (k, v) in self.prompt_kv.items()}
        self.prompt_lengths_G = self.prompt_lengths_G[keep_G]
        self.own_k = {layer: k[rows] for layer, k in self.own_k.items()}
        self.own_v = {layer: v[rows] for layer, v in self.own_v.items()}
        self._masks = {}


_CHUNK = 64
"""Tokens by which a row's buffer grows: few copies, little memory beyond what is used."""


def _grown(buffer: Tensor | None, token: Tensor) -> Tensor:
    rows, heads, _, width = token.shape
    more = token.new_empty(rows, heads, _CHUNK, width)
    return more if buffer is None else torch.cat([buffer, more], dim=2)


def _additive(visible: Tensor) -> Tensor:
    return torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, float("-inf"))


def shared_prefix_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    shared_prefix: PackedLayout | DecodeCache | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function transformers calls: [B, H, tokens, D] -> [B, tokens, H, D]."""
    if shared_prefix is None:
        raise ModelError(f"{type(module).__name__} does not hand attention arguments through.", hint=_OTHER_MODEL)
    for name in ("softcap", "s_aux", "head_mask"):
        if others.get(name) is not None:
            raise ModelError(
                f"{type(module).__name__} uses `{name}`, which the engine does not compute.", hint=_OTHER_MODEL
            )
    assert dropout == 0.0, "the model must be in eval mode: dropout would make log-probs random"
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]
    if isinstance(shared_prefix, DecodeCache):
        return _decode(shared_prefix, layer, query, key, value, scale=scale, window=sliding_window), None
    return _packed(shared_prefix, layer, query, key, value, scale=scale, window=sliding_window), None


_OTHER_MODEL = "use a model of the Llama, Qwen2, Qwen3 or SmolLM families, or another backend."


def _packed(
    layout: PackedLayout, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None
) -> Tensor:
    q_SHD, k_SKD, v_SKD = (x[0].transpose(0, 1) for x in (query, key, value))
    prompt_mask, completion_mask = layout.masks(window)
    prompt_q, prompt_k, prompt_v = (x[layout.prompt_index_GP].transpose(1, 2) for x in (q_SHD, k_SKD, v_SKD))
    if layout.prompt_kv is not None:
        layout.prompt_kv[layer] = (prompt_k.contiguous(), prompt_v.contiguous())
    # Prompts are padded on the right, where a causal mask already hides the padding from every real token.
    prompts = _attend(prompt_q, prompt_k, prompt_v, prompt_mask, scale=scale, causal=prompt_mask is None)
    out = prompts.transpose(1, 2)[layout.prompt_valid_GP]
    if layout.num_rows:
        own_q, own_k, own_v = (x[layout.completion_index_RC].transpose(1, 2) for x in (q_SHD, k_SKD, v_SKD))
        k = torch.cat([prompt_k[layout.group_of_row_R], own_k], dim=2)
        v = torch.cat([prompt_v[layout.group_of_row_R], own_v], dim=2)
        completions = _attend(own_q, k, v, completion_mask, scale=scale, causal=False)
        out = torch.cat([out, completions.transpose(1, 2)[layout.completion_valid_RC]])
    return out[None]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, causal: bool) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    if grouped and q.is_cuda:
        # With a mask, CUDA's memory-efficient kernel wants as many key heads as query heads; grouped keys would
        # fall back to one that writes all scores to memory.
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        grouped = False
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped)


def _decode(
    cache: DecodeCache, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None
) -> Tensor:
    """One new token a row: scores against the prompt are one product a group, not one a row."""
    own_k, own_v = cache.append(layer, key, value)
    prompt_k, prompt_v = cache.prompt_kv[layer]
    prompt_mask, own_mask = cache.masks(window)
    num_groups, num_kv, prompt_width, width = prompt_k.shape
    per_kv = query.shape[1] // num_kv
    rows = num_groups * cache.n
    q = query.view(rows, num_kv, per_kv, width) * scale

    def by_group(x: Tensor) -> Tensor:  # [rows, K, per_kv, X] -> [G, K, n * per_kv, X]
        x = x.view(num_groups, cache.n, num_kv, per_kv, -1).transpose(1, 2)
        return x.reshape(num_groups, num_kv, cache.n * per_kv, -1)

    def by_row(x: Tensor) -> Tensor:  # the way back
        x = x.view(num_groups, num_kv, cache.n, per_kv, -1).transpose(1, 2)
        return x.reshape(rows, num_kv, per_kv, -1)

    to_prompt = (by_group(q) @ prompt_k.transpose(-1, -2)).float() + prompt_mask
    to_own = (q @ own_k.transpose(-1, -2)).float()
    if own_mask is not None:
        to_own = to_own + own_mask
    weights = torch.cat([by_row(to_prompt), to_own], dim=-1).softmax(-1).to(query.dtype)
    out = by_row(by_group(weights[..., :prompt_width].contiguous()) @ prompt_v) + weights[..., prompt_width:] @ own_v
    return out.reshape(rows, 1, num_kv * per_kv, width)
