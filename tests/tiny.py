"""A random model and a byte tokenizer small enough to build in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

END, PAD, START, OTHER_END = 256, 257, 258, 259
VOCAB = 260

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)


def tiny_config(**overrides: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        **{
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
            "eos_token_id": END,
            "bos_token_id": None,
            "pad_token_id": PAD,
            **overrides,
        }
    )


def build(config: Any, *, seed: int = 0, scale: float = 3.0) -> nn.Module:
    """A random causal LM whose logits are far enough apart to tell a wrong formula from rounding."""
    from transformers import AutoModelForCausalLM

    from rlctl.engine.attention import SHARED_PREFIX
    from rlctl.engine.model import register_attention

    register_attention()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=SHARED_PREFIX).float().eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.mul_(scale)
    return model


def save_tiny_llama(folder: Path, **overrides: Any) -> None:
    build(tiny_config(**overrides)).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def byte_tokenizer(template: str | None = TEMPLATE) -> Any:
    """One token a byte, whose id is the byte, and four special ones."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(byte_letters())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|pad|>", "<|start|>", "<|other_end|>"]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    fast.chat_template = template
    return fast


def byte_letters() -> list[str]:
    """The letter that byte-level tokenizers write for each byte: itself if it can be seen, else one from 256 on."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    unseen = [byte for byte in range(256) if byte not in seen]
    return [chr(byte) if byte in seen else chr(256 + unseen.index(byte)) for byte in range(256)]
