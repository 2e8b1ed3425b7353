"""One running Ray backend for many tests: starting one takes half a minute, putting it back to its start none.

`backend(job)` looks like a new backend of the contract's tests. Its `start` restores the first checkpoint, which brings
weights, moments and counts back to where they were; its `close` leaves everything running.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlctl.backends.base import AnyBackend, Backend
from rlctl.types import BackendInfo, JobSpec

_running: dict[str, Any] = {}


class Running:
    """A started backend with the event loop on which it lives, in a thread of its own."""

    def __init__(self, backend: AnyBackend, folder: Path) -> None:
        self.backend, self.folder = backend, folder
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        try:
            self.info: BackendInfo = self.call(backend.start())
            self.call(backend.save(folder))
        except BaseException:
            self.stop()
            raise

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(600)

    async def call_from(self, work: Coroutine[Any, Any, Any]) -> Any:
        """From another event loop, which stays free."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def stop(self) -> None:
        self.call(self.backend.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def start(make: Any, folder: Path) -> Running:
    _running["contract"] = Running(make(), folder)
    return _running["contract"]


def backend(job: JobSpec) -> AnyBackend:
    return Rested(_running["contract"], job)


class Rested(Backend[Any]):
    """The running backend, put back to its start."""

    def __init__(self, running: Running, job: JobSpec) -> None:
        super().__init__(running.backend.settings, job)
        self.running = running
        self.plays_episodes = running.backend.plays_episodes  # type: ignore[misc]  # as the one that it stands for

    def overlap_obstacle(self) -> str | None:
        """None: on CPUs the sampler keeps its memory while trainers work."""
        return None

    async def start(self) -> BackendInfo:
        self.running.backend.job = replace(self.running.backend.job, plan=self.job.plan)
        await self.running.call_from(self.running.backend.load(self.running.folder))
        return self.running.info

    async def generate(self, prompts: Sequence[Any], **options: Any) -> Any:
        groups = await self.running.call_from(self.running.backend.generate(prompts, **options))
        self.generate_stats = self.running.backend.generate_stats
        return groups

    async def log_probs(self, rows: Sequence[Any], *, reference: bool = False) -> Any:
        return await self.running.call_from(self.running.backend.log_probs(rows, reference=reference))

    async def forward_backward(self, rows: Sequence[Any], **options: Any) -> Any:
        return await self.running.call_from(self.running.backend.forward_backward(rows, **options))

    async def optim_step(self, lr: float) -> Any:
        return await self.running.call_from(self.running.backend.optim_step(lr))

    async def sync_weights(self) -> Any:
        return await self.running.call_from(self.running.backend.sync_weights())

    async def save(self, path: Path) -> None:
        await self.running.call_from(self.running.backend.save(path))

    async def load(self, path: Path) -> None:
        await self.running.call_from(self.running.backend.load(path))

    async def close(self) -> None: ...
