"""`[trainer]`: batches, updates, the optimizer, and how often to save and evaluate."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, PositiveFloat, field_validator, model_validator

from rlctl.settings.block import Block, Count


class TrainerSettings(Block):
    train_batch_size: Count = 32
    """Prompts a step; each is sampled rollout.n times."""
    mini_batch_size: Count | None = None
    """Prompts an optimizer update; null is train_batch_size, which it must divide."""
    ppo_epochs: Count = 1
    """Passes over a step's samples."""
    steps: Count | None = None
    """Steps of the run; null follows from `epochs`."""
    epochs: Count = 1
    """Passes over the data, when `steps` is null; otherwise ignored."""
    max_tokens_per_device: Count = 16384
    """Token budget of one micro-batch, after each prompt is counted once. Changes memory and speed, not the result."""
    lr: PositiveFloat = 1e-6
    """Peak learning rate."""
    lr_schedule: Literal["constant", "cosine", "linear"] = "constant"
    """What follows the warm-up; cosine and linear end at 0 after the last step."""
    warmup_ratio: float = Field(0.0, ge=0, lt=1)
    """Share of all steps over which the learning rate rises; the first one is never 0."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's two moments."""
    grad_clip: PositiveFloat = 1.0
    """Largest norm of the gradient; a larger one is scaled down."""
    old_log_probs: Literal["auto", "always"] = "auto"
    """When the trainer scores the samples before the first update: `auto` only if there are several updates a step, or
    something is made of it."""
    max_off_policy_steps: int = Field(0, ge=0, lt=2**31)
    """Steps that the policy of a sample may be older than the one it trains. Above 0, coming steps are sampled beside
    the update of the present one, where sampler and trainer have devices of their own; 0 takes turns."""
    max_skipped_updates: Count = 3
    """Updates in a row that may be skipped for a loss or gradient that is not finite; then `on_non_finite` applies."""
    on_non_finite: Literal["stop", "rollback"] = "stop"
    """What follows so many skipped updates, or weights that are not finite: the end, or the weights of the last
    checkpoint, from which the run goes on with the next problems."""
    max_rollbacks: Count = 3
    """Times that a run may go back to a checkpoint."""
    save_freq: int = Field(50, ge=0, lt=2**31)
    """Steps between checkpoints; one more is written at the end. 0 writes only that one."""
    save_in_background: bool = True
    """Write a checkpoint while the next step runs, from a copy in host memory, where the backend can; one at a time."""
    save_before: float | None = Field(None, gt=0)
    """Wall-clock limit of the process, in seconds or as [D-]HH:MM:SS: the run saves and ends, with exit code 75, so
    that it is done before."""
    on_save_error: Literal["stop", "continue"] = "stop"
    """What follows a checkpoint that cannot be written: the end, or the run goes on and tries again at the next."""
    keep_last: Count | None = None
    """Checkpoints that stay, counted from the latest; null keeps all of them."""
    keep_every: Count | None = None
    """Checkpoints of steps that it divides stay beside the last ones."""
    keep_best: str | None = None
    """Metric whose best checkpoint stays too, as `val-core/SOURCE/acc/mean@1`; `-` before it where less is better."""
    eval_freq: int = Field(10, ge=0, lt=2**31)
    """Steps between evaluations; one more is made before the first step and after the last. 0 makes none at all."""

    @field_validator("save_before", mode="before")
    @classmethod
    def save_before_is_a_duration(cls, value: object) -> object:
        """Seconds of "3:50:00" or "1-12:00:00", as SLURM writes a limit; anything else as it is."""
        match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", value) if isinstance(value, str) else None
        if match is None:
            try:
                return float(value) if isinstance(value, str) else value
            except ValueError:
                raise ValueError("must be seconds, or [D-]HH:MM:SS as 11:50:00") from None
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)

    @field_validator("betas")
    @classmethod
    def betas_lie_between_0_and_1(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError("both must be at least 0 and below 1")
        return value

    @model_validator(mode="after")
    def mini_batches_fill_the_batch(self) -> TrainerSettings:
        size, batch = self.mini_batch_size, self.train_batch_size
        if size is not None and batch % size:
            divisors = [d for d in range(1, batch + 1) if batch % d == 0]
            sizes = {max(d for d in divisors if d <= size), min((d for d in divisors if d > size), default=batch)}
            batches = {max(batch // size, 1) * size, (batch // size + 1) * size}
            raise ValueError(
                f"trainer.train_batch_size = {batch} is not a multiple of trainer.mini_batch_size = {size}; "
                f"nearest mini_batch_size: {_either(sizes)}; nearest train_batch_size: {_either(batches)}"
            )
        return self

    @property
    def updates_per_step(self) -> int:
        return self.ppo_epochs * (self.train_batch_size // (self.mini_batch_size or self.train_batch_size))


def _either(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))
