"""FLOPs, peaks and MFU: what was computed, what the device could do, and their ratio, or None with the reason.

Counted are the FLOPs of the model as computed: real tokens without padding, each shared prompt once,
causal attention pairs, the output head only where a token is predicted, no embedding lookup, nothing
recomputed. A training pass costs three forward passes (Megatron-LM, https://arxiv.org/abs/2104.04473).
Nothing here imports torch; the measured peak of a CPU is in `engine/peak.py`.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

TRAIN_PASSES = 3
"""Forward, and backward to inputs and to weights."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the FLOPs of a decoder depend on."""

    body_parameters: int
    """Weights of every matrix product inside the layers: each costs 2 FLOPs a token."""
    head_parameters: int
    """hidden x vocabulary: 2 FLOPs each for a token that is predicted."""
    attention_width: int
    """layers x heads x head_dim: 4 FLOPs each for a pair of tokens (scores and values)."""
    adapter_parameters: int = 0
    """Weights of LoRA factors. Where there are any, body and head are frozen: no gradient of theirs is computed."""

    def forward_flops(self, *, tokens: int, predicted: int, pairs: int) -> float:
        return (
            2.0 * (self.body_parameters + self.adapter_parameters) * tokens
            + 2.0 * self.head_parameters * predicted
            + 4.0 * self.attention_width * pairs
        )

    def train_flops(self, *, tokens: int, predicted: int, pairs: int) -> float:
        whole = TRAIN_PASSES * self.forward_flops(tokens=tokens, predicted=predicted, pairs=pairs)
        if not self.adapter_parameters:
            return whole
        return whole - 2.0 * (self.body_parameters * tokens + self.head_parameters * predicted)


_GATED = frozenset({"llama", "qwen2", "qwen3", "mistral", "smollm3", "olmo2", "olmo3", "phi3", "gemma2", "gemma3_text"})
_PLAIN = frozenset({"phi"})


def model_shape(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape of a dense decoder from its Hugging Face config; None for a family that is not known.

    head_dim comes from the config where it stands there: in Qwen3 and Gemma it is not hidden / heads.
    """
    family = config.get("model_type")
    if family not in _GATED | _PLAIN:
        return None
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    feed_forward = (3 if family in _GATED else 2) * hidden * config["intermediate_size"]
    return ModelShape(
        body_parameters=layers * (attention + feed_forward),
        head_parameters=hidden * config["vocab_size"],
        attention_width=layers * heads * head_dim,
    )


# Dense BF16 FLOP/s of one device, from the makers' data sheets; a more specific name stands before a shorter one.
# NVIDIA's data sheets of each; for the RTX 4090 the Ada white paper (FP32 accumulate). AMD's data sheet of the MI300X.
_PEAKS = (
    ("GB200", 2500e12),
    ("B200", 2250e12),
    ("H200 NVL", 835e12),
    ("H200", 989e12),
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("MI300X", 1307e12),
    ("L40S", 362e12),
    ("L4", 121e12),
    ("A40", 150e12),
    ("RTX 4090", 165e12),
)


_LESSER = frozenset({"laptop", "mobile", "mig", "d", "vgpu"})
"""Words for a smaller chip or a slice of one under the name of the whole."""


def datasheet_peak(device_name: str) -> float | None:
    """Dense BF16 FLOP/s of a GPU by its full name; None when it is not in the table (L4 is not L40)."""
    return dict(_PEAKS).get(_datasheet_name(device_name) or "")


def _datasheet_name(device_name: str) -> str | None:
    words = device_name.lower().replace("-", " ").split()
    if _LESSER & set(words):
        return None
    for name, _ in _PEAKS:
        wanted = name.lower().split()
        if any(words[i : i + len(wanted)] == wanted for i in range(len(words))):
            return name
    return None


# Memory of one device in GB of 10^9 bytes, from the same data sheets: the least that a driver may report. An A100 has
# 40 or 80, which only a longer name tells.
_MEMORY = {
    "GB200": 186, "B200": 180, "H200 NVL": 141, "H200": 141, "H100 NVL": 94, "H100 PCIe": 80, "H100": 80, "MI300X": 192,
    "L40S": 48, "L4": 24, "A40": 48, "RTX 4090": 24,
}  # fmt: skip


def datasheet_memory(device_name: str) -> float | None:
    """Bytes of a GPU by its full name: those that the name tells (`A100 80GB`), else its data sheet's; else None."""
    told = re.search(r"\b([1-9]\d*) ?GB\b", device_name, re.IGNORECASE)
    if told:
        return float(told[1]) * 1e9
    name = _datasheet_name(device_name)
    return _MEMORY[name] * 1e9 if name in _MEMORY else None


def datasheet_names() -> list[str]:
    """Every GPU in the table of peaks."""
    return [name for name, _ in _PEAKS]


@dataclass(frozen=True, slots=True)
class Mfu:
    """Model FLOPs utilisation as a fraction, or None with the reason."""

    fraction: float | None
    reason: str = ""


def mfu(
    *, flops: float | None, seconds: float, peak_flops: float | None, num_devices: int = 1, peak_source: str = ""
) -> Mfu:
    """Share of the peak that was reached. Above 1 it is not a result, and both inputs are named."""
    if flops is None or not math.isfinite(flops):
        return Mfu(None, "the FLOPs of this model are not known")
    if peak_flops is None:
        return Mfu(None, peak_source or "the peak of this device is not known")
    if seconds <= 0 or num_devices < 1:
        return Mfu(None, f"{seconds:g} s on {num_devices} devices is no measurement")
    fraction = flops / (seconds * peak_flops * num_devices)
    if fraction > 1:
        return Mfu(
            None,
            f"{flops:.4g} FLOP in {seconds:.4g} s exceed {num_devices} x {peak_flops:.4g} FLOP/s: an input is wrong",
        )
    return Mfu(fraction)


class Stopwatch:
    """Seconds spent in each named phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @asynccontextmanager
    async def __call__(self, phase: str) -> AsyncIterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
