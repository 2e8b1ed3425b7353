"""What one step did, as records: groups and updates, what was left out, and how far sampler and trainer were apart.

They stay in the driver; what travels to a backend and back is in `types.py`. `report.py` turns them into metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlctl.types import GenerateStats, LossStats, OptimStats, Rollout, SyncReport, TrainRow


@dataclass(frozen=True, slots=True)
class Filled:
    """How a batch was filled with groups that have signal."""

    refills: int
    """Further samplings that it took."""
    missing_groups: int
    """Groups the batch lacks, since the bound was reached or no further problem was there."""
    surplus_groups: int
    """Groups with signal that a full batch had no room for."""
    replaced_groups: int
    """Groups without signal, whatever length adds to their rewards."""


@dataclass(frozen=True, slots=True)
class Correction:
    """How far the sampler was from the trainer over the tokens of a step, as sums; nats before the first update.

    Weights are trainer / sampler before they are bounded; all 1 where no correction is asked for.
    """

    tokens: int
    kl_sum: float
    """Of log sampler - log trainer: k1 of KL(sampler || trainer)."""
    k3_sum: float
    weight_sum: float | None = None
    """None without a correction, as everything below."""
    weight_min: float | None = None
    weight_max: float | None = None
    outside: int | None = None
    """Tokens whose weight was truncated, or masked."""


@dataclass(frozen=True, slots=True)
class KlInReward:
    """KL that was taken off the reward, before its weight, as sums over all completions that were compared; nats."""

    coef: float
    """Its weight in this step."""
    token_sum: float
    tokens: int
    mean_sum: float
    """Of each completion's mean over its tokens."""
    completions: int

    @property
    def mean_of_completions(self) -> float | None:
        """What the weight is steered by; None where nothing was compared."""
        return self.mean_sum / self.completions if self.completions else None


@dataclass(frozen=True, slots=True)
class Overlap:
    """How sampling and training shared the seconds of a step, from its begin to where its policy is published."""

    seconds: float
    sampling: float
    """Seconds in which samples were drawn and scored, for whatever step."""
    training: float
    """Seconds in which the step's own batch was scored by the trainer and trained on."""
    both: float

    @property
    def share(self) -> float | None:
        """How much of the shorter one's work was hidden behind the other's, 0..1; None where one had none."""
        shorter = min(self.sampling, self.training)
        return self.both / shorter if shorter else None


@dataclass(frozen=True, slots=True)
class Refused:
    """A minibatch whose loss or gradient was not finite, so that the optimizer did not step; `update` counts from 0."""

    update: int
    rows: Sequence[TrainRow]
    loss_denominator: float
    loss: float
    grad_norm: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one GRPO step did, as records; `report.py` turns it into metrics."""

    step: int
    lr: float
    groups: Sequence[Sequence[Rollout]]
    """[P][n] rollouts: all that were sampled, whether or not they were trained on."""
    advantages: Sequence[float]
    """Of the rows that were trained on."""
    zero_signal_groups: int
    """Groups whose rewards are all equal, those shrunk to fewer than two rows included."""
    shrunk_groups: int
    """Groups left with fewer than two rows because rewards failed."""
    losses: Sequence[LossStats]
    """One for each update."""
    updates: Sequence[OptimStats]
    empty_updates: int
    """Minibatches without a row to train on, for which the optimizer was not stepped."""
    generation: GenerateStats
    rollout_gap: tuple[float, float] | None
    """Mean and maximum over tokens of |sampler's - trainer's probability|; None when nothing was trained on."""
    sync: SyncReport | None
    """Of the policy's publication; None before it, and for a step after which none was due."""
    seconds: Mapping[str, float]
    filled: Filled | None = None
    """What replacing groups without signal came to; None where none is replaced."""
    masked_rows: int = 0
    """Truncated completions that were left out of the update."""
    kl_in_reward: KlInReward | None = None
    """None where none is taken off it."""
    correction: Correction | None = None
    """None where the trainer has not scored the samples before the first update."""
    staleness: Sequence[int] = ()
    """Of each row that was trained on: steps between the policy that sampled it and the one that met it."""
    overlap: Overlap | None = None
    """None where sampling and training take turns."""

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.groups for rollout in group]

    @property
    def loss(self) -> LossStats:
        """Sum over the updates."""
        return sum(self.losses, start=LossStats())
