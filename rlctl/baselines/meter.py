"""The own seconds of a run's phases, and reference work right before and after those that are judged.

What the machine gives changes within a second, so a phase is compared with readings that touch it, not with one a step;
and it is not the same for every kind of work, so each phase has readings of its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rlctl.backends.base import AnyBackend
from rlctl.baselines.clock import own_seconds, read_clocks
from rlctl.perf import Stopwatch
from rlctl.types import JudgedPhase

WANTED_S = 0.03
"""Own seconds of a reading of the reference work: a third of a phase of a tiny model, nothing beside a large one."""
MOST = 2**16
JUDGED: Mapping[str, JudgedPhase] = {"gen": "sampling", "update_actor": "update"}
"""Phases with readings around them."""


@dataclass(frozen=True, slots=True)
class StepClock:
    """What a step cost: own and wall seconds by phase, and the readings, own seconds a repetition, around each judged
    one."""

    phases: dict[str, float] = field(default_factory=dict)
    wall: dict[str, float] = field(default_factory=dict)
    reference: dict[str, tuple[float, ...]] = field(default_factory=dict)


class Meter:
    """Times a run; see `outcome.Meter`."""

    def __init__(self, backend: AnyBackend) -> None:
        self._references = {phase: ReferenceWork(backend, like=phase) for phase in JUDGED.values()}
        self._watches: list[MeteredStopwatch] = []

    def stopwatch(self) -> MeteredStopwatch:
        self._watches.append(MeteredStopwatch(self._references))
        return self._watches[-1]

    def spent(self) -> float:
        return self._watches[-1].spent if self._watches else 0.0

    def steps(self) -> list[StepClock]:
        """One for each step that was begun."""
        return [StepClock(dict(watch.own), dict(watch.seconds), dict(watch.reference)) for watch in self._watches]


class ReferenceWork:
    """Readings of what a repetition of the backend's reference work takes; None where it has none."""

    def __init__(self, backend: AnyBackend, *, like: JudgedPhase) -> None:
        self._backend = backend
        self._like: JudgedPhase = like
        self._repetitions = 0
        self._exists = True

    async def reading(self) -> float | None:
        if not self._repetitions:
            await self._choose_repetitions()
        if not self._exists:
            return None
        return await self._seconds(self._repetitions) / self._repetitions

    async def _choose_repetitions(self) -> None:
        """So many that a reading takes WANTED_S; those on the way are its warm-up."""
        repetitions = 1
        while await self._seconds(repetitions) < WANTED_S * 0.7 and self._exists and repetitions < MOST:
            repetitions *= 2
        self._repetitions = repetitions

    async def _seconds(self, repetitions: int) -> float:
        before = read_clocks()
        self._exists = await self._backend.reference_work(repetitions, like=self._like)
        return own_seconds(before, read_clocks())


class MeteredStopwatch(Stopwatch):
    """A stopwatch that keeps own seconds beside those of the wall, and readings around the phases that are judged."""

    def __init__(self, references: Mapping[JudgedPhase, ReferenceWork]) -> None:
        super().__init__()
        self.own: dict[str, float] = {}
        self.reference: dict[str, tuple[float, ...]] = {}
        self.spent = 0.0
        """Seconds of the wall that the readings took."""
        self._references = references

    @asynccontextmanager
    async def __call__(self, phase: str) -> AsyncIterator[None]:
        await self._read(phase)
        before = read_clocks()
        async with super().__call__(phase):
            yield
        self.own[phase] = self.own.get(phase, 0.0) + own_seconds(before, read_clocks())
        await self._read(phase)

    async def _read(self, phase: str) -> None:
        name = JUDGED.get(phase)
        if name is None:
            return
        start = time.perf_counter()
        reading = await self._references[name].reading()
        self.spent += time.perf_counter() - start
        if reading is not None:
            self.reference[name] = (*self.reference.get(name, ()), reading)
