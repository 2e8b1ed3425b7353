"""`[reward]`: what a completion is worth."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat, model_validator

from rlctl.settings.block import Block, Count
from rlctl.settings.sql import SqlRewardSettings


class Gsm8kRewardSettings(Block):
    allow_last_number: bool = False
    """Accept the last number of a completion that has neither `#### N` nor a box."""


class MathVerifyRewardSettings(Block):
    allow_unmarked: bool = False
    """Let math-verify look for the answer of a completion that has neither `#### ANSWER` nor a box."""


class RewardSettings(Block):
    functions: list[str] = Field(["gsm8k"], min_length=1)
    """Rewards by name (`gsm8k`, `sql`) or as `package.module:function`; the first one's value is the score shown."""
    weights: list[float] | None = None
    """One weight a function; null weighs each 1."""
    rank_in_group: bool = False
    """Replace each reward by its rank among the n of its prompt, 0 worst to 1 best, equals sharing the mean of theirs;
    before what length adds."""
    overlong_buffer_len: int = Field(0, ge=0, lt=2**31)
    """DAPO's soft punishment: over the last so many tokens of rollout.max_response_length the reward falls by up to
    `overlong_penalty_factor`; 0 is off."""
    overlong_penalty_factor: PositiveFloat = 1.0
    """What a completion of the full length loses."""
    length_penalty: float = Field(0.0, ge=0)
    """Weight of a reward for short completions; 0 is off."""
    length_penalty_form: Literal["linear", "group"] = "linear"
    """linear: -length / rollout.max_response_length; group: from 0.5 for the shortest to -0.5 for the longest of a
    prompt's completions, at most 0 where the answer is wrong (Kimi k1.5)."""
    timeout_s: PositiveFloat = 10.0
    """Seconds one call of a custom reward may take; a completion whose reward times out is left out and counted."""
    own_grader: bool = True
    """Let a source that brings its own grader (`reasoning-gym:`, `verifiers:`) grade its problems, in place of the
    first function."""
    workers: Literal["process", "thread"] = "process"
    """Where custom sync rewards run: worker processes, which are replaced when a call hangs, crashes or eats memory,
    and each import the reward anew; or threads of this process, which share its memory, but cannot be ended. Async
    rewards run on an event loop in this process."""
    num_workers: Count | None = None
    """Worker processes; null is one a core, at most 8. A reward that holds a model is loaded once a worker."""
    worker_memory_gb: PositiveFloat | None = 4.0
    """Memory that one worker process may allocate, in GiB; null sets no limit."""
    check: bool = True
    """Score gold answers before the first step, and stop when one does not get full marks."""
    gsm8k: Gsm8kRewardSettings = Gsm8kRewardSettings()
    math_verify: MathVerifyRewardSettings = MathVerifyRewardSettings()
    sql: SqlRewardSettings = SqlRewardSettings()

    @model_validator(mode="after")
    def one_weight_a_function(self) -> RewardSettings:
        if self.weights is not None and len(self.weights) != len(self.functions):
            raise ValueError(
                f"reward.weights has {len(self.weights)} values for the {len(self.functions)} of reward.functions; "
                "give one for each"
            )
        if len(set(self.functions)) != len(self.functions):
            raise ValueError("reward.functions names one twice; give it once with the sum of the weights")
        return self

    def blocks(self) -> dict[str, dict[str, Any]]:
        """The settings of each built-in that has some, by its name."""
        named = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: value.model_dump() for name, value in named if isinstance(value, Block)}
