"""What a model's config alone tells, without its weights: which tensors it has, and whether its heads can be split."""

from __future__ import annotations

import math
from typing import Any

from rlctl.backends.ray import sync
from rlctl.engine.meta import on_meta, read_config
from rlctl.errors import ModelError

read = read_config


def weights(config: Any, dtype: str) -> sync.Manifest:
    """Name, shape and dtype of every weight of a model with that config, tied ones once; nothing is allocated."""
    named = on_meta(config, dtype=dtype).named_parameters()
    return {name: sync.TensorRecord(tuple(p.shape), dtype) for name, p in named}


def num_parameters(config: Any) -> int:
    return sum(math.prod(record.shape) for record in weights(config, "float32").values())


def must_split(config: Any, width: int) -> None:
    """Raises ModelError when the heads cannot be split over that many devices."""
    heads = config.get_text_config().num_attention_heads
    if heads % width:
        fitting = [n for n in range(1, heads + 1) if heads % n == 0]
        raise ModelError(
            f"remote_backend.ray.tensor_parallel_size = {width} does not divide the model's {heads} attention heads.",
            hint=f"it can be {', '.join(map(str, fitting))}.",
        )
