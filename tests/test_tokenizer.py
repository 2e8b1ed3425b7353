from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlctl import tokenizer as tokenizers
from rlctl.errors import ConfigError, ModelError
from rlctl.tokenizer import ChatTokenizer, end_token_ids
from rlctl.types import Problem
from tests.tiny import END, OTHER_END, START, byte_tokenizer

PROBLEM = Problem("1", "hi", "2")


def text_of(ids: Any) -> str:
    return byte_tokenizer().decode(ids)


def test_a_chat_prompt_is_the_rendered_template() -> None:
    tokenizer = ChatTokenizer(byte_tokenizer(), system_prompt="be brief", prompt_suffix="go")
    ids = tokenizer.encode(PROBLEM)
    assert ids.dtype == np.int32
    assert text_of(ids) == "<|start|>system: be brief\n<|start|>user: hi go\n<|start|>assistant: "


def test_plain_text_has_no_roles() -> None:
    ids = ChatTokenizer(byte_tokenizer(), prompt_format="text", prompt_suffix="go").encode(PROBLEM)
    assert text_of(ids) == "hi go"


def test_the_beginning_of_sequence_token_stands_once() -> None:
    # Field fault 039: the template writes it, and the tokenizer would write it again.
    from tokenizers import processors

    fast = byte_tokenizer("<|start|>{{ messages[0]['content'] }}")
    fast.bos_token = "<|start|>"
    fast.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", START)]
    )
    assert fast("hi")["input_ids"].count(START) == 1
    assert ChatTokenizer(fast).encode(PROBLEM).tolist() == [START, *b"hi"]


def test_decoding_leaves_special_tokens_out() -> None:
    assert ChatTokenizer(byte_tokenizer()).decode(np.array([*b"#### 4", END], np.int32)) == "#### 4"


def test_end_tokens_come_from_every_file_that_names_some(tiny_llama: Path, tmp_path: Path) -> None:
    # Field fault 037: the config knows one, the generation config another.
    byte_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [OTHER_END, 7]}))
    assert end_token_ids(str(tmp_path), byte_tokenizer()) == (7, END, OTHER_END)


def test_a_template_that_drops_the_question_or_does_not_render_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    for text, part in [
        ("always this", "leaves the question out"),
        ("{{ raise_exception('no system') }}", "does not render"),
    ]:
        template = tmp_path / "t.jinja"
        template.write_text(text)
        with pytest.raises(ConfigError, match=part):
            tokenizers.load(str(tiny_llama), chat_template=str(template))
    with pytest.raises(ConfigError, match="cannot be read"):
        tokenizers.load(str(tiny_llama), chat_template=str(tmp_path / "none.jinja"))


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"the tokenizer of .* cannot be loaded") as caught:
        tokenizers.load(str(tmp_path))
    assert "model.tokenizer" in caught.value.hint


@pytest.mark.parametrize("text", ["[]", "null", "{", '{"model_type": "qwen3", "hidden_size": "x"}', "[" * 100_000])
def test_a_config_that_is_none_is_told_in_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError):
        tokenizers.load(str(tmp_path))


@pytest.mark.parametrize("ids", ['"x"', "[1, null]", "true"])
def test_end_tokens_that_are_none_are_told(tmp_path: Path, ids: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {ids}}}')
    with pytest.raises(ModelError, match="which is no token id"):
        end_token_ids(str(tmp_path), byte_tokenizer())
