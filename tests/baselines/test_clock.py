"""Own seconds, from made-up clocks of threads: what was computed or slept stays, what waited for a processor goes."""

from __future__ import annotations

import asyncio
import time

import pytest

from rlctl.baselines.clock import Reading, net, own_seconds, read_clocks, sees_waiting
from rlctl.baselines.meter import Meter, ReferenceWork
from rlctl.types import JudgedPhase
from tests.fakes import FakeBackend, FakeSettings

START = Reading(0.0, {1: (0.0, 0.0), 2: (0.0, 0.0), 3: (0.0, 0.0)})
PYTHON = {1, 2}


@pytest.mark.parametrize(
    ("threads", "own"),
    [
        ({1: (0.0, 0.0), 2: (10.0, 0.0)}, 10.0),  # alone on the machine: all of the wall's seconds
        ({1: (0.0, 0.0), 2: (4.0, 6.0)}, 4.0),  # waited for a processor for 6 of 10
        ({1: (1.0, 2.0), 2: (4.0, 3.0)}, 5.0),  # two threads of Python in turns, both waited
        ({2: (4.0, 0.0)}, 10.0),  # slept for 6: that is its own
        ({2: (4.0, 2.0), 3: (4.0, 4.0)}, 4.0),  # slept 4 while its pool waited 4
        ({2: (4.0, 2.0), 3: (4.0, 1.0)}, 7.0),  # slept 4 while its pool waited 1
        ({2: (4.0, 2.0), 3: (4.0, 9.0)}, 4.0),  # its pool waited for longer than it slept
        ({2: (12.0, 5.0)}, 10.0),  # clocks that do not quite agree: never more than the wall's
        ({}, 10.0),  # a system that tells nothing
    ],
)
def test_own_seconds_by_hand(threads: dict[int, tuple[float, float]], own: float) -> None:
    assert net(START, Reading(10.0, threads), python=set(PYTHON)) == own


def test_a_sleep_is_counted_in_full() -> None:
    before = read_clocks()
    time.sleep(0.05)
    after = read_clocks()
    assert own_seconds(before, after) <= after.wall - before.wall
    assert own_seconds(before, after) >= 0.04


def test_linux_tells_what_threads_waited() -> None:
    assert sees_waiting()


class WithReference(FakeBackend):
    """Counts the repetitions that it is asked for."""

    async def reference_work(self, repetitions: int, *, like: JudgedPhase) -> bool:
        self.calls.append(f"{like} {repetitions}")
        await asyncio.sleep(0.01 * repetitions)
        return True


def test_repetitions_are_chosen_once_for_readings_of_a_twentieth_of_a_second() -> None:
    backend = WithReference(FakeSettings(), None)

    async def readings() -> list[float | None]:
        work = ReferenceWork(backend, like="sampling")
        return [await work.reading(), await work.reading()]

    per_repetition = asyncio.run(readings())
    chosen = int(backend.calls[-1].split()[1])
    # 0.01 and 0.02 s are short of 0.028, 0.04 s is enough; on a busy machine a sleep may last longer than asked for.
    assert chosen in (1, 2, 4)
    tried = [2**power for power in range(chosen.bit_length())]
    assert backend.calls == [f"sampling {number}" for number in [*tried, chosen, chosen]]
    assert all(seconds is not None and seconds > 0.009 for seconds in per_repetition)


def test_judged_phases_have_readings_before_and_after_and_others_none() -> None:
    async def step() -> Meter:
        meter = Meter(WithReference(FakeSettings(), None))
        watch = meter.stopwatch()
        for phase in ("gen", "reward", "old_log_prob", "update_actor", "update_weights"):
            async with watch(phase):
                await asyncio.sleep(0.002)
        return meter

    meter = asyncio.run(step())
    (clock,) = meter.steps()
    assert {phase: len(readings) for phase, readings in clock.reference.items()} == {"sampling": 2, "update": 2}
    assert set(clock.phases) == {"gen", "reward", "old_log_prob", "update_actor", "update_weights"}
    # The readings of 0.04 s and more are not in the phases of 0.002 s, and are told.
    assert meter.spent() > 4 * 0.04
    assert max(clock.phases.values()) < meter.spent() / 3


def test_a_backend_without_reference_work_is_timed_without() -> None:
    async def step() -> Meter:
        meter = Meter(FakeBackend(FakeSettings(), None))
        async with meter.stopwatch()("gen"):
            pass
        return meter

    (clock,) = asyncio.run(step()).steps()
    assert clock.reference == {}
    assert clock.phases["gen"] >= 0
