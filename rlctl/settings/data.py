"""`[data]`: which problems, and how they become prompts."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from rlctl.settings.block import Block, Count


class DataSettings(Block):
    source: str = "openai/gsm8k"
    """Hub id of a data set, or `generated:word-problems`; ignored when `path` is set."""
    path: str | None = None
    """File with the training problems (.jsonl, .parquet, .csv)."""
    eval_path: str | None = None
    """File with the evaluation problems; null holds out `eval_size` of the training file."""
    subset: str | None = "main"
    """Configuration of the hub data set."""
    train_split: str = "train"
    """Split of the hub data set to train on."""
    eval_split: str = "test"
    """Split of the hub data set to evaluate on."""
    question_key: str = "question"
    """Column that holds the question."""
    answer_key: str = "answer"
    """Column that holds the gold answer."""
    id_key: str | None = None
    """Column that names each problem; null numbers them by their line."""
    eval_size: Count = 256
    """Problems in one evaluation, at most; held out of `path` when there is no `eval_path`."""
    num_generated: Count = 100_000
    """Size of a generated training set, in problems."""
    max_prompt_length: Count = 1024
    """Longest prompt in tokens, chat template included; longer ones are left out and counted."""
    prompt_format: Literal["chat", "text"] = "chat"
    """`chat` renders the model's chat template; `text` sends the question as plain text."""
    system_prompt: str | None = None
    """System message before the question; null sends none. Only with `prompt_format = "chat"`."""
    prompt_suffix: str = ""
    """Text after the question, separated by one space."""
    shuffle: bool = True
    """New order each epoch, a pure function of (seed, epoch); false keeps the file's order."""

    @model_validator(mode="after")
    def system_prompt_needs_chat_format(self) -> DataSettings:
        if self.system_prompt is not None and self.prompt_format == "text":
            raise ValueError('data.system_prompt needs data.prompt_format = "chat"; plain text has no roles')
        return self
