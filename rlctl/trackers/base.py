"""What a tracker is: something that takes a run's numbers, step by step.

A tracker is called from one thread of its own, never from two at once. Whatever it raises switches it off, with one
line; while it hangs, the run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

State = Literal["finished", "failed", "interrupted"]
"""How a run ended."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker is told of a run before its first step."""

    name: str
    folder: Path
    id: str
    """Made once for each run and tracker, kept in the run's folder, the same when the run goes on."""
    parameters: Mapping[str, object]
    """Every setting by its dotted name, with `rlctl_version`, `preset`, `variant` and, for each that is not a default,
    `origin/NAME`; nothing that is secret."""
    after: int
    """The step after which the run goes on, -1 where it begins: the tracker may hold later ones, which come again."""
    sent: int
    """The last step that the tracker was given in earlier lives of the run, -1 for none."""

    @property
    def resumed(self) -> bool:
        return self.sent >= 0


class Tracker(Protocol):
    """The contract. It is made with its settings: for a class of your own, those of its table in tracking.options."""

    def start(self, run: TrackedRun) -> int:
        """Begin the run or take it up again; gives the last step that is held already and will not be sent again.

        Where later steps than `run.after` can be taken back, take them back and give min(run.sent, run.after); where
        not, give run.sent, and each step is there once, as it was first computed.
        """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take a step's numbers, those of its evaluation among them. Steps come in order, each once."""

    def finish(self, state: State) -> None:
        """Send what is left, and say how the run ended."""
