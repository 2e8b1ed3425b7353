"""Attention in which the completions of a prompt share that prompt, on unmodified Hugging Face models.

Registered through transformers' AttentionInterface under the name SHARED_PREFIX. The model is called
with a keyword `shared_prefix`, which transformers hands through to every attention layer: a PackedLayout
(training, scoring and prefill: one packed sequence) or a DecodeStep (sampling: one new token a row).
No Cache object of transformers takes part, so its changing interface does not matter.

Letters: S packed tokens, G prompts, P longest prompt, R rows, C longest completion, n rows a prompt,
H query heads, K key heads, D width of a head, L layers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlctl.engine.decode import DecodeStep
from rlctl.engine.packing import PackedBatch
from rlctl.errors import ModelError

SHARED_PREFIX = "rlctl_shared_prefix"


class PackedLayout:
    """Where prompts and completions stand in a packed sequence, as index tensors and masks on the device.

    With `keep_prompt_kv` the prompts' keys and values of each layer are kept for a DecodeStep.
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
    shared_prefix: PackedLayout | DecodeStep | None = None,
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
    if isinstance(shared_prefix, DecodeStep):
        return shared_prefix.attend(layer, query, key, value, scale=scale, window=sliding_window), None
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
