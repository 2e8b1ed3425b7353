"""Attention in which the completions of a prompt share that prompt, on unmodified Hugging Face models.

Registered through transformers' AttentionInterface under the name SHARED_PREFIX. The model is called
with a keyword `shared_prefix`, which transformers hands through to every attention layer: the handle of a
PackedLayout (training, scoring and prefill: one packed sequence) or of a DecodeStep (sampling: one new token a
row). No Cache object of transformers takes part, so its changing interface does not matter.

Letters: S packed tokens, G prompts, P longest prompt, R rows, C longest completion, n rows a prompt,
H query heads, K key heads, D width of a head, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlctl.engine import flash
from rlctl.engine.decode import DecodeStep
from rlctl.engine.gathering import gather
from rlctl.engine.packing import PackedBatch
from rlctl.errors import ModelError

SHARED_PREFIX = "rlctl_shared_prefix"


class PackedLayout:
    """Where prompts and completions stand in a packed sequence, as index tensors and masks on the device.

    With `keep_prompt_kv` the prompts' keys and values of each layer are kept for a DecodeStep.
    """

    def __init__(self, batch: PackedBatch, *, device: torch.device, keep_prompt_kv: bool = False) -> None:
        self.pieces = flash.pieces(batch, device)
        self.longest = int((batch.prompt_lengths_G).max(initial=0) + batch.completion_lengths_R.max(initial=0))
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

    def keep(self, layer: int, k_SKD: Tensor, v_SKD: Tensor) -> None:
        """Remember the prompts' keys and values of a layer as [G, K, P, D]."""
        assert self.prompt_kv is not None
        self.prompt_kv[layer] = tuple(x[self.prompt_index_GP].transpose(1, 2) for x in (k_SKD, v_SKD))  # type: ignore[assignment]

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


@contextmanager
def during(what: PackedLayout | DecodeStep) -> Iterator[Tensor]:
    """A handle for the keyword `shared_prefix`: valid inside, the backward pass included.

    A number in a tensor, since that is what a compiled graph takes without being specialised to it.
    """
    handle = next(_handles)
    _passes[handle] = what
    try:
        yield torch.tensor(handle)
    finally:
        del _passes[handle]


_passes: dict[int, PackedLayout | DecodeStep] = {}
_handles = count()


def of(handle: Tensor) -> PackedLayout | DecodeStep:
    """What `during` gave that handle for."""
    return _passes[int(handle)]


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
    shared_prefix: Tensor | None = None,
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
    if torch.compiler.is_compiling():
        return _attention(query, key, value, shared_prefix, layer, scale, sliding_window)[0], None
    return _attend(query, key, value, of(shared_prefix), layer, scale, sliding_window)[0], None


_OTHER_MODEL = "use a model of the Llama, Qwen2, Qwen3 or SmolLM families, or another backend."


def _attend(
    q: Tensor, k: Tensor, v: Tensor, what: PackedLayout | DecodeStep, layer: int, scale: float, window: int | None
) -> tuple[Tensor, Tensor]:
    """(outcome [B, tokens, H, D], log-sum-exp [tokens, H], which only flash attention fills in)"""
    unknown = q.new_empty(q.shape[2], q.shape[1], dtype=torch.float32)
    if isinstance(what, DecodeStep):
        return what.attend(layer, q, k, v, scale=scale, window=window), unknown
    q_SHD, k_SKD, v_SKD = (x[0].transpose(0, 1) for x in (q, k, v))
    if what.prompt_kv is not None:
        what.keep(layer, k_SKD, v_SKD)
    if _flashes(q_SHD, what, window):
        out, lse = flash.SharedPrefixFlash.apply(q_SHD, k_SKD, v_SKD, what.pieces, scale)  # type: ignore[no-untyped-call]
        return out[None], lse
    return _masked(what, q_SHD, k_SKD, v_SKD, scale=scale, window=window)[None], unknown


def _flashes(q: Tensor, layout: PackedLayout, window: int | None) -> bool:
    """Whether flash attention computes it: no window that cuts anything, a type that it knows."""
    return flash.supported(q) and (window is None or layout.longest <= window)


def _masked(layout: PackedLayout, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None) -> Tensor:
    """The same by one masked attention a row, prompts copied: for windows, and types that flash does not know."""
    prompt_mask, completion_mask = layout.masks(window)
    prompt_q, prompt_k, prompt_v = (gather(x, layout.prompt_index_GP).transpose(1, 2) for x in (q, k, v))
    # Prompts are padded on the right, where a causal mask already hides the padding from every real token.
    prompts = _sdpa(prompt_q, prompt_k, prompt_v, prompt_mask, scale=scale, causal=prompt_mask is None)
    out = prompts.transpose(1, 2)[layout.prompt_valid_GP]
    if layout.num_rows:
        own_q, own_k, own_v = (gather(x, layout.completion_index_RC).transpose(1, 2) for x in (q, k, v))
        all_k = torch.cat([gather(prompt_k, layout.group_of_row_R), own_k], dim=2)
        all_v = torch.cat([gather(prompt_v, layout.group_of_row_R), own_v], dim=2)
        completions = _sdpa(own_q, all_k, all_v, completion_mask, scale=scale, causal=False)
        out = torch.cat([out, completions.transpose(1, 2)[layout.completion_valid_RC]])
    return out


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, causal: bool) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    if grouped and q.is_cuda:
        # With a mask, CUDA's memory-efficient kernel wants as many key heads as query heads; grouped keys would
        # fall back to one that writes all scores to memory.
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        grouped = False
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped)


@torch.library.custom_op("rlctl::shared_prefix_attention", mutates_args=())
def _attention(
    q: Tensor, k: Tensor, v: Tensor, handle: Tensor, layer: int, scale: float, window: int | None
) -> tuple[Tensor, Tensor]:
    """`_attend` as one opaque operation of a compiled graph."""
    out, lse = _attend(q, k, v, of(handle), layer, scale, window)
    return out.contiguous(), lse


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, handle: Tensor, layer: int, scale: float, window: int | None) -> Any:
    batch, heads, tokens, width = q.shape
    return q.new_empty(batch, tokens, heads, width), q.new_empty(tokens, heads, dtype=torch.float32)


@torch.library.custom_op("rlctl::shared_prefix_attention_backward", mutates_args=())
def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, handle: Tensor, scale: float, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of [B, H, tokens, D], [B, K, tokens, D] twice; `window` 0 is none."""
    layout = of(handle)
    assert isinstance(layout, PackedLayout)
    q_SHD, k_SKD, v_SKD = (x[0].transpose(0, 1) for x in (q, k, v))
    if not _flashes(q_SHD, layout, window or None):
        raise ModelError(
            f"compiled layers need flash attention: no sliding window (here {window}), and no float32 on a GPU.",
            hint="set local.compile = false.",
        )
    grads = flash.gradients(grad[0], q_SHD, k_SKD, v_SKD, out[0], lse, layout.pieces, scale)
    return tuple(g.contiguous().transpose(0, 1)[None] for g in grads)  # type: ignore[return-value]


@_attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Any:
    return tuple(x.new_empty(1, x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in (q, k, v))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, handle, _, ctx.scale, window = inputs
    ctx.window = window or 0
    ctx.save_for_backward(q, k, v, *output, handle)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, handle = ctx.saved_tensors
    grads = _attention_backward(grad, q, k, v, out, lse, handle, ctx.scale, ctx.window)
    return (*grads, None, None, None, None)


_attention.register_autograd(_backward, setup_context=_save)
