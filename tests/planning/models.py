"""Configs of models whose sizes are known, without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Qwen3-1.7B: https://huggingface.co/Qwen/Qwen3-1.7B/blob/main/config.json
QWEN3_1_7B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 40960, "dtype": "bfloat16",
}  # fmt: skip

# By hand: a layer has q and o of 2048 x 2048 each, k and v of 2048 x 1024, gate, up and down of 2048 x 6144, two norms
# of 2048 and two of 128; above them one embedding, which is the head too, and one norm.
LAYER = 2 * 2048 * 2048 + 2 * 2048 * 1024 + 3 * 2048 * 6144 + 2 * 2048 + 2 * 128
PARAMETERS = 28 * LAYER + 151936 * 2048 + 2048


def config_folder(folder: Path, **overrides: Any) -> Path:
    """A folder that holds a config.json and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**QWEN3_1_7B, **overrides}))
    return folder
