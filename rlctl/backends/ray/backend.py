"""The driver's side of the Ray backend: each verb asks actors and puts their answers together.

No tensor passes through here: rows and completions go to actors as they are, weights from trainer to sampler.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rlctl.backends.base import Backend, Snapshot
from rlctl.backends.ray import rollouts, sync
from rlctl.backends.ray.actors import answer, ask
from rlctl.backends.ray.balance import balance
from rlctl.backends.ray.fleet import HEAD, Fleet
from rlctl.backends.ray.placement import must_hold_whole_weights
from rlctl.backends.ray.sampler import probe_ids
from rlctl.backends.ray.settings import RaySettings
from rlctl.backends.ray.waiting import Patience, answers
from rlctl.engine.limits import must_know_ids
from rlctl.engine.policy_losses import loss_function
from rlctl.errors import BackendError, CheckpointError
from rlctl.types import (
    BackendInfo,
    Completion,
    GenerateStats,
    JobSpec,
    LogProbs,
    LossSpec,
    LossStats,
    OptimStats,
    Prompt,
    Sampling,
    SyncReport,
    TrainRow,
)

T = TypeVar("T")

logger = logging.getLogger("rlctl.ray")

FIRST_CHECKS = 10
"""Syncs from the start after each of which sampler and trainer are compared."""
PROBE_LIMITS = {"float32": (1e-3, 1e-3), "bfloat16": (0.15, 1.0)}
"""(mean, maximum) of the difference of two log-probs of the probe, nats: bfloat16 logits of 16 are 1/8 apart."""


class RayBackend(Backend[RaySettings]):
    """GRPO's verbs on actors."""

    plays_episodes = True

    def __init__(self, settings: RaySettings, job: JobSpec) -> None:
        super().__init__(settings, job)
        self.fleet = Fleet(settings, job)
        self.patience = Patience(settings.request_timeout_s, settings.stall_notice_s)
        self.reissued_prompts = 0
        """Prompts whose sampler died and that were drawn anew, over the whole run."""
        self._syncs = 0
        self._in_sync = False
        self._awake = True
        self._met: list[Any] = []
        """The samplers with which the trainers have a transfer open."""

    def loss_obstacle(self, loss: LossSpec) -> str | None:
        """None: a trainer computes every loss that is registered. Raises BackendUnavailable where its code fails."""
        loss_function(loss)
        return None

    def overlap_obstacle(self) -> str | None:
        if self.settings.colocate:
            return "with remote_backend.ray.colocate = true they share devices"
        return None

    @property
    def _overlaps(self) -> bool:
        """Whether the run itself says when samplers get weights, and generates beside training."""
        return self.job.plan is not None and self.job.plan.max_off_policy_steps > 0

    async def start(self) -> BackendInfo:
        must_hold_whole_weights(self.settings, self.job)
        await self.fleet.start()
        await self.sync_weights()
        return self.fleet.started.info

    async def generate(self, prompts: Sequence[Prompt], *, n: int, sampling: Sampling) -> list[list[Completion]]:
        must_know_ids(self.fleet.started.info.vocab_size, prompts)
        rollouts.must_be_unfiltered(sampling)
        if not self._in_sync and not self._overlaps:
            await self.sync_weights()
        start = time.perf_counter()
        await self._wake()
        groups = await self._sampled(prompts, n=n, sampling=sampling)
        self.generate_stats = GenerateStats(
            flops=rollouts.flops(self.fleet.started.shape, prompts, groups),
            seconds=time.perf_counter() - start,
            tokens=sum(len(c.token_ids) for group in groups for c in group),
        )
        return groups

    async def _sampled(self, prompts: Sequence[Prompt], *, n: int, sampling: Sampling) -> list[list[Completion]]:
        """Every prompt's completions; the prompts of a sampler that dies are drawn anew, once."""
        groups, lost = await self._draw(prompts, range(len(prompts)), n=n, sampling=sampling)
        if lost:
            self.reissued_prompts += len(lost)
            logger.warning("%d prompts are drawn anew, since their sampler died", len(lost))
            if not self.fleet.samplers:
                if self._overlaps:
                    raise BackendError(
                        "the last sampler died, and the weights that it sampled from are being trained on.",
                        hint="the run goes on from its last checkpoint: rlctl resume.",
                    )
                await self.fleet.replace_sampler()
                await self.sync_weights()
            again, lost = await self._draw(prompts, lost, n=n, sampling=sampling)
            groups |= again
        if lost:
            raise BackendError(f"{len(lost)} prompts lost their sampler twice.", hint="see Ray's logs for the reason.")
        return [groups[i] for i in range(len(prompts))]

    async def _draw(
        self, prompts: Sequence[Prompt], positions: Sequence[int], *, n: int, sampling: Sampling
    ) -> tuple[dict[int, list[Completion]], list[int]]:
        """(completions by position, positions whose sampler died); the dead are dropped."""
        shares = rollouts.spread(positions, list(self.fleet.samplers))
        asked = {
            f"{name}, prompt {i}": rollouts.completions_or_death(
                name, self.fleet.samplers[name].generate.remote(prompts[i], n=n, sampling=sampling)
            )
            for i, name in shares.items()
        }
        done = await answers(asked, what="sample", patience=self.patience)
        by_position = dict(zip(shares, done.values(), strict=True))
        lost = {i: death for i, death in by_position.items() if isinstance(death, BaseException)}
        for name in {shares[i] for i in lost}:
            logger.warning("%s", next(death for i, death in lost.items() if shares[i] == name))
            await self.fleet.drop(name)
        return {i: g for i, g in by_position.items() if not isinstance(g, BaseException)}, sorted(lost)

    async def log_probs(self, rows: Sequence[TrainRow], *, reference: bool = False) -> list[LogProbs]:
        if reference and not self.job.needs_reference:
            raise BackendError(
                "reference log-probs were asked for, but no reference model is loaded.",
                hint="set algorithm.kl_coef above 0.",
            )
        return await self._log_probs(rows, reference=reference, temperature=None)

    async def _log_probs(
        self, rows: Sequence[TrainRow], *, reference: bool, temperature: float | None
    ) -> list[LogProbs]:
        shares, parts = await self._shared(
            rows, lambda a, mine: a.log_probs.remote(mine, reference=reference, temperature=temperature), what="score"
        )
        result = [np.zeros(0, dtype=np.float32) for _ in rows]
        for share, part in zip(shares, parts, strict=True):
            for i, values in zip(share, part, strict=True):
                result[i] = values
        return result

    async def forward_backward(self, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        _, parts = await self._shared(
            rows,
            lambda a, mine: a.forward_backward.remote(mine, loss=loss, loss_denominator=loss_denominator),
            what="update",
        )
        return sum(parts, start=LossStats())

    async def _shared(
        self, rows: Sequence[TrainRow], call: Callable[[Any, list[TrainRow]], Awaitable[T]], *, what: str
    ) -> tuple[list[list[int]], list[T]]:
        """(positions of the rows that each rank got, what each answered)"""
        await self._sleep()
        shares = balance(rows, ranks=len(self.fleet.trainers))
        asked = {
            name: answer(name, call(actor, [rows[i] for i in share]))
            for (name, actor), share in zip(self.fleet.trainers.items(), shares, strict=True)
        }
        return shares, list((await answers(asked, what=what, patience=self.patience)).values())

    async def optim_step(self, lr: float) -> OptimStats:
        stats = await self._on_trainers(lambda a: a.optim_step.remote(lr), what="step")
        if stats[0].stepped:
            self._in_sync = False
        return rollouts.joined(stats)

    async def _on_trainers(self, call: Callable[[Any], Awaitable[T]], *, what: str) -> list[T]:
        """The answer of each rank, in their order."""
        _ = self.fleet.started
        return list((await ask(self.fleet.trainers, call, what=what, patience=self.patience)).values())

    async def sync_weights(self) -> SyncReport:
        on_gpus = self.fleet.way != "shared_memory"
        received, version = await (self._sent_between_gpus() if on_gpus else self._sent_in_files())
        self._in_sync = True
        self._syncs += 1
        # Between GPUs there are no checksums: the log-probs are what proves it.
        if on_gpus or self._syncs <= FIRST_CHECKS or self._syncs % self.settings.sync_check_every == 0:
            await self._must_agree()
        return SyncReport(received[0].expected, min(r.sent for r in received), version)

    async def _sent_in_files(self) -> tuple[list[sync.Received], int]:
        try:
            tensors: sync.Tensors = (await self._on_trainers(lambda a: a.export.remote(), what="gather weights"))[0]
            await self._wake()
            return await self._delivered(tensors), tensors.version
        finally:
            await asyncio.shield(self._discard())

    async def _sent_between_gpus(self) -> tuple[list[sync.Received], int]:
        samplers = list(self.fleet.samplers.values())
        forms = (await self._on_trainers(lambda a: a.forms.remote(), what="name weights"))[0]
        await self._wake()
        asked = {
            name: answer(name, actor.expects.remote(forms, place))
            for place, (name, actor) in enumerate(self.fleet.samplers.items())
        }
        received = await answers(asked, what="compare names", patience=self.patience)
        if samplers != self._met:
            await self._on_trainers(lambda a: a.open_transfer.remote(self.fleet.way, samplers), what="meet samplers")
            self._met = samplers
        versions = await self._on_trainers(lambda a: a.send.remote(), what="send weights")
        return list(received.values()), versions[0]

    async def _delivered(self, tensors: sync.Tensors) -> list[sync.Received]:
        head = self.fleet.trainers[HEAD]
        here = self.fleet.places[HEAD].machine
        away = any(self.fleet.places[name].machine != here for name in self.fleet.samplers)
        contents = [head.content.remote(file) for file in tensors.files] if away else []
        asked = {
            name: answer(
                name, actor.load.remote(tensors, *(contents if self.fleet.places[name].machine != here else []))
            )
            for name, actor in self.fleet.samplers.items()
        }
        return list((await answers(asked, what="load weights", patience=self.patience)).values())

    async def _discard(self) -> None:
        if HEAD in self.fleet.trainers:
            head = self.fleet.trainers[HEAD]
            try:
                await ask({HEAD: head}, lambda a: a.discard.remote(), what="clear", patience=self.patience)
            except BackendError:
                # The rank is gone, and its guard removes the files; what it died of is being told already.
                return

    async def _must_agree(self) -> None:
        """Raises BackendError when a sampler's log-probs of a fixed text are not the trainer's."""
        ids = probe_ids(self.fleet.started.info.vocab_size)
        row = TrainRow(ids[:1], ids[1:], 0.0, np.zeros(len(ids) - 1, np.float32))
        theirs = await ask(self.fleet.samplers, lambda a: a.score.remote(ids), what="compare", patience=self.patience)
        (mine,) = await self._log_probs([row], reference=False, temperature=1.0)
        mean, most = PROBE_LIMITS[self.fleet.started.info.dtype]
        for name, told in theirs.items():
            gap = np.abs(told - mine)
            if not (gap.mean() <= mean and gap.max() <= most):
                raise BackendError(
                    f"after the sync, log-probs of {name} differ from the trainer's by {gap.mean():.3g} on average and "
                    f"{gap.max():.3g} at most (limits {mean:g}, {most:g}).",
                    hint="it holds other weights, or computes this model in another way.",
                )

    async def _wake(self) -> None:
        if not self._awake:
            await ask(self.fleet.samplers, lambda a: a.wake.remote(), what="wake", patience=self.patience)
            self._awake = True

    async def _sleep(self) -> None:
        """Colocated samplers on GPUs give their memory to the trainers."""
        _ = self.fleet.started
        if self._awake and self.settings.colocate and self.fleet.device == "cuda":
            await ask(self.fleet.samplers, lambda a: a.sleep.remote(), what="sleep", patience=self.patience)
            self._awake = False

    async def snapshot(self) -> Snapshot:
        """A copy in rank 0's memory. It is written between that rank's calls, while samplers draw."""
        await self._copy()
        loop = asyncio.get_running_loop()
        return _Copy(lambda path: asyncio.run_coroutine_threadsafe(self._write(path), loop).result())

    async def save(self, path: Path) -> None:
        await self._copy()
        await self._write(path)

    async def _copy(self) -> None:
        await self._on_trainers(lambda a: a.copy.remote(), what="copy model and optimizer")

    async def _write(self, path: Path) -> None:
        await asyncio.to_thread(path.mkdir, parents=True, exist_ok=True)
        rank_0 = {HEAD: self.fleet.trainers[HEAD]}
        await ask(rank_0, lambda a: a.write.remote(path.resolve()), what="write the checkpoint", patience=self.patience)
        if not (path / "trainer.pt").is_file():
            raise CheckpointError(
                f"trainer rank 0 wrote {path} on its own machine, and it is not seen here.",
                hint="set run.dir to a folder that all machines share.",
            )

    async def load(self, path: Path) -> None:
        await self._on_trainers(lambda a: a.load.remote(path.resolve()), what="load")
        self._in_sync = False

    async def stacks(self) -> Mapping[str, str]:
        return await self.fleet.stacks()

    async def close(self) -> None:
        await self.fleet.close()


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy that rank 0 holds, written from whatever thread."""

    on_rank_0: Callable[[Path], None]

    def write(self, path: Path) -> Mapping[str, str]:
        self.on_rank_0(path)
        return {}
