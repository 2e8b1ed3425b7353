"""`[run]`: where a run's files go."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from rlctl.settings.block import Block


class RunSettings(Block):
    dir: str = "runs"
    """Folder that holds one folder a run."""
    name: str | None = None
    """Name of the run and its folder, letters, digits and `._-`; null makes one from the preset and the time."""
    samples_per_step: int = Field(4, ge=0)
    """Rollouts written to samples.jsonl each step."""

    @field_validator("name")
    @classmethod
    def name_is_a_plain_file_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
            raise ValueError("must be at most 100 letters, digits and . _ - and begin with a letter or digit")
        return value
