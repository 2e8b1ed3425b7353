"""What the server does for each verb: hand it to the hosted backend, and keep count of what it changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rlctl.backends.base import AnyBackend
from rlctl.backends.http import codec, messages
from rlctl.backends.http.server.calls import Tell, Work
from rlctl.backends.http.server.checking import must_make_sense
from rlctl.backends.http.server.sessions import Held
from rlctl.errors import BackendError, ConfigError
from rlctl.types import BackendInfo, Completion, LogProbs, LossSpec, LossStats, OptimStats, SyncReport


def work_of(held: Held, verb: str, body: bytes) -> Work:
    """What carries out the verb that a body asks for. Raises WireError when that makes no sense."""
    kind, _ = messages.VERBS[verb]
    request = codec.decode(body, kind)
    if verb != "start" and held.info is None:
        raise BackendError(f"{verb} came before start.")
    must_make_sense(request, job=held.job, info=held.info, plays_episodes=held.backend.plays_episodes)
    if isinstance(request, messages.ForwardBackward):
        must_be_able(held.backend, request.loss)
    verbs = _Verbs(held)
    do: Callable[[Any, Tell], Awaitable[Any]] = getattr(verbs, verb)

    async def work(tell: Tell) -> bytes:
        reply = await do(request, tell)
        # A step's completions are a megabyte; larger ones should not hold up the beats of others.
        return await asyncio.to_thread(codec.encode, reply)

    return work


def must_be_able(backend: AnyBackend, loss: LossSpec) -> None:
    """Raises ConfigError for a loss that the hosted backend cannot compute."""
    if (obstacle := backend.loss_obstacle(loss)) is not None:
        raise ConfigError(
            f"the hosted backend cannot compute this loss: {obstacle}.",
            hint="change the setting, or have another backend served; docs/algorithms.md says which can do what.",
        )


class _Verbs:
    """One method a verb, named as in `messages.VERBS`."""

    def __init__(self, held: Held) -> None:
        self.held, self.backend, self.spool = held, held.backend, held.files

    async def start(self, request: messages.Start, tell: Tell) -> BackendInfo:
        if self.held.info is None:
            self.held.info = await self.backend.start()
        return self.held.info

    async def generate(self, request: messages.Generate, tell: Tell) -> messages.Generated:
        told: set[int] = set()

        def group_ended(index: int, completions: list[Completion]) -> None:
            told.add(index)
            tell(codec.encode(messages.Group(index, completions)))

        self.backend.group_ended = group_ended
        try:
            groups = await self.backend.generate(request.prompts, n=request.n, sampling=request.sampling)
        finally:
            self.backend.group_ended = None
        for index, completions in enumerate(groups):
            if index not in told:
                group_ended(index, completions)
        return messages.Generated(len(groups), self.backend.generate_stats)

    async def log_probs(self, request: messages.LogProbsOf, tell: Tell) -> list[LogProbs]:
        return await self.backend.log_probs(request.rows, reference=request.reference)

    async def forward_backward(self, request: messages.ForwardBackward, tell: Tell) -> LossStats:
        self.held.gradients += 1
        return await self.backend.forward_backward(
            request.rows, loss=request.loss, loss_denominator=request.loss_denominator
        )

    async def optim_step(self, request: messages.OptimStep, tell: Tell) -> OptimStats:
        stats = await self.backend.optim_step(request.lr)
        self.held.updates += stats.stepped
        self.held.gradients = 0
        return stats

    async def sync_weights(self, request: messages.SyncWeights, tell: Tell) -> SyncReport:
        return await self.backend.sync_weights()

    async def save(self, request: messages.Save, tell: Tell) -> messages.Folder:
        folder = self.spool.new()
        await self.backend.save(folder.path)
        return await asyncio.to_thread(folder.described)

    async def snapshot(self, request: messages.TakeSnapshot, tell: Tell) -> messages.Folder | None:
        snapshot = await self.backend.snapshot()
        if snapshot is None:
            return None
        folder = self.spool.new()
        folder.written = asyncio.create_task(asyncio.to_thread(snapshot.write, folder.path))
        return messages.Folder(folder.name)

    async def written(self, request: messages.Written, tell: Tell) -> messages.Folder:
        folder = self.spool.folder(request.folder)
        expected = await folder.written if folder.written is not None else {}
        described = await asyncio.to_thread(folder.described)
        return messages.Folder(folder.name, described.files, dict(expected))

    async def load(self, request: messages.Load, tell: Tell) -> None:
        folder = self.spool.folder(request.folder)
        if self.held.gradients and not self.backend.abandon():
            raise BackendError(
                "the driver that died left a gradient, which the hosted backend cannot drop.",
                hint="leave --attach out, which loads the model anew.",
            )
        await self.backend.load(folder.path)
        self.held.updates = self.held.gradients = 0

    async def stacks(self, request: messages.Stacks, tell: Tell) -> dict[str, str]:
        return dict(await self.backend.stacks())
