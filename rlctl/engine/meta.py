"""What a model's config alone tells: its parameters, on torch's meta device, where nothing is allocated."""

from __future__ import annotations

from typing import Any

import torch

from rlctl.errors import ModelError
from rlctl.modelpath import load_errors, locate

MOST_LAYERS = 4_000
"""Published decoders have up to a few hundred. Each takes 2.5 ms to make, even without weights."""


def read_config(path: str) -> Any:
    """The model's config, as that of an unquantized model. Raises ModelError."""
    from transformers import AutoConfig

    files = locate(path)
    try:
        config = AutoConfig.from_pretrained(files.location, **files.arguments())
    except load_errors() as error:
        raise ModelError(f"model.path = {path}: its config cannot be read: {' '.join(str(error).split())}") from error
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def on_meta(config: Any, *, dtype: str = "float32") -> torch.nn.Module:
    """The causal LM of a config without its weights. Raises ModelError for a config that makes none."""
    from transformers import AutoModelForCausalLM

    layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise ModelError(
            f"the model's config has num_hidden_layers = {layers:,}, and at most {MOST_LAYERS:,} are taken.",
            hint="is there a digit too many in its config.json?",
        )
    try:
        with torch.device("meta"):
            causal_lm: torch.nn.Module = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    except load_errors() as error:
        told = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"no causal language model can be made of the model's config: {told}") from error
    return causal_lm
