"""The contract between the GRPO loop and whatever holds the model: tokens in, tokens out.

Every verb is a coroutine and must leave the event loop free: blocking work goes through
`asyncio.to_thread`, calls to a foreign client through `rlctl.backends.calling.call`.
Moving one device between sampling and training (colocation) is the backend's own business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rlctl.algorithms.losses import is_contract
from rlctl.errors import ConfigError
from rlctl.types import (
    BackendInfo,
    Completion,
    GenerateStats,
    JobSpec,
    JudgedPhase,
    LogProbs,
    LossSpec,
    LossStats,
    OptimStats,
    Prompt,
    Sampling,
    SyncReport,
    TrainRow,
)

SettingsT = TypeVar("SettingsT")


class Snapshot(Protocol):
    """A copy of all that `save` writes, which further steps do not change."""

    def write(self, path: Path) -> Mapping[str, str]:
        """Write into the folder `path`, in whatever thread; gives the SHA-256 of what was meant to be in its files,
        by name, as far as it is known.

        Raises OSError.
        """


class Backend(ABC, Generic[SettingsT]):
    """A policy that can be sampled, scored, trained, saved and loaded.

    Lengths: P prompts, n samples each, R rows, C completion tokens of a row.
    """

    accumulates: ClassVar[bool] = True
    """Whether `forward_backward` may be called several times before `optim_step`; a run calls it once."""

    plays_episodes: ClassVar[bool] = False
    """Whether it leaves tokens outside `TrainRow.policy_mask` out of loss, log-probs and counts, ends completions at
    `Sampling.stop_token_ids`, and takes prompts as ids, whatever they are: what turns with an environment need. A run
    with an environment is refused where it is False."""

    def __init__(self, settings: SettingsT, job: JobSpec) -> None:
        """Remember what to do; touches no device and no network."""
        self.settings = settings
        self.job = job
        self.generate_stats = GenerateStats()
        """What the last `generate` cost."""
        self.group_ended: Callable[[int, list[Completion]], None] | None = None
        """Told of each prompt's completions, by the prompt's index, as soon as `generate` has all of them; from any
        thread. A backend that cannot tell earlier leaves it to the end."""

    def loss_obstacle(self, loss: LossSpec) -> str | None:
        """Why `forward_backward` cannot compute this loss; None when it can. Asked before the run starts.

        A backend that does not override this computes the clipped loss of token ratios, whose rows have one advantage
        each, with KL by k1, k2 or k3.
        """
        if is_contract(loss):
            return None
        if loss.policy_loss != "vanilla":
            return f"algorithm.policy_loss = {loss.policy_loss}"
        if loss.importance_sampling != "token":
            return f"algorithm.importance_sampling = {loss.importance_sampling}"
        if loss.token_advantages:
            return (
                "advantages that differ from token to token (algorithm.rollout_is, and algorithm.use_kl_in_reward with "
                "some estimators)"
            )
        return f"algorithm.kl_estimator = {loss.kl_estimator}"

    def overlap_obstacle(self) -> str | None:
        """Why `generate` cannot run beside training; None when it can. Asked before the run starts, which then says
        `job.plan.max_off_policy_steps`.

        Beside means: while a `generate` is awaited, `log_probs`, `forward_backward`, `optim_step`, `snapshot` and
        `save` may be called one after the other, and it samples all the while from the weights of the last
        `sync_weights`. That one, and `load`, are called only when no other verb runs.
        """
        return "its sampler and its trainer take turns"

    @abstractmethod
    async def start(self) -> BackendInfo:
        """Load the model and say what it runs on. Raises ModelError or BackendUnavailable."""

    @abstractmethod
    async def generate(self, prompts: Sequence[Prompt], *, n: int, sampling: Sampling) -> list[list[Completion]]:
        """`n` completions for each prompt: [P] prompts -> [P][n]. Order follows the prompts."""

    @abstractmethod
    async def log_probs(self, rows: Sequence[TrainRow], *, reference: bool = False) -> list[LogProbs]:
        """Log-probs of the completion tokens, nats at the job's temperature, 0 for those outside a row's policy mask:
        [R] rows -> [R] of [C].

        Under the frozen starting policy when `reference`; needs `job.needs_reference`.
        """

    @abstractmethod
    async def forward_backward(self, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        """Add the gradient of the rows' loss to what has accumulated since the last `optim_step`.

        `loss_denominator` is that of the whole minibatch, over all micro-batches, calls and ranks,
        so that however the rows are cut the gradient is that of one big batch.
        """

    @abstractmethod
    async def optim_step(self, lr: float) -> OptimStats:
        """Clip, step and zero the accumulated gradient; refuses to step on one that is not finite."""

    @abstractmethod
    async def sync_weights(self) -> SyncReport:
        """Bring the sampler to the trainer's weights. Raises BackendError naming any weight not sent."""

    @abstractmethod
    async def save(self, path: Path) -> None:
        """Write model (Hugging Face format, with tokenizer), optimizer and RNG into the folder `path`.

        Raises CheckpointError; NonFiniteWeights when a weight is not finite.
        """

    async def snapshot(self) -> Snapshot | None:
        """A copy to be written while the run goes on; None where the backend can only `save` at once.

        Raises NonFiniteWeights.
        """
        return None

    def abandon(self) -> bool:
        """End the running verb soon, since nobody waits for it any more, and drop what gradient has accumulated.

        False where the backend cannot: then the verb goes on to its end, and another may have to wait for it.
        """
        return False

    async def stacks(self) -> Mapping[str, str]:
        """What each process that works for this backend is doing, by name, for a person; {} where there is no other."""
        return {}

    async def reference_work(self, repetitions: int, *, like: JudgedPhase) -> bool:
        """Do a fixed piece of work that often where the model is computed, of the kind that the phase is of, so that
        whoever waits for it learns what the machine gives such work at the moment; False where the backend has none.
        """
        return False

    @abstractmethod
    async def load(self, path: Path) -> None:
        """Continue from what `save` wrote: model, optimizer and RNG."""

    @abstractmethod
    async def close(self) -> None:
        """Free everything. Safe twice, after a failed start, and on Ctrl-C."""


AnyBackend = Backend[Any]
"""A backend, whatever its settings."""


def must_overlap(backend: AnyBackend, max_off_policy_steps: int, *, name: str) -> None:
    """Raises ConfigError where sampling is to run beside training and the backend cannot."""
    if max_off_policy_steps and (obstacle := backend.overlap_obstacle()) is not None:
        raise ConfigError(
            f"trainer.max_off_policy_steps = {max_off_policy_steps} samples beside training, which backend {name} "
            f"cannot: {obstacle}.",
            hint="set it to 0, or give sampler and trainer devices of their own; docs/async.md says where that is.",
        )
