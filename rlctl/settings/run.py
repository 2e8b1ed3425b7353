"""`[run]`: where a run's files go, whether it goes on where it was, and how long it waits for anything."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, PositiveFloat, field_validator

from rlctl.settings.block import Block


class RunSettings(Block):
    dir: str = "runs"
    """Folder that holds one folder a run."""
    name: str | None = None
    """Name of the run and its folder, letters, digits and `._-`; null makes one from the preset and the time."""
    samples_per_step: int = Field(4, ge=0)
    """Rollouts written to samples.jsonl each step."""
    resume: Literal["auto", "never", "must"] = "auto"
    """What `train` does in a folder that holds a run: go on after its last good checkpoint; refuse; or refuse unless
    there is a checkpoint to go on from."""
    stop_grace_s: float = Field(20.0, ge=0)
    """Seconds that a step has to end after a first signal; then it is given up, and the run is saved as it was before
    it. SLURM and Kubernetes kill 30 seconds after their SIGTERM."""
    stall_notice_s: PositiveFloat = 300.0
    """Seconds after which a wait is told, with its name, and the stacks of all threads are written to stacks.txt."""
    stall_timeout_s: PositiveFloat = 7200.0
    """Seconds after which a wait ends the run, whatever it is for."""

    @field_validator("name")
    @classmethod
    def name_is_a_plain_file_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
            raise ValueError("must be at most 100 letters, digits and . _ - and begin with a letter or digit")
        return value
