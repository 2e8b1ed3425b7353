"""What a sampler samples with, by name: "module:Class", imported in the actor that uses it and nowhere else.

To add one (sglang, trtllm): a module here with a class that has the methods of `RolloutEngine` in
`rollout_engines/base.py`, and a line in ENGINES. Weights reach it as named tensors of the Hugging Face checkpoint
(`load`), prompts as token ids; completions come back with log-probs at the sampling temperature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy is light, but the settings read ENGINES before anything is imported
    from rlctl.backends.ray.rollout_engines.base import RolloutEngine

ENGINES = {
    "vllm": "rlctl.backends.ray.rollout_engines.vllm:VllmEngine",
}


def load(name: str) -> type[RolloutEngine]:
    """The class of an engine; what it is built on is imported when it is checked or started."""
    from importlib import import_module

    module, _, attribute = ENGINES[name].partition(":")
    engine: type[RolloutEngine] = getattr(import_module(module), attribute)
    return engine
