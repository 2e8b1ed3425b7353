"""The `http` backend: every verb is asked of a server of `rlctl serve`, which carries it out once.

A run over HTTP is the hosted backend's run bit for bit: prompts carry their seeds, arrays travel as they are.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from rlctl import __version__
from rlctl.backends.base import Backend
from rlctl.backends.http import codec, files, messages
from rlctl.backends.http.settings import HttpSettings
from rlctl.backends.http.transport import Lost, Transport
from rlctl.errors import BackendBusy, BackendError, BackendUnavailable, RlctlError, Stalled
from rlctl.types import (
    BackendInfo,
    Completion,
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

log = logging.getLogger("rlctl.http")

BEATS_A_LEASE = 5
ASKS_AGAIN_S = 2.0
"""How often a place in line is asked for."""
BEFORE_LOAD = ("start", "load", "stacks")
"""Verbs that a session may begin with that holds what this run has not done."""


class HttpBackend(Backend[HttpSettings]):
    """GRPO's verbs on another machine."""

    plays_episodes = True  # where the hosted one does; else the server says so at the first turn

    def __init__(self, settings: HttpSettings, job: JobSpec) -> None:
        super().__init__(settings, job)
        self._transport: Transport | None = None
        self._opened: messages.Opened | None = None
        self._beats: asyncio.Task[None] | None = None
        self._abandoning: asyncio.Task[None] | None = None
        self._foreign = ""
        """What a session holds that this run has not done; "" is nothing."""

    def loss_obstacle(self, loss: LossSpec) -> str | None:
        """None: the hosted backend is asked when the session opens."""
        return None

    def overlap_obstacle(self) -> str | None:
        """None: the hosted backend is asked when the session opens, and refuses what it cannot."""
        return None

    async def start(self) -> BackendInfo:
        self._transport = Transport(self.settings, note=log.warning)
        self._opened = await self._open()
        if self._opened.updates or self._opened.gradients:
            self._foreign = f"{self._opened.updates} updates and {self._opened.gradients} gradients"
        self.accumulates = self._opened.accumulates  # type: ignore[misc]  # as the hosted backend's
        self._beats = asyncio.create_task(self._beat(self._opened.lease_s / BEATS_A_LEASE))
        log.info("session %s on %s", self._opened.session, self.settings.url)
        info: BackendInfo = await self._verb("start", messages.Start(), BackendInfo)
        return info

    @property
    def session(self) -> str:
        """The name by which `attach` takes this session up."""
        return self._session.session

    @property
    def sent_bytes(self) -> int:
        """Of all bodies of verbs so far, as they travelled."""
        return self._transport.sent_bytes if self._transport else 0

    @property
    def received_bytes(self) -> int:
        """Of all replies to verbs so far, as they travelled."""
        return self._transport.received_bytes if self._transport else 0

    @property
    def _session(self) -> messages.Opened:
        if self._opened is None or self._transport is None:
            raise BackendError("the http backend is not started, or is closed already.")
        return self._opened

    async def _open(self) -> messages.Opened:
        """A session; with `queue`, once those before us are done. Raises BackendBusy and BackendUnavailable."""
        request = messages.Open(
            messages.PROTOCOL, __version__, f"{platform.node()}, process {os.getpid()}", self.job,
            self.settings.attach, self.settings.queue,
        )  # fmt: skip
        ticket = uuid4().hex
        told = ""  # without the seconds, which change
        while True:
            try:
                return codec.decode(await self._ask_to_open(request, ticket), messages.Opened)
            except BackendBusy as error:
                if not self.settings.queue:
                    raise
                if told != error.message.partition(", heard")[0]:
                    told = error.message.partition(", heard")[0]
                    log.warning("%s; waiting", told)
                await asyncio.sleep(ASKS_AGAIN_S)

    async def _ask_to_open(self, request: messages.Open, ticket: str) -> bytes:
        assert self._transport is not None
        try:
            return await self._transport.ask("POST", "/sessions", request, key=ticket, once=not self.settings.queue)
        except Lost as error:
            raise BackendUnavailable(
                f"{self.settings.url} cannot be reached: {error}.",
                hint="start `rlctl serve` there, or set remote_backend.http.url.",
            ) from error

    async def _beat(self, every_s: float) -> None:
        """Renew the lease, until cancelled; a beat that fails is made up for by the next."""
        assert self._transport is not None
        assert self._opened is not None
        while True:
            await asyncio.sleep(every_s)
            try:
                await self._transport.ask("POST", f"/sessions/{self._opened.session}/beat", once=True)
            except Lost:
                continue
            except RlctlError as error:
                # The verb that comes next is told the same, and ends the run.
                log.warning("%s", error.message)
                return

    async def _verb(self, name: str, request: Any, reply: Any, *, part: Any = None) -> Any:
        session = self._session
        assert self._transport is not None
        if self._foreign and name not in BEFORE_LOAD:
            raise BackendError(
                f"the session {session.session} holds {self._foreign} that this run has not made.",
                hint="attach with the run that made them and that has a checkpoint, or leave --attach out.",
            )
        if self._abandoning is not None:  # which must not meet the verb that comes after
            await self._abandoning
            self._abandoning = None
        limit = "start_timeout_s" if name == "start" else "request_timeout_s"
        limit_s: float = getattr(self.settings, limit)
        try:
            async with asyncio.timeout(limit_s):
                return await self._transport.verb(session.session, request, reply, name=name, part=part or _no_part)
        except TimeoutError as error:
            self.abandon()
            raise Stalled(
                f"{name} at {self.settings.url} took longer than {limit_s:g} s.",
                hint=f"raise remote_backend.http.{limit}, or look at the server's log.",
            ) from error

    def abandon(self) -> bool:
        if self._opened is None or not self._opened.abandons:
            return False
        self._abandoning = asyncio.get_running_loop().create_task(self._ask_to_abandon(self._opened.session))
        return True

    async def _ask_to_abandon(self, session: str) -> None:
        """Where the server cannot be told, the verb goes on to its end."""
        assert self._transport is not None
        with suppress(Lost, RlctlError):
            await self._transport.ask("POST", f"/sessions/{session}/abandon", once=True)

    async def generate(self, prompts: Sequence[Prompt], *, n: int, sampling: Sampling) -> list[list[Completion]]:
        groups: dict[int, list[Completion]] = {}

        def part(payload: bytes) -> None:
            group = codec.decode(payload, messages.Group)
            if group.index not in groups and self.group_ended is not None:
                self.group_ended(group.index, group.completions)
            groups[group.index] = group.completions

        request = messages.Generate(list(prompts), n, sampling)
        generated: messages.Generated = await self._verb("generate", request, messages.Generated, part=part)
        if sorted(groups) != list(range(generated.groups)):
            raise BackendError(f"{len(groups)} of {generated.groups} groups came over the wire.")
        self.generate_stats = generated.stats
        return [groups[index] for index in range(generated.groups)]

    async def log_probs(self, rows: Sequence[TrainRow], *, reference: bool = False) -> list[LogProbs]:
        found: list[LogProbs] = await self._verb(
            "log_probs", messages.LogProbsOf(list(rows), reference), list[LogProbs]
        )
        return found

    async def forward_backward(self, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        request = messages.ForwardBackward(list(rows), loss, loss_denominator)
        stats: LossStats = await self._verb("forward_backward", request, LossStats)
        return stats

    async def optim_step(self, lr: float) -> OptimStats:
        stats: OptimStats = await self._verb("optim_step", messages.OptimStep(lr), OptimStats)
        return stats

    async def sync_weights(self) -> SyncReport:
        report: SyncReport = await self._verb("sync_weights", messages.SyncWeights(), SyncReport)
        return report

    async def save(self, path: Path) -> None:
        folder: messages.Folder = await self._verb("save", messages.Save(), messages.Folder)
        await self._fetch(folder, path)

    async def snapshot(self) -> files.RemoteSnapshot | None:
        folder: messages.Folder | None = await self._verb("snapshot", messages.TakeSnapshot(), messages.Folder | None)
        if folder is None:
            return None
        return files.RemoteSnapshot(self, folder.folder, asyncio.get_running_loop())

    async def written(self, folder: str, path: Path) -> Mapping[str, str]:
        """Wait until a snapshot is written there, and fetch its files; the digests of what was meant to be in them."""
        described: messages.Folder = await self._verb("written", messages.Written(folder), messages.Folder)
        await self._fetch(described, path)
        return described.expected

    async def _fetch(self, folder: messages.Folder, path: Path) -> None:
        try:
            await asyncio.to_thread(files.fetch, self.settings, self._session.session, folder, path)
        finally:
            assert self._transport is not None
            with suppress(Lost, RlctlError):
                await self._transport.ask(
                    "DELETE", f"/sessions/{self._session.session}/folders/{folder.folder}", once=True
                )

    async def load(self, path: Path) -> None:
        session = self._session.session
        assert self._transport is not None
        folder = codec.decode(await self._transport.ask("POST", f"/sessions/{session}/folders"), messages.Folder)
        await asyncio.to_thread(files.send, self.settings, session, folder, path)
        await self._verb("load", messages.Load(folder.folder), type(None))
        self._foreign = ""
        await self._transport.ask("DELETE", f"/sessions/{session}/folders/{folder.folder}")

    async def stacks(self) -> Mapping[str, str]:
        stacks: Mapping[str, str] = await self._verb("stacks", messages.Stacks(), dict[str, str])
        return stacks

    async def close(self) -> None:
        if self._abandoning is not None:
            await self._abandoning
        if self._beats is not None:
            self._beats.cancel()
            with suppress(asyncio.CancelledError):
                await self._beats
        opened, transport = self._opened, self._transport
        self._opened = self._transport = None
        if transport is None:
            return
        try:
            if opened is not None:
                with suppress(Lost, RlctlError):
                    await transport.ask("DELETE", f"/sessions/{opened.session}", once=True)
        finally:
            await transport.close()


def _no_part(_: bytes) -> None:
    """Only `generate` has parts."""
