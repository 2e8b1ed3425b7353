"""A backend whose verbs are watched: each wait has a name, and updates begun are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlctl.backends.base import AnyBackend, Backend, Snapshot
from rlctl.hangwatch import HangWatch
from rlctl.types import (
    BackendInfo,
    Completion,
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


class Watched(Backend[Any]):
    """Hands every verb on to `inner`."""

    def __init__(self, inner: AnyBackend, watch: HangWatch) -> None:
        super().__init__(inner.settings, inner.job)
        self.inner, self.watch = inner, watch
        self.updates_begun = 0
        """Calls of optim_step: after one, the weights may be other than before."""

    def overlap_obstacle(self) -> str | None:
        return self.inner.overlap_obstacle()

    async def start(self) -> BackendInfo:
        return await self.watch.until("the backend to start", self.inner.start())

    async def generate(self, prompts: Sequence[Prompt], *, n: int, sampling: Sampling) -> list[list[Completion]]:
        name = f"{len(prompts)} x {n} completions (generate)"
        groups = await self.watch.until(name, self.inner.generate(prompts, n=n, sampling=sampling))
        self.generate_stats = self.inner.generate_stats
        return groups

    async def log_probs(self, rows: Sequence[TrainRow], *, reference: bool = False) -> list[LogProbs]:
        name = f"the {'reference' if reference else 'policy'}'s log-probs of {len(rows)} rows (log_probs)"
        return await self.watch.until(name, self.inner.log_probs(rows, reference=reference))

    async def forward_backward(self, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        work = self.inner.forward_backward(rows, loss=loss, loss_denominator=loss_denominator)
        return await self.watch.until(f"the gradient of {len(rows)} rows (forward_backward)", work)

    async def optim_step(self, lr: float) -> OptimStats:
        self.updates_begun += 1
        return await self.watch.until("the optimizer (optim_step)", self.inner.optim_step(lr))

    async def sync_weights(self) -> SyncReport:
        return await self.watch.until("the sampler's weights (sync_weights)", self.inner.sync_weights())

    async def save(self, path: Path) -> None:
        await self.watch.until(f"{path} to be written (save)", self.inner.save(path))

    async def snapshot(self) -> Snapshot | None:
        return await self.watch.until("a copy of the weights (snapshot)", self.inner.snapshot())

    async def reference_work(self, repetitions: int, *, like: JudgedPhase) -> bool:
        return await self.watch.until("the reference work", self.inner.reference_work(repetitions, like=like))

    async def load(self, path: Path) -> None:
        await self.watch.until(f"{path} to be loaded (load)", self.inner.load(path))

    async def close(self) -> None:
        await self.watch.until("the backend to close", self.inner.close())

    def abandon(self) -> bool:
        return self.inner.abandon()

    async def stacks(self) -> Mapping[str, str]:
        return await self.inner.stacks()
