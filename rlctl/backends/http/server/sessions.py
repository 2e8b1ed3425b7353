"""Who holds the hosted backend, and for how long.

There is one backend and one session for it. Its client renews the lease by a beat every few seconds; when the lease
ends, the job is closed and its memory freed. Others are told who holds it, or wait in line: each asks again with its
ticket, and the first in line that still asks gets the next session.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from rlctl import __version__
from rlctl.backends.base import AnyBackend, Backend
from rlctl.backends.http import codec, messages
from rlctl.backends.http.failures import failure_of
from rlctl.backends.http.server.calls import Calls
from rlctl.backends.http.server.checking import job_must_make_sense
from rlctl.backends.http.server.spool import Spool
from rlctl.errors import BackendBusy, BackendError, BackendUnavailable, ConfigError, RlctlError
from rlctl.types import BackendInfo, JobSpec

log = logging.getLogger("rlctl.serve")

TAKEN_UP_AFTER = 4
"""A session may be taken up after that part of a lease without a word: its client has missed a beat of five."""
FORGETS_TICKET_S = 30.0
"""A place in line is lost after so long without a question: clients ask every few seconds."""

SHUTTING_DOWN = "the server is shutting down"

Make = Callable[[JobSpec], AnyBackend]
"""The hosted backend for a job, not started. Raises RlctlError."""


class Held:
    """One session: a job on the hosted backend."""

    def __init__(self, name: str, request: messages.Open, backend: AnyBackend, *, spool: Path, ticket: str) -> None:
        self.name, self.client, self.job, self.backend, self.ticket = name, request.client, request.job, backend, ticket
        self.calls = Calls(failed=self._told, overlaps=backend.overlap_obstacle() is None)
        self.updates = 0
        """Updates that changed the weights since the start or the last load."""
        self.gradients = 0
        """Calls of forward_backward that began since the last update or load."""
        self.info: BackendInfo | None = None
        """What `start` found, once it has."""
        self.files = Spool(spool)
        self.heard = time.monotonic()
        self.ending = ""
        """Why it ends, once it does."""

    def hear(self) -> None:
        self.heard = time.monotonic()

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.heard

    def about(self) -> messages.Session:
        return messages.Session(self.name, self.client, self.silent_s, self.updates, self.calls.running)

    def give_up(self, *, why: str) -> None:
        """End the running verb soon, where the backend can; its client is told why."""
        self.ending = why
        self.backend.abandon()

    def _told(self, verb: str, error: Exception) -> bytes:
        if self.ending:
            given_up = BackendError(
                f"{verb} was given up: {self.ending}.",
                hint="start the run again when there is a server; it goes on after its last checkpoint.",
            )
            return codec.encode(failure_of(given_up))
        if isinstance(error, RlctlError):  # raised on purpose: what it says is all there is
            log.error("session %s: %s failed: %s", self.name, verb, error)
        else:
            log.error("session %s: %s failed", self.name, verb, exc_info=error)
        return codec.encode(failure_of(error))


class Host:
    """The one session there can be, and those who wait for it."""

    def __init__(self, make: Make, *, name: str, lease_s: float, spool: Path, max_body_bytes: int) -> None:
        self.make, self.name, self.lease_s, self.spool = make, name, lease_s, spool
        self.max_body_bytes = max_body_bytes
        self.held: Held | None = None
        self.closing = False
        self.ended_sessions = 0
        self._line: dict[str, float] = {}
        """Ticket -> when it asked last, first in line first."""
        self._lock = asyncio.Lock()

    async def open(self, request: messages.Open, *, ticket: str) -> messages.Opened:
        """A session for the job, the one it had, or the one it names. Raises BackendUnavailable when it is held."""
        _must_speak_alike(request)
        job_must_make_sense(request.job)
        async with self._lock:
            if self.closing:
                raise BackendUnavailable(f"{SHUTTING_DOWN}.")
            if request.attach:
                return self._opened(self._taken_up(request, ticket))
            if self.held is not None and self.held.ticket == ticket:
                return self._opened(self.held)
            self._must_be_free(request, ticket)
            name = secrets.token_hex(6)
            backend = await asyncio.to_thread(self.make, request.job)
            self.held = Held(name, request, backend, spool=self.spool / name, ticket=ticket)
            self._line.pop(ticket, None)
            log.info("session %s: opened by %s", name, request.client)
            return self._opened(self.held)

    def _taken_up(self, request: messages.Open, ticket: str) -> Held:
        held = self.session(request.attach)
        if held.job != request.job:
            differ = [name for name in JobSpec.__slots__ if getattr(held.job, name) != getattr(request.job, name)]
            raise ConfigError(
                f"the session {request.attach} is of another job: {', '.join(differ)} differ.",
                hint="leave --attach out, which loads the model anew.",
            )
        wait_s = self.lease_s / TAKEN_UP_AFTER - held.silent_s
        if held.ticket != ticket and wait_s > 0:
            raise Busy(
                f"the session {request.attach} is in use: {held.client} was heard {held.silent_s:.0f} s ago.",
                hint=f"where that driver is dead, attach in {math.ceil(wait_s)} s; --queue waits for that.",
            )
        held.ticket, held.client = ticket, request.client
        held.hear()
        log.info("session %s: taken up by %s", held.name, held.client)
        return held

    def _must_be_free(self, request: messages.Open, ticket: str) -> None:
        now = time.monotonic()
        self._line = {each: asked for each, asked in self._line.items() if now - asked < FORGETS_TICKET_S}
        if request.queue:
            self._line[ticket] = now
        first = next(iter(self._line), ticket)
        if self.held is None and first == ticket:
            return
        place = list(self._line).index(ticket) + 1 if ticket in self._line else 0
        if self.held is not None:
            held = self.held
            doing = f" ({held.calls.running})" if held.calls.running else ""
            who = f"{held.client} holds it in session {held.name}{doing}, heard {held.silent_s:.0f} s ago"
        else:
            who = "it is free, and others are in line before you"
        hint = "" if place else "--queue waits for it; --attach takes over the session of a driver that is dead."
        raise Busy(f"the server has one session: {who}.", hint=hint, place=place)

    def session(self, name: str) -> Held:
        """The session of that name. Raises NoSuchSession."""
        if self.held is None or not secrets.compare_digest(self.held.name, name):
            raise NoSuchSession(
                f"there is no session {name[:40]}: its lease ended after {self.lease_s:g} s without a word, or the "
                "server was started again.",
                hint="start the run again; it goes on after its last checkpoint.",
            )
        return self.held

    async def close(self, held: Held, *, why: str) -> None:
        """End the job and free its memory. Safe twice."""
        async with self._lock:
            if self.held is not held:
                return
            log.info("session %s: closed, %s", held.name, why)
            held.give_up(why=why)
            await held.calls.cancel()
            try:
                await held.backend.close()
            finally:
                self.held = None
                self.ended_sessions += 1
                await asyncio.to_thread(shutil.rmtree, held.files.path, ignore_errors=True)
                del held
                gc.collect()

    async def watch_leases(self) -> None:
        """Close what has not been heard of for longer than its lease, until cancelled."""
        look_s = min(1.0, self.lease_s / 10)
        while True:
            slept = time.monotonic()
            await asyncio.sleep(look_s)
            held = self.held
            if held is not None:
                # While this process was itself held up, it could hear nobody.
                held.heard += max(0.0, time.monotonic() - slept - 2 * look_s)
            if held is not None and held.silent_s > self.lease_s:
                with contextlib.suppress(BackendError):
                    await self.close(held, why=f"its lease of {self.lease_s:g} s ended")

    def _opened(self, held: Held) -> messages.Opened:
        return messages.Opened(
            held.name, self.name, held.backend.accumulates, self.lease_s, held.updates, held.gradients,
            self.max_body_bytes, type(held.backend).abandon is not Backend.abandon,
        )  # fmt: skip


class Busy(BackendBusy):
    """Somebody else has the session; `place` in line counts from 1, 0 is not in line."""

    def __init__(self, message: str, *, hint: str, place: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.place = place


class NoSuchSession(BackendError):
    """A session that has ended, or never was."""


def _must_speak_alike(request: messages.Open) -> None:
    if request.protocol != messages.PROTOCOL:
        raise BackendUnavailable(
            f"the client (rlctl {request.version[:40]}) speaks protocol {request.protocol}, the server (rlctl "
            f"{__version__}) {messages.PROTOCOL}.",
            hint="install the same rlctl on both.",
        )
