"""What a phase costs in time, and what stood beside it: the figures of a step that `judging.py` compares.

Own seconds (`clock.py`) a unit of work, FLOPs of the update and tokens elsewhere, over the seconds of the reference
work beside it (`engine/reference.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import get_args

from rlctl.baselines.estimating import Belief
from rlctl.baselines.record import Step
from rlctl.types import JudgedPhase

KINDS: tuple[JudgedPhase, ...] = get_args(JudgedPhase)
"""Of reference work."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What is timed, in words, and per how much work. What is known of its noise was measured (docs/smoke.md).

    `beside` is by how much it slows down with each kind of reference work, in logarithms. `cold` is how much slower it
    is believed to be where its threads wait for a processor for e times as long as without: they find their caches
    cold. `lasting` (see `estimating.py`) is of a machine where a phase waits for as long as it works; where nothing
    waits there is no neighbour that could last.
    """

    words: str
    work: Callable[[Step], float | None]
    beside: Mapping[JudgedPhase, float]
    cold: float
    lasting: float

    def beliefs(self, *, paired: bool) -> tuple[Belief, ...]:
        """Of `circumstances`, in the same order."""
        return (*(BESIDE_BELIEFS if paired else ()), Belief(self.cold, COLD_SPREAD))


BESIDE_BELIEFS = (Belief(0.0, 0.08), Belief(0.0, 0.1))
"""How far a phase slows down by more or less than all of `beside` does, and how far its shares are off."""
COLD_SPREAD = 0.04
"""Standard deviation of what is believed of `cold`: beside neighbours of four kinds it was 0.02 to 0.07."""
PHASES: Mapping[str, Phase] = {
    "update": Phase(
        "update (MFU)", lambda step: step.flops_update, {"sampling": 0.2, "update": 0.75}, cold=0.04, lasting=0.08
    ),
    "sampling": Phase(
        "sampling (sampled tok/s)", lambda step: step.sampled_tokens, {"sampling": 0.45, "update": 0.3}, cold=0.045,
        lasting=0.3,
    ),
    "step": Phase(
        "whole step (tok/s)", lambda step: step.prompt_tokens + step.sampled_tokens,
        {"sampling": 0.3, "update": 0.5}, cold=0.045, lasting=0.12,
    ),
}  # fmt: skip


def cost(step: Step, *, name: str, phase: Phase, paired: bool) -> float | None:
    """Logarithm of the own seconds a unit of work, over the reference work's beside it where the runs are `paired`.

    None where the step did none. What a neighbour takes from a phase lies between what it takes from a small model's
    update and from steps of a few rows, for an update as for sampling (docs/smoke.md has the figures).
    """
    seconds, units = step.seconds.get(name, 0.0), phase.work(step)
    if not units or seconds <= 0:
        return None
    beside = sum(by * reading(step, kind) for kind, by in phase.beside.items()) if paired else 0.0
    return math.log(seconds / units) - beside


def circumstances(step: Step, *, name: str, paired: bool) -> tuple[float, ...]:
    """What the reference work took, how much more of it the update's kind, and what the phase waited: logarithms.

    The kinds apart, since which of them a phase is like differs from neighbour to neighbour.
    """
    waiting = math.log1p(waited(step, name))
    if not paired:
        return (waiting,)
    sampling, update = (reading(step, kind) for kind in KINDS)
    return ((sampling + update) / 2, update - sampling, waiting)


def reading(step: Step, kind: JudgedPhase) -> float:
    """Logarithm of what that kind of reference work took in this step."""
    return fmean(map(math.log, step.reference[kind]))


def waited(step: Step, phase: str) -> float:
    """Seconds that the phase waited for a processor, a second of its own."""
    own, wall = step.seconds.get(phase, 0.0), step.wall.get(phase, 0.0)
    return max(0.0, wall / own - 1) if own > 0 else 0.0
