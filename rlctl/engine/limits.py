"""What a model and a machine allow, asked by every backend that computes with the engine.

The type of the compute weights, whether ids and lengths are the model's, memory used, and the dtype a checkpoint names.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rlctl.errors import ModelError
from rlctl.types import Prompt

SMALL_MODEL = 20_000_000
"""Parameters below which a cpu computes in float32: there the casts cost more than bfloat16 saves."""


def compute_dtype(name: str, device: torch.device, num_parameters: int) -> torch.dtype:
    """The type of the compute weights by its name in the settings, `auto` by device and size."""
    if name != "auto":
        return torch.float32 if name == "float32" else torch.bfloat16
    if device.type == "cuda":
        return torch.bfloat16
    return torch.bfloat16 if _multiplies_bfloat16() and num_parameters > SMALL_MODEL else torch.float32


def _multiplies_bfloat16() -> bool:
    """Whether the cpu has instructions for it; without them bfloat16 is slower than float32."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)


def must_know_ids(vocab_size: int, prompts: Sequence[Prompt]) -> None:
    """Raises ModelError when a prompt holds a token that the model has no embedding for."""
    largest = max((int(prompt.token_ids.max()) for prompt in prompts if len(prompt.token_ids)), default=0)
    if largest >= vocab_size:
        raise ModelError(
            f"a prompt holds token {largest}, the model knows {vocab_size} tokens.",
            hint="the tokenizer is not this model's: look at model.tokenizer.",
        )


def must_fit_context(config: Any, longest: int) -> None:
    """Raises ModelError when sequences of that length leave what the model computes alike in every batch."""
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is not None and longest > context:
        raise ModelError(
            f"data.max_prompt_length + rollout.max_response_length = {longest} tokens, "
            f"the model's context is {context}.",
            hint="lower one of the two.",
        )
    rope = getattr(config, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings")
    if rope.get("rope_type") in ("longrope", "dynamic") and longest > (original or context or longest):
        raise ModelError(
            f"sequences of {longest} tokens switch the model's {rope['rope_type']} rotary scaling, which changes all "
            f"positions with the longest one of a batch, above {original}.",
            hint=f"keep data.max_prompt_length + rollout.max_response_length within {original}.",
        )


def name_dtype(config_file: Path, dtype: torch.dtype) -> None:
    """The saved config names the dtype of the saved weights, and no attention of ours."""
    config = json.loads(config_file.read_text())
    config.pop("_attn_implementation", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    config_file.write_text(json.dumps(config, indent=2) + "\n")


def max_memory_bytes(device: torch.device) -> int:
    """Most memory held since the start: the device's own, or on a cpu that of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else kilobytes * 1024
