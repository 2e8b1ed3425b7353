"""A fake whose sampler has weights of its own and may draw beside training.

It holds the contract against who calls it: a verb beside one that it must not run beside is an AssertionError.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from rlctl.errors import BackendError
from rlctl.types import Completion, LossSpec, LossStats, OptimStats, Prompt, Sampling, SyncReport, TrainRow
from tests.fakes import FakeBackend, FakeSettings, FakeSnapshot


class TwoSidedSettings(FakeSettings):
    sample_s: float = Field(0.0, ge=0)
    """Seconds of a generate."""
    update_s: float = Field(0.0, ge=0)
    """Seconds of a forward_backward."""
    fail_at_update: int = 0
    """The call of optim_step that raises BackendError; 0 is none."""


class TwoSidedBackend(FakeBackend):
    """`log` has what each verb did, in order; `drawn_from` the version of the policy behind each generate."""

    def __init__(self, settings: TwoSidedSettings, job: Any) -> None:
        super().__init__(settings, job)
        self.two_sided = settings
        self.sampled_from, self.sampler_version = self.theta, 0
        self.log: list[str] = []
        self.drawn_from: list[int] = []
        self.running: list[str] = []

    def loss_obstacle(self, loss: LossSpec) -> str | None:
        return super().loss_obstacle(replace(loss, token_advantages=False))

    def overlap_obstacle(self) -> str | None:
        return None

    @contextlib.contextmanager
    def at_work(self, verb: str) -> Iterator[None]:
        allowed = {"generate": ["train"], "train": ["generate"]}.get(verb, [])
        assert all(other in allowed for other in self.running), f"{verb} beside {self.running}"
        self.running.append(verb)
        try:
            yield
        except asyncio.CancelledError:
            self.log.append(f"{verb} cut off")
            raise
        finally:
            self.running.remove(verb)

    async def generate(self, prompts: Sequence[Prompt], *, n: int, sampling: Sampling) -> list[list[Completion]]:
        with self.at_work("generate"):
            self.log.append(f"draws from {self.sampler_version}")
            self.drawn_from.append(self.sampler_version)
            await asyncio.sleep(self.two_sided.sample_s)
            trained, self.theta = self.theta, self.sampled_from
            try:
                return await super().generate(prompts, n=n, sampling=sampling)
            finally:
                self.theta = trained

    async def forward_backward(self, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        with self.at_work("train"):
            self.log.append("learns")
            await asyncio.sleep(self.two_sided.update_s)
            parts = [part for row in rows for part in by_token(row)]
            stats = await super().forward_backward(parts, loss=loss, loss_denominator=loss_denominator)
            return replace(stats, rows=len(rows))

    async def optim_step(self, lr: float) -> OptimStats:
        with self.at_work("train"):
            if self.num_updates + 1 == self.two_sided.fail_at_update:
                raise BackendError("the trainer is gone.", hint="start it again.")
            return await super().optim_step(lr)

    async def sync_weights(self) -> SyncReport:
        with self.at_work("sync"):
            self.log.append(f"publishes {self.version}")
            self.sampled_from, self.sampler_version = self.theta.copy(), self.version
            return await super().sync_weights()

    async def snapshot(self) -> FakeSnapshot:
        with self.at_work("train"):
            return await super().snapshot()

    async def load(self, path: Path) -> None:
        with self.at_work("load"):
            await super().load(path)


def by_token(row: TrainRow) -> Iterator[TrainRow]:
    """Rows of one token each where tokens have advantages of their own, which the fake knows nothing of."""
    if row.token_advantages is None:
        yield row
        return
    for i, advantage in enumerate(row.token_advantages):
        one = slice(i, i + 1)
        old = None if row.old_logprobs is None else row.old_logprobs[one]
        yield TrainRow(row.prompt_ids, row.completion_ids[one], float(advantage), row.rollout_logprobs[one], old)
