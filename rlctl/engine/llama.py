"""The decoder that most families share, Llama's, taken apart so that it can be computed in fewer operations.

    x  = embedding[ids]
    each layer:  x += o(attention(rotate(q(norm(x))), rotate(k(norm(x))), v(norm(x))))     heads may have norms
                 x += down(silu(gate(norm(x))) * up(norm(x)))
    x  = norm(x)

Llama, Qwen2, Qwen3, Mistral and SmolLM are of this shape. A decoder is recognised by its family and its parts, and
used only after a step by it gave what the transformers modules give (`decode_step.checked`). Hooks on the modules are
not called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

MODEL_TYPES = {"llama", "mistral", "qwen2", "qwen3"}
"""Families whose code was read: parts of these names may do more elsewhere, and only at positions far out."""

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x / sqrt(mean(x^2) + eps) * weight"""

    module: nn.Module
    eps: float

    @property
    def weight(self) -> nn.Parameter:
        """Whatever the module has now."""
        return self.module.weight  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """The parts of one decoder layer."""

    norm: RmsNorm
    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear
    q_norm: RmsNorm | None
    k_norm: RmsNorm | None
    mlp_norm: RmsNorm
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear
    scale: float
    """Of the scores."""


@dataclass(frozen=True, slots=True)
class LlamaDecoder:
    """A whole decoder; `rotary(x, positions)` gives cosines and sines, of the dtype of x."""

    embedding: nn.Embedding
    layers: tuple[LlamaLayer, ...]
    norm: RmsNorm
    rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    head_width: int
    recompute: bool = False
    """Keep only the input of each layer for the backward pass (`checkpointing.py`)."""


def recognise(causal_lm: Any) -> LlamaDecoder | None:
    """The parts of a causal LM, or None where it has others than these (a window, an adapter, another norm)."""
    model = causal_lm.base_model
    if (
        _children(model) != {"embed_tokens", "layers", "norm", "rotary_emb"}
        or type(model.embed_tokens) is not nn.Embedding
    ):
        return None
    if causal_lm.config.model_type not in MODEL_TYPES:
        return None
    layers = [_layer(layer) for layer in model.layers]
    norm = _norm(model.norm)
    if norm is None or any(layer is None for layer in layers):
        return None
    width = model.layers[0].self_attn.head_dim
    return LlamaDecoder(model.embed_tokens, tuple(layers), norm, model.rotary_emb, width)  # type: ignore[arg-type]


def _layer(layer: Any) -> LlamaLayer | None:
    if _children(layer) != LAYER or _children(layer.mlp) != MLP or _window(layer.self_attn):
        return None
    attention, mlp = layer.self_attn, layer.mlp
    head_norms = _children(attention) - ATTENTION
    linears = [m for m in (*attention.children(), *mlp.children()) if isinstance(m, nn.Linear)]
    if not _children(attention) >= ATTENTION or head_norms not in (set(), HEAD_NORMS):
        return None
    if len(linears) != 7 or any(type(m) is not nn.Linear for m in linears):
        return None
    if not (_alike(attention.q_proj, attention.k_proj, attention.v_proj) and _alike(mlp.gate_proj, mlp.up_proj)):
        return None
    norms = [_norm(m) for m in (layer.input_layernorm, layer.post_attention_layernorm)]
    own = [_norm(getattr(attention, name)) for name in sorted(head_norms, reverse=True)]
    if None in norms or None in own or len({norm.eps for norm in own if norm}) > 1:
        return None
    if len(list(layer.parameters())) != len(list(layer.named_parameters(remove_duplicate=False))):
        # A weight that is used twice.
        return None
    if type(mlp.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        return None
    q_norm, k_norm = own or (None, None)
    return LlamaLayer(
        norm=norms[0],  # type: ignore[arg-type]
        q=attention.q_proj,
        k=attention.k_proj,
        v=attention.v_proj,
        o=attention.o_proj,
        q_norm=q_norm,
        k_norm=k_norm,
        mlp_norm=norms[1],  # type: ignore[arg-type]
        gate=mlp.gate_proj,
        up=mlp.up_proj,
        down=mlp.down_proj,
        scale=float(attention.scaling),
    )


def _alike(*linears: nn.Linear) -> bool:
    """Whether all have a bias, or none: then their products can be one."""
    return len({m.bias is None for m in linears}) == 1


def _children(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()}


def _norm(module: Any) -> RmsNorm | None:
    parameters = dict(module.named_parameters())
    eps = getattr(module, "variance_epsilon", None)
    return RmsNorm(module, eps) if set(parameters) == {"weight"} and eps is not None else None


def _window(attention: Any) -> bool:
    return bool(getattr(attention, "sliding_window", None) or getattr(attention.config, "sliding_window", None))
