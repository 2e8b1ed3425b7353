"""The knobs of the in-process backend: the `[local]` table."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt


class LocalSettings(BaseModel):
    """Settings of the in-process backend."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model lives; auto is cuda when there is one, else cpu."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the compute weights; the master weights are always float32. Auto is bfloat16 on cuda, and on a cpu that
    multiplies bfloat16 in hardware when the model has more than 20 million parameters; float32 otherwise."""
    tiled_logits_compute: bool = True
    """Compute logits a tile of tokens at a time, forward and again backward; false keeps them all (faster, larger)."""
    logits_tile_tokens: PositiveInt = 1024
    """Tokens in one tile of logits."""
    kv_cache_gb: PositiveFloat = 4.0
    """Memory for keys and values while sampling, in GiB, every completion counted at its full length; groups that do
    not fit wait until there is room."""
    max_num_seqs: PositiveInt = 256
    """Most completions sampled at a time; more are faster per token, until memory and cache are full."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: far less memory, a third more time."""
    compile: bool = False
    """torch.compile the decoder layers: half a minute at the start, then less element-wise work. Nothing to gain on a
    cpu for Llama-shaped models, which have kernels of their own. Not for sliding windows shorter than the sequences."""
    num_threads: PositiveInt | None = None
    """Threads of torch on a cpu; null leaves torch's own choice."""
