"""Kill a run at random moments, resume it each time, and see that it ends as the run that was not killed.

The kills are spread over the steps, and over what a run does: starting, computing a step, writing a checkpoint. The
moment within each is drawn from the seed.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlctl.errors import BackendError
from rlctl.proving import lives
from rlctl.proving.lives import Life
from rlctl.runfiles import STEP

MOMENTS = ("starting", "in a step", "saving")
LONGEST_S = 3600.0
"""After so long without an end, a life hangs."""


SAVING_S = 0.05
"""How long the write of a small checkpoint takes."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a run took without a kill: in all, until its first step and after its last, and for one step."""

    whole_s: float
    start_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Aim:
    """When to kill: at one of MOMENTS, once the steps before `step` are done."""

    moment: str
    step: int


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

    def straight(self, name: str) -> Pace:
        """Run without a kill, and say how long things took. Raises BackendError when it fails."""
        start = time.monotonic()
        self.to_the_end(self.begin(name), name)
        whole_s = time.monotonic() - start
        records = map(json.loads, (self.parent / name / "metrics.jsonl").read_text().splitlines())
        steps = [record["timing_s/step"] for record in records if record[STEP] > 0]
        return Pace(whole_s, max(0.2, whole_s - sum(steps)), sum(steps) / max(1, len(steps)))

    def to_the_end(self, life: Life, name: str) -> None:
        lives.until(life, seconds=LONGEST_S)
        if life.ended() is None:
            life.kill()
        if life.ended() != 0:
            tail = "\n".join(self.log(name).read_text(errors="replace").splitlines()[-12:])
            raise BackendError(f"the run {name} ended with {life.ended()}; its last lines were:\n{tail}")


def kill_again_and_again(
    trial: Trial, *, kills: int, seed: int, pace: Pace, tell: Callable[[str], None]
) -> list[Killed]:
    """Runs that were killed `kills` times in all and came to their end; a further one where one ended too soon."""
    rng, made = random.Random(seed), 0
    runs: list[Killed] = []
    while made < kills:
        run = _killed_run(trial, f"killed{len(runs)}", kills - made, rng, pace=pace, tell=tell)
        made += len(run.moments)
        runs.append(run)
    return runs


def _killed_run(
    trial: Trial, name: str, kills: int, rng: random.Random, *, pace: Pace, tell: Callable[[str], None]
) -> Killed:
    start, run = time.monotonic(), Killed(trial.parent / name)
    for number in range(kills):
        life = trial.begin(name)
        # Spread over the steps, so that each life gets a little further, and none to the end.
        aim = Aim(MOMENTS[number % len(MOMENTS)], 1 + number * trial.steps // kills)
        moment = _killed_at(life, trial, run.folder, aim, rng, pace)
        if moment is None:
            break
        run.moments.append(moment)
        tell(f"kill {len(run.moments)}: {moment}, with {_num_lines(run.folder)} lines of metrics written")
    else:
        life = trial.begin(name)
    trial.to_the_end(life, name)
    run.seconds = time.monotonic() - start
    return run


def _killed_at(life: Life, trial: Trial, folder: Path, aim: Aim, rng: random.Random, pace: Pace) -> str | None:
    """Wait for the moment aimed at and kill; what the run was doing, None when it ended before."""
    log = trial.log(folder.name)
    begun = _num_begun(log)
    if aim.moment != "starting":
        reached = _until(life, lambda: _num_begun(log) > begun)
        reached = reached and _until(life, lambda: _num_lines(folder) >= aim.step)
        if aim.moment == "saving":
            reached = reached and _until(life, lambda: _is_saving(folder))
        if not reached:
            return None
    # The pace is that of another life: on a busy machine this one may be faster, and must not get away.
    longest, over = {
        "starting": (pace.start_s, lambda: _num_begun(log) > begun),
        "in a step": (pace.step_s, lambda: _num_lines(folder) > aim.step),
        "saving": (SAVING_S, lambda: not _is_saving(folder)),
    }[aim.moment]
    if not lives.until(life, seconds=rng.uniform(0, longest), or_when=over):
        return None
    life.kill()
    if _is_saving(folder):
        return "saving"
    return "in a step" if _num_begun(log) > begun else "starting"


def _until(life: Life, condition: Callable[[], bool]) -> bool:
    while not condition():
        if life.ended() is not None:
            return False
        time.sleep(lives.POLL_S)
    return True


def _is_saving(folder: Path) -> bool:
    return any((folder / "checkpoints").glob(".step_*.partial"))


def _num_begun(log: Path) -> int:
    """How many lives have begun their steps."""
    return log.read_text(errors="replace").count(f"\n{lives.BEGUN}") if log.exists() else 0


def _num_lines(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0
