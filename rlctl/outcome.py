"""What a run did, and who shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlctl.perf import Stopwatch
from rlctl.report import Metrics
from rlctl.runfiles import STEP
from rlctl.step_report import StepReport
from rlctl.stopping import OUT_OF_TIME
from rlctl.types import BackendInfo, Rollout

if TYPE_CHECKING:  # the settings load pydantic, and only the type is needed here
    from rlctl.prepare import Prepared


class Reporter:
    """Whoever shows a run: a terminal, plain lines. This one shows nothing; others tell only what they care for."""

    def follow(self, waits: Callable[[], Sequence[tuple[str, float]]]) -> None:
        """What may be asked at any time, from any thread: what is waited for, and since when (monotonic clock)."""

    def started(self, prepared: Prepared, info: BackendInfo) -> None:
        """The backend is there, and the first step comes next."""

    def sampled(self, rollouts: Sequence[Rollout]) -> None:
        """The rollouts of the step whose metrics come next."""

    def step(self, metrics: Metrics) -> None:
        """A step is done."""

    def evaluating(self, step: int) -> None:
        """The evaluation after that step begins."""

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """The evaluation after that step is done."""

    def note(self, text: str) -> None:
        """What a person should know beside the numbers; may come from any thread."""

    def abort(self) -> None:
        """Leave the terminal as it was: the process is about to end."""


class Meter(Protocol):
    """Whoever times the phases of a run more closely; `stopwatch` is asked for at the beginning of each step."""

    def stopwatch(self) -> Stopwatch: ...
    def spent(self) -> float:
        """Seconds of the last step that were the meter's, and not the step's."""


@dataclass
class Outcome:
    """What a run did, the steps before it was resumed included. `interrupted` is the signal that ended it early,
    `out_of_time` says that a limit did."""

    info: BackendInfo
    reports: list[StepReport] = field(default_factory=list)
    metrics: list[Metrics] = field(default_factory=list)
    evaluations: list[tuple[int, Metrics]] = field(default_factory=list)
    checkpoint: Path | None = None
    interrupted: int | None = None
    out_of_time: bool = False

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return 128 + self.interrupted
        return OUT_OF_TIME if self.out_of_time else 0

    def remember(self, records: Sequence[dict[str, Any]]) -> None:
        """Take in the metrics of the steps that were done before."""
        self.metrics = [record for record in records if record[STEP] > 0]
        for record in records:
            evaluated = {key: value for key, value in record.items() if key.startswith(("val-", "timing_s/testing"))}
            if evaluated:
                self.evaluations.append((record[STEP], evaluated))
