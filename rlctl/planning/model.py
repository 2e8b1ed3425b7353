"""What a model's config tells: widths, and the number of parameters, counted on torch's meta device.

Letters as in `engine/packed_layers.py`: D hidden width, H query heads, K key heads, W width of a head, F width of the
MLP, L layers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlctl.errors import ModelError
from rlctl.perf import ModelShape, model_shape
from rlctl.types import LoraSpec


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A decoder, as far as memory and FLOPs depend on it."""

    family: str
    parameters: int
    """All weights; a head that is tied to the embedding counts once."""
    layer_parameters: int
    """Those of one decoder layer, the largest."""
    largest_parameter: int
    linears: Mapping[str, tuple[int, int, int]]
    """Matrix products inside the layers by the last part of their names: (how many, inputs, outputs)."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    mlp: int
    vocab: int
    head_norms: bool
    """Whether queries and keys have norms of their own, as in Qwen3."""
    llama_shaped: bool
    """Whether `engine/llama.py` recognises the decoder; activations of others are not known."""
    max_context: int | None
    stored_bytes: int
    """Bytes of a number in the model's files, as its config names the dtype."""
    shape: ModelShape | None

    @property
    def kv_numbers_per_token(self) -> int:
        """Keys and values of one token in all layers: 2 L K W."""
        return 2 * self.layers * self.kv_heads * self.head_width

    @property
    def head_parameters(self) -> int:
        return self.vocab * self.hidden

    @property
    def body_linears(self) -> int:
        return sum(count * inputs * outputs for count, inputs, outputs in self.linears.values())

    def lora_parameters(self, lora: LoraSpec) -> int:
        """rank x (inputs + outputs) of each target. Source: https://arxiv.org/abs/2106.09685, section 4.1.

        Raises ModelError for a target that the model has not.
        """
        return sum(count * lora.rank * (inputs + outputs) for count, inputs, outputs in self.targets(lora))

    def targets(self, lora: LoraSpec) -> list[tuple[int, int, int]]:
        """The products that get factors. Raises ModelError for a name that is none."""
        if lora.target_modules == ("all-linear",):
            return list(self.linears.values())
        missing = [name for name in lora.target_modules if name not in self.linears]
        if missing:
            raise ModelError(
                f"model.lora.target_modules names {', '.join(missing)}, which this model has not.",
                hint=f"it has {', '.join(sorted(self.linears))}; all-linear takes them all.",
            )
        return [self.linears[name] for name in lora.target_modules]


def read_facts(path: str) -> ModelFacts:
    """The facts of the model at a path; reads its config, never its weights. Raises ModelError."""
    from rlctl.engine.meta import on_meta, read_config

    config = read_config(path)
    # Before a model is made of it: that writes its own dtype there.
    whole = str(getattr(config.get_text_config(), "dtype", None)) in ("torch.float32", "float32", "None")
    return facts_of(config, on_meta(config), stored_bytes=4 if whole else 2)


def facts_of(config: Any, causal_lm: Any, *, stored_bytes: int = 4) -> ModelFacts:
    """The facts of a model that may lie on the meta device. Raises ModelError."""
    from torch import nn

    from rlctl.engine.llama import recognise

    text = config.get_text_config()
    _must_be_a_decoder(text)
    body = causal_lm.base_model
    linears: dict[str, tuple[int, int, int]] = {}
    for name, module in body.named_modules():
        if isinstance(module, nn.Linear):
            leaf = name.rsplit(".", 1)[-1]
            linears[leaf] = (linears.get(leaf, (0,))[0] + 1, module.in_features, module.out_features)
    sizes = {name: p.numel() for name, p in causal_lm.named_parameters()}
    layers = getattr(body, "layers", [])
    decoder = recognise(causal_lm)
    head = causal_lm.get_output_embeddings()
    return ModelFacts(
        family=str(text.model_type),
        parameters=sum(sizes.values()),
        layer_parameters=max((sum(p.numel() for p in layer.parameters()) for layer in layers), default=0),
        largest_parameter=max(sizes.values()),
        linears=linears,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        heads=text.num_attention_heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_width=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        mlp=getattr(text, "intermediate_size", None) or 0,
        vocab=head.weight.shape[0],
        head_norms=decoder is not None and decoder.layers[0].q_norm is not None,
        llama_shaped=decoder is not None,
        max_context=getattr(text, "max_position_embeddings", None),
        stored_bytes=stored_bytes,
        shape=_shape(text, causal_lm),
    )


def _must_be_a_decoder(text: Any) -> None:
    """Raises ModelError for a config without layers, heads or words."""
    for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"):
        value = getattr(text, name, None)
        if not isinstance(value, int) or value < 1:
            raise ModelError(
                f"the config of a {text.model_type} model has {name} = {value}, so it is no decoder with attention.",
                hint="model.path must name a causal language model of the Llama, Qwen2, Qwen3 or SmolLM families.",
            )


def _shape(text: Any, causal_lm: Any) -> ModelShape | None:
    """By the formula, if it counts the weights that are really there; not under a sliding window."""
    from torch import nn

    shape = model_shape(text.to_dict())
    if shape is None or (getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)):
        return None
    counted = sum(m.weight.numel() for m in causal_lm.base_model.modules() if isinstance(m, nn.Linear))
    return shape if counted == shape.body_parameters else None
