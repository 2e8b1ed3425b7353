"""`[data]`: which problems, and how they become prompts."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any, Literal

from pydantic import Field, PositiveFloat, field_validator, model_validator

from rlctl.settings.block import Block, Count
from rlctl.settings.sql_prompt import SqlPromptSettings

Scalar = str | int | float | bool


class SourceBlock(Block):
    """One place that problems come from, and which of its rows are taken."""

    source: str = "openai/gsm8k"
    """Hub id of a data set, `generated:word-problems`, `generated:text-to-sql`, `bird:FOLDER`, `reasoning-gym:NAME` or
    `verifiers:NAME`; ignored when `path` is set."""
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
    """Column that holds the question; `a.b` reaches into a nested one."""
    answer_key: str = "answer"
    """Column that holds the gold answer; `a.b` reaches into a nested one."""
    id_key: str | None = None
    """Column that names each problem; null numbers them by their line."""
    extra_keys: tuple[str, ...] = ()
    """Columns kept beside them for rewards of your own, as `problem.extra`."""
    database_key: str | None = None
    """Column with the SQLite database of a text-to-SQL problem: a path, or a name within `database_root`."""
    database_root: str | None = None
    """Folder that relative paths of databases start from; a name `x` there is `x/x.sqlite`."""
    evidence_key: str | None = None
    """Column with what one must know beside the question of a text-to-SQL problem."""
    num_generated: Count = 100_000
    """Size of a generated training set, in problems."""
    options: dict[str, Any] = Field({})
    """Options of a `reasoning-gym:` data set or arguments of a `verifiers:` environment, as its package names them."""
    where: dict[str, Scalar | list[Scalar]] = Field({})
    """Take only rows whose column has that value, or one of a list: `where = { level = [4, 5] }`."""
    match: dict[str, str] = Field({})
    """Take only rows in whose column that regular expression is found."""
    dedupe: bool = False
    """Take a question once; letter case and spacing make no difference."""
    max_problems: Count | None = None
    """Take so many problems at most, chosen by the seed; null takes all."""

    @field_validator("match")
    @classmethod
    def patterns_compile(cls, patterns: dict[str, str]) -> dict[str, str]:
        for column, pattern in patterns.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"has no regular expression for {column}: {pattern!r}: {error}") from None
        return patterns


class MixedSourceSettings(SourceBlock):
    """One of several sources that are trained on together."""

    name: str | None = Field(None, min_length=1, max_length=100)
    """What metrics call it; null takes the file's or data set's name."""
    weight: PositiveFloat | None = None
    """Its share of each batch, relative to the other weights; null in all of them: as many as it has problems."""

    @property
    def shown_name(self) -> str:
        return self.name or (PurePath(self.path).stem if self.path else self.source)


class CurriculumSettings(Block):
    enabled: bool = False
    """Pass over problems that taught nothing lately: all of their samples had the same reward, which for right or
    wrong means solved by all or by none."""
    visits: Count = 1
    """How many of its latest visits must have taught nothing for a problem to rest."""
    revisit_share: float = Field(0.1, gt=0, le=1)
    """Share of the resting problems that is sampled again in each pass over the data; none rests for longer than
    1 / revisit_share passes."""


class DataSettings(SourceBlock):
    sources: tuple[MixedSourceSettings, ...] = ()
    """Several sources mixed by weight, in place of `source` and `path`: a `[[data.sources]]` table for each."""
    eval_size: Count = 256
    """Problems in one evaluation, at most (of each source, where there are several); held out of `path` when there is
    no `eval_path`."""
    max_prompt_length: Count = 1024
    """Longest prompt in tokens, chat template included; longer ones are left out and counted."""
    prompt_format: Literal["chat", "text"] = "chat"
    """`chat` renders the model's chat template; `text` sends the question as plain text."""
    system_prompt: str | None = None
    """System message before the question; null sends none. Only with `prompt_format = "chat"`."""
    prompt_suffix: str = ""
    """Text after the question, separated by one space."""
    sql: SqlPromptSettings = SqlPromptSettings()
    """How the prompt of a text-to-SQL problem describes its database."""
    shuffle: bool = True
    """New order each epoch, a pure function of (seed, epoch); false keeps the file's order."""
    curriculum: CurriculumSettings = CurriculumSettings()
    """Which problems are passed over for a while."""

    @model_validator(mode="after")
    def system_prompt_needs_chat_format(self) -> DataSettings:
        if self.system_prompt is not None and self.prompt_format == "text":
            raise ValueError('data.system_prompt needs data.prompt_format = "chat"; plain text has no roles')
        return self

    @model_validator(mode="after")
    def several_sources_say_all_themselves(self) -> DataSettings:
        for key in _OWN:
            # Presets name a source, which data.sources takes the place of.
            if self.sources and key != "source" and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"data.{key} is set beside data.sources; put it into the tables of data.sources")
        return self

    @model_validator(mode="after")
    def sources_have_names_of_their_own(self) -> DataSettings:
        names = [source.shown_name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"data.sources has {names.count(twice[0])} called {twice[0]!r}; give each a name of its own"
            )
        return self

    @model_validator(mode="after")
    def all_sources_have_weights_or_none(self) -> DataSettings:
        without = [source.shown_name for source in self.sources if source.weight is None]
        if without and len(without) < len(self.sources):
            raise ValueError(
                f"data.sources: {without[0]!r} has no weight and others have; give each one a weight or none"
            )
        return self

    def tables(self) -> list[MixedSourceSettings]:
        """The sources of a run, one or several. What a table leaves out, columns say, it takes from `[data]`."""
        # Not by attribute: what is copied is not yet read (settings_reads.py).
        common = {key: vars(self)[key] for key in SourceBlock.model_fields}
        if not self.sources:
            return [MixedSourceSettings(**common)]
        shared = {key: value for key, value in common.items() if key not in _OWN}
        return [
            table.model_copy(update={key: value for key, value in shared.items() if key not in table.model_fields_set})
            for table in self.sources
        ]


_OWN = ("source", "path", "eval_path", "options", "max_problems")
"""What each of several sources says for itself."""
