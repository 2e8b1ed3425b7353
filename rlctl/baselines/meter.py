"""The own seconds of a run's phases, and reference work right before and after those that are judged.

What the machine gives changes within a second, so a phase is compared with readings that touch it, not with one a step.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rlctl.backends.base import AnyBackend
from rlctl.baselines.clock import own_seconds, read_clocks
from rlctl.perf import Stopwatch

WANTED_S = 0.06
"""Own seconds of a reading of the reference work: a third of a phase of a tiny model, nothing beside a large one."""
MOST = 2**16
JUDGED = {"gen": "sampling", "update_actor": "update"}
"""Phases with readings around them."""
MOMENTARY = frozenset({"update_weights"})
"""Phases after which a reading is as good as before."""


@dataclass(frozen=True, slots=True)
class StepClock:
    """What a step cost: own seconds by phase, and the readings, own seconds a repetition, around each judged one."""

    phases: dict[str, float] = field(default_factory=dict)
    reference: dict[str, tuple[float, ...]] = field(default_factory=dict)


class Meter:
    """Times a run; see `outcome.Meter`."""

    def __init__(self, backend: AnyBackend) -> None:
        self._reference = ReferenceWork(backend)
        self._watches: list[MeteredStopwatch] = []

    def stopwatch(self) -> MeteredStopwatch:
        self._watches.append(MeteredStopwatch(self._reference))
        return self._watches[-1]

    def spent(self) -> float:
        return self._watches[-1].spent if self._watches else 0.0

    def steps(self) -> list[StepClock]:
        """One for each step that was begun."""
        return [StepClock(dict(watch.own), dict(watch.reference)) for watch in self._watches]


class ReferenceWork:
    """Readings of what a repetition of the backend's reference work takes; None where it has none."""

    def __init__(self, backend: AnyBackend) -> None:
        self._backend = backend
        self._repetitions = 0
        self._exists = True
        self._last: float | None = None

    async def reading(self) -> float | None:
        """The last one, if nothing has happened since."""
        if self._last is None and self._exists:
            if not self._repetitions:
                await self._choose_repetitions()
            seconds = await self._seconds(self._repetitions)
            self._last = seconds / self._repetitions if self._exists else None
        return self._last

    def outdated(self) -> None:
        self._last = None

    async def _choose_repetitions(self) -> None:
        """So many that a reading takes WANTED_S; those on the way are its warm-up."""
        repetitions = 1
        while await self._seconds(repetitions) < WANTED_S * 0.7 and self._exists and repetitions < MOST:
            repetitions *= 2
        self._repetitions = repetitions

    async def _seconds(self, repetitions: int) -> float:
        before = read_clocks()
        self._exists = await self._backend.reference_work(repetitions)
        return own_seconds(before, read_clocks())


class MeteredStopwatch(Stopwatch):
    """A stopwatch that keeps own seconds beside those of the wall, and readings around the phases that are judged."""

    def __init__(self, reference: ReferenceWork) -> None:
        super().__init__()
        self.own: dict[str, float] = {}
        self.reference: dict[str, tuple[float, ...]] = {}
        self.spent = 0.0
        """Seconds of the wall that the readings took."""
        self._reference = reference

    @asynccontextmanager
    async def __call__(self, phase: str) -> AsyncIterator[None]:
        await self._read(phase)
        before = read_clocks()
        async with super().__call__(phase):
            yield
        self.own[phase] = self.own.get(phase, 0.0) + own_seconds(before, read_clocks())
        if phase not in MOMENTARY:
            self._reference.outdated()
        await self._read(phase)

    async def _read(self, phase: str) -> None:
        if phase not in JUDGED:
            return
        start = time.perf_counter()
        reading = await self._reference.reading()
        self.spent += time.perf_counter() - start
        if reading is not None:
            name = JUDGED[phase]
            self.reference[name] = (*self.reference.get(name, ()), reading)
