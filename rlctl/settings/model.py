"""`[model]`: which model is trained, and how much of it."""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveFloat

from rlctl.settings.block import Block


class LoraSettings(Block):
    rank: NonNegativeInt = 0
    """Rank of the trained factors; 0 trains all weights. Needs `rlctl[lora]`."""
    alpha: PositiveFloat = 32.0
    """The factors' product is scaled by alpha / rank."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Names of the linear layers that get factors (q_proj, ...); all-linear is every one inside the layers."""


class ModelSettings(Block):
    path: str = "Qwen/Qwen3-1.7B"
    """Model to train: a hub id, a folder, a .gguf file, `pkg:PACKAGE/FILE` inside an installed package, or
    `embedded:tiny`, which ships with rlctl. Of several, separated by `|`, the first that is here is taken."""
    tokenizer: str | None = None
    """Hub id or folder of the tokenizer; null takes the model's own."""
    chat_template: str | None = None
    """File with a Jinja chat template, for a model that has none or whose own should be replaced."""
    lora: LoraSettings = LoraSettings()
    """Train low-rank factors instead of the weights."""
