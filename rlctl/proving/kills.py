"""Kill a run at random moments, resume it each time, and see that it ends as the run that was not killed.

The kills are spread over the steps, and over what a run does: starting, computing a step, writing a checkpoint. The
moment within each is drawn from the seed.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlctl.errors import BackendError
from rlctl.proving import lives
from rlctl.proving.lives import Life

MOMENTS = ("starting", "in a step", "saving")
LONGEST_S = 3600.0
"""After so long without an end, a life hangs."""


@dataclass
class Killed:
    """A run that was killed: how often, where, and how long it all took."""

    folder: Path
    moments: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """How to begin a life of a run: `arguments` without its name; `forked` as lives.py says."""

    arguments: Sequence[str]
    parent: Path
    steps: int
    forked: bool

    def begin(self, name: str) -> Life:
        arguments = [*self.arguments, "--name", name]
        return lives.begin(arguments, log=self.log(name), forked=self.forked)

    def log(self, name: str) -> Path:
        return self.parent / f"{name}.log"

    def straight(self, name: str) -> float:
        """Run without a kill; the seconds it took. Raises BackendError when it fails."""
        start = time.monotonic()
        self.to_the_end(self.begin(name), name)
        return time.monotonic() - start

    def to_the_end(self, life: Life, name: str) -> None:
        lives.until(life, seconds=LONGEST_S)
        if life.ended() is None:
            life.kill()
        if life.ended() != 0:
            tail = "\n".join(self.log(name).read_text(errors="replace").splitlines()[-12:])
            raise BackendError(f"the run {name} ended with {life.ended()}; its last lines were:\n{tail}")


def kill_again_and_again(
    trial: Trial, *, kills: int, seed: int, straight_s: float, tell: Callable[[str], None]
) -> list[Killed]:
    """Runs that were killed `kills` times in all and came to their end; a further one where one ended too soon."""
    rng, made = random.Random(seed), 0
    runs: list[Killed] = []
    for number in itertools.count():
        if made >= kills:
            return runs
        run = _killed_run(trial, f"killed{number}", kills - made, rng, straight_s=straight_s, tell=tell)
        made += len(run.moments)
        runs.append(run)
    raise AssertionError("count() has no end")


def _killed_run(
    trial: Trial, name: str, kills: int, rng: random.Random, *, straight_s: float, tell: Callable[[str], None]
) -> Killed:
    start, run = time.monotonic(), Killed(trial.parent / name)
    for number in range(kills):
        # Spread over the steps, so that each life gets a little further, and none to the end.
        step = 1 + number * trial.steps // kills
        moment = MOMENTS[number % len(MOMENTS)]
        life = trial.begin(name)
        if not _killed_in(life, trial, run.folder, moment, step, rng, straight_s):
            break
        run.moments.append(_where(run.folder, moment))
        tell(f"kill {len(run.moments)}: {run.moments[-1]}, {_num_lines(run.folder)} lines of metrics written")
    else:
        life = trial.begin(name)
    trial.to_the_end(life, name)
    run.seconds = time.monotonic() - start
    return run


def _killed_in(
    life: Life, trial: Trial, folder: Path, moment: str, step: int, rng: random.Random, straight_s: float
) -> bool:
    """Wait for the moment and kill; false when the life ended first."""
    begun = _num_begun(trial.log(folder.name))
    if moment != "starting":
        reached = _until(life, lambda: _num_begun(trial.log(folder.name)) > begun)
        reached = reached and _until(life, lambda: _num_lines(folder) >= step)
        if moment == "saving":
            reached = reached and _until(life, lambda: _is_saving(folder))
        if not reached:
            return False
    longest = {"starting": 0.3 * straight_s, "in a step": 1.5 * straight_s / trial.steps, "saving": 0.03}[moment]
    if not lives.until(life, seconds=rng.uniform(0, longest)):
        return False
    life.kill()
    return True


def _until(life: Life, condition: Callable[[], bool]) -> bool:
    while not condition():
        if life.ended() is not None:
            return False
        time.sleep(lives.POLL_S)
    return True


def _is_saving(folder: Path) -> bool:
    return any((folder / "checkpoints").glob(".step_*.partial"))


def _where(folder: Path, moment: str) -> str:
    """What a killed run was doing, by what it left: the aim is not always met."""
    return "saving" if _is_saving(folder) else "in a step" if moment == "saving" else moment


def _num_begun(log: Path) -> int:
    """How many lives have begun their steps."""
    return log.read_text(errors="replace").count(f"\n{lives.BEGUN}") if log.exists() else 0


def _num_lines(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0
