"""`[rollout]` and `[eval]`: how completions are sampled, in training and in evaluations."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from rlctl.settings.block import Block, Count
from rlctl.types import Sampling


class RolloutSettings(Block):
    n: int = Field(8, ge=2, lt=2**16)
    """Group size: completions sampled for each prompt. One has no siblings to be compared with, so 2 is the least."""
    temperature: float = Field(1.0, ge=0.01, le=100)
    """Sampling temperature; log-probs in training are taken at it too."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; below 1 it biases the importance ratio and needs `allow_biased_sampling`."""
    top_k: int = -1
    """Sample among the k likeliest tokens; -1 is off. Needs `allow_biased_sampling`."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Leave out tokens less likely than this share of the likeliest. Needs `allow_biased_sampling`."""
    max_response_length: Count = 1024
    """Longest completion in tokens; a longer one is cut and counted as truncated."""
    allow_biased_sampling: bool = False
    """Accept top_p, top_k or min_p in training, though the ratio then compares two different policies."""

    @field_validator("top_k")
    @classmethod
    def top_k_is_positive_or_off(cls, value: int) -> int:
        if value == 0 or value < -1:
            raise ValueError("must be -1 (off) or at least 1")
        return value

    @model_validator(mode="after")
    def biased_sampling_needs_opt_in(self) -> RolloutSettings:
        filtered = self.top_p < 1 or self.top_k != -1 or self.min_p > 0
        if filtered and not self.allow_biased_sampling:
            raise ValueError(
                "rollout.top_p, rollout.top_k and rollout.min_p bias the importance ratio in training; leave them at "
                "1.0, -1 and 0.0, "
                "or set rollout.allow_biased_sampling = true"
            )
        return self

    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k, self.min_p, self.max_response_length)


class EvalSettings(Block):
    temperature: float = Field(0.0, ge=0, le=100)
    """Sampling temperature of evaluations, 0.01 or more; 0 takes the likeliest token."""
    n: Count = 1
    """Completions for each evaluation problem."""

    @field_validator("temperature")
    @classmethod
    def temperature_is_zero_or_not_too_small(cls, value: float) -> float:
        if 0 < value < 0.01:
            raise ValueError("must be 0 (the likeliest token) or at least 0.01")
        return value
