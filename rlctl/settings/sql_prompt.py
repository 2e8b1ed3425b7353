"""`[data.sql]`: how a text-to-SQL prompt describes its database."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlctl.settings.block import Block, Count
from rlctl.text_to_sql.schema import Detail


class SqlPromptSettings(Block):
    layout: Literal["full", "compact", "none"] = "full"
    """`full` puts schema, question and instructions into the prompt; `compact` one line a table; `none` nothing."""
    sample_rows: int = Field(10, ge=0, le=100)
    """First rows of each table; the first thing that is cut when a prompt is too long."""
    example_values: int = Field(10, ge=0, le=100)
    """Distinct values of each column; cut after the sample rows."""
    descriptions: bool = True
    """What columns mean, from `database_description/*.csv` beside the database; cut last."""
    foreign_keys: bool = True
    """Which columns refer to which; never cut."""
    max_tokens: Count | None = None
    """Longest prompt with a schema, in tokens; null takes data.max_prompt_length."""

    def detail(self) -> Detail:
        return Detail(
            self.sample_rows, self.example_values, self.descriptions, self.foreign_keys, self.layout == "compact"
        )
