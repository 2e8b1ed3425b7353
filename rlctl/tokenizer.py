"""Text to ids and back, once, in the driver: prompts are encoded here and completions decoded here.

The chat template writes its own beginning-of-sequence token, so a rendered chat is never encoded with
special tokens a second time. transformers is imported only when a tokenizer is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlctl.errors import ConfigError, ModelError
from rlctl.modelpath import ModelFiles, load_errors, locate
from rlctl.types import Problem, TokenIds


class Tokenizer(Protocol):
    """What the GRPO loop needs of a tokenizer."""

    def encode(self, problem: Problem) -> TokenIds:
        """The prompt of a problem, ready to be completed."""

    def decode(self, ids: TokenIds) -> str:
        """The text of a completion, without special tokens."""


class ChatTokenizer:
    """A Hugging Face tokenizer with the prompt format of the run."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        prompt_format: str = "chat",
        system_prompt: str | None = None,
        prompt_suffix: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.tools = list(tools) or None
        self.prompt_format = prompt_format
        self.system_prompt = system_prompt
        self.prompt_suffix = prompt_suffix

    def encode(self, problem: Problem) -> TokenIds:
        text = f"{problem.question} {self.prompt_suffix}" if self.prompt_suffix else problem.question
        if self.prompt_format == "text":
            ids = self.tokenizer(text)["input_ids"]
        else:
            conversation = [*problem.messages[:-1], ("user", text)]
            if self.system_prompt is not None and conversation[0][0] != "system":
                conversation.insert(0, ("system", self.system_prompt))
            messages = [{"role": role, "content": content} for role, content in conversation]
            rendered = self.tokenizer.apply_chat_template(
                messages, tools=self.tools, tokenize=False, add_generation_prompt=True
            )
            ids = self.tokenizer(rendered, add_special_tokens=False)["input_ids"]
        return np.asarray(ids, dtype=np.int32)

    def decode(self, ids: TokenIds) -> str:
        text: str = self.tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        return text

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)


def load(
    model: str,
    *,
    tokenizer: str | None = None,
    chat_template: str | None = None,
    prompt_format: str = "chat",
    system_prompt: str | None = None,
    prompt_suffix: str = "",
) -> ChatTokenizer:
    """The tokenizer of a model (or another one), checked for what the prompt format needs.

    Raises ModelError when it cannot be read, ConfigError when a chat template is needed and missing.
    """
    try:
        files = locate(tokenizer or model)
    except ModelError as error:
        message = error.message.replace("model.path", "model.tokenizer") if tokenizer else error.message
        raise ModelError(message, hint=error.hint) from error
    loaded = _from_pretrained(files, tokenizer or model)
    if chat_template is not None:
        loaded.chat_template = _template_text(chat_template)
    if prompt_format == "chat":
        _must_render(loaded, tokenizer or model, system_prompt)
    return ChatTokenizer(loaded, prompt_format=prompt_format, system_prompt=system_prompt, prompt_suffix=prompt_suffix)


def _from_pretrained(files: ModelFiles, name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(files.location, **files.arguments())
    except load_errors() as error:
        first_line = str(error).strip().split("\n")[0]
        raise ModelError(
            f"the tokenizer of {name} cannot be loaded: {first_line}",
            hint="model.tokenizer names another folder or hub id to take it from.",
        ) from error


def _template_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"model.chat_template = {path} cannot be read: {error}.") from error


def _must_render(tokenizer: Any, name: str, system_prompt: str | None) -> None:
    import jinja2

    if not tokenizer.chat_template:
        raise ConfigError(
            f"{name} has no chat template, and data.prompt_format is chat.",
            hint='set model.chat_template to a Jinja file, or data.prompt_format = "text" for a base model.',
        )
    messages = [{"role": "system", "content": system_prompt}] if system_prompt is not None else []
    messages.append({"role": "user", "content": "2 + 2?"})
    try:
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError, AttributeError, MemoryError) as error:
        hint = "the template may refuse a system message: unset data.system_prompt." if system_prompt else ""
        raise ConfigError(f"the chat template of {name} does not render: {error}.", hint=hint) from error
    if "2 + 2?" not in rendered:
        raise ConfigError(f"the chat template of {name} leaves the question out of the prompt.")


def end_token_ids(model: str, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a completion: the model's generation_config, its config, and the tokenizer's own.

    The first two differ in half of the current models; to know one of them alone is to miss the end of turn.
    """
    ids = set(_listed(tokenizer.eos_token_id))
    for name in ("generation_config.json", "config.json"):
        ids.update(_listed(model_json(model, name).get("eos_token_id"), where=f"{name} of {model}"))
    return tuple(sorted(ids))


def _listed(value: Any, *, where: str = "the tokenizer") -> list[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    wrong = [i for i in ids if not isinstance(i, int) or isinstance(i, bool)]
    if wrong:
        raise ModelError(f"eos_token_id in {where} holds {wrong[0]!r}, which is no token id.")
    return ids


def model_json(model: str, name: str) -> dict[str, Any]:
    """A JSON file of a model, `config.json` say; empty when it has none, as a GGUF file does not."""
    from transformers.utils import cached_file

    files = locate(model)
    if files.gguf_file is not None:
        return {}
    file = cached_file(files.location, name, _raise_exceptions_for_missing_entries=False)
    if file is None:
        return {}
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not JSON: {error}.", hint="is the download whole?") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} is not a JSON object.")
    return content
