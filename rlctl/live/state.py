"""What is known of a run while it goes: written by the run, read by the thread that draws."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlctl.types import Rollout

Metrics = Mapping[str, Any]

STEP = "training/global_step"

Waits = Callable[[], Sequence[tuple[str, float]]]
"""What the driver waits for: names, and since when on the monotonic clock."""


@dataclass
class State:
    """`began` and `step_began` are on the monotonic clock. `changes` counts what a new picture is worth drawing for."""

    title: str = ""
    total: int = 0
    eval_freq: int = 0
    max_response_length: int | None = None
    history: list[Metrics] = field(default_factory=list)
    """Of the steps done, those before the run was resumed included."""
    rollout: Rollout | None = None
    """One of the last step's."""
    tests: list[float] = field(default_factory=list)
    """Seconds of the evaluations done."""
    evaluating: int | None = None
    """The step whose evaluation is going on."""
    waits: Waits = tuple
    began: float = field(default_factory=time.monotonic)
    step_began: float = field(default_factory=time.monotonic)
    changes: int = 0

    @property
    def done(self) -> int:
        return int(self.last[STEP]) if self.history else 0

    @property
    def last(self) -> Metrics:
        """The metrics of the last step; nothing before the first."""
        return self.history[-1] if self.history else {}

    def add(self, metrics: Metrics) -> None:
        """A step is done. One that is done again, after a rollback, replaces what came of it and after it."""
        kept = self.history
        while kept and kept[-1][STEP] >= metrics[STEP]:
            kept.pop()
        kept.append(metrics)
        self.evaluating = None
        self.step_began = time.monotonic()
        self.changes += 1

    def sampled(self, rollouts: Sequence[Rollout]) -> None:
        """Keep one of the step's rollouts, another place in the batch each step, so that none is preferred."""
        if rollouts:
            self.rollout = rollouts[(self.done + 1) * _STRIDE % len(rollouts)]

    def evaluated(self, metrics: Metrics) -> None:
        """An evaluation is done: from here the next step counts."""
        self.tests.append(metrics.get("timing_s/testing") or 0.0)
        self.evaluating = None
        self.step_began = time.monotonic()
        self.changes += 1


_STRIDE = 7919
"""A prime larger than most batches: the place walks through all groups and all samples of a group."""
