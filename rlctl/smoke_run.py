"""One smoke run, or several in processes of their own, and what is kept of each.

Several runs are not several rounds of one process: where its memory lies and which cores its threads got stays the same
for as long as a process lives, and is part of what differs between today's run and next week's.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from rlctl import display, verdict
from rlctl.baselines.file import record_from
from rlctl.baselines.meter import Meter
from rlctl.baselines.record import Record, record_of
from rlctl.config import Loaded
from rlctl.foreign_output import to_stderr
from rlctl.live.progress import duration
from rlctl.loop import backend_for, run
from rlctl.prepare import prepare
from rlctl.report import Metrics
from rlctl.runfiles import strict
from rlctl.settings_reads import Reads, unread, worth_telling
from rlctl.types import BackendInfo
from rlctl.verdict import Check

LAST_WORDS_S = 5.0
"""How long the rest of what a run said is waited for: a process that it has left behind may hold its stderr open."""


@dataclass(frozen=True, slots=True)
class SmokeRun:
    """What a smoke run showed; `exit_code` is not 0 where it was ended early."""

    metrics: Sequence[Metrics]
    checks: Sequence[Check]
    info: BackendInfo
    record: Record
    unread: Sequence[str] = ()
    """Lines on settings that nothing read."""
    exit_code: int = 0

    def save(self, path: Path) -> None:
        tree = {
            "metrics": [strict(step) for step in self.metrics],
            "checks": [asdict(check) for check in self.checks],
            "info": asdict(self.info),
            "record": self.record.tree(),
            "unread": list(self.unread),
            "exit_code": self.exit_code,
        }
        path.write_text(json.dumps(tree, allow_nan=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> SmokeRun:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            tree["metrics"],
            [Check(**check) for check in tree["checks"]],
            BackendInfo(**tree["info"]),
            record_from(path, tree["record"]),
            tree["unread"],
            tree["exit_code"],
        )


def run_here(loaded: Loaded, *, measured: bool) -> SmokeRun:
    """In this process; `measured` beside reference work, which takes a third more time. Raises RlctlError."""
    reads = Reads()
    prepared = prepare(reads.watch(loaded.settings))
    with to_stderr():
        backend = backend_for(prepared)
        meter = Meter(backend) if measured else None
        outcome = asyncio.run(
            run(
                prepared,
                backend=backend,
                reporter=display.NotesReporter(),
                files=None,
                keep_reports=True,
                evaluate=False,
                meter=meter,
            )
        )
    checks = verdict.judge(outcome.reports, outcome.info, wanted_steps=prepared.geometry.steps)
    record = record_of(prepared, outcome, meter.steps() if meter else [])
    lines = [setting.line() for setting in worth_telling(unread(loaded.settings, reads, loaded.origins))]
    # A run that was ended early did not come to read all.
    told = [] if outcome.exit_code else lines
    return SmokeRun(outcome.metrics, checks, outcome.info, record, told, outcome.exit_code)


def checks_of_all(runs: Sequence[SmokeRun]) -> list[Check]:
    """The checks of the first run, but where one does not hold in another, that one's."""
    columns = zip(*(run.checks for run in runs), strict=True)
    return [next((check for check in column if not check.holds), column[0]) for column in columns]


def run_apart(arguments: Sequence[str], *, runs: int) -> Iterator[SmokeRun | int]:
    """`rlctl smoke ARGUMENTS` so many times, each in a process of its own; the exit code of one that showed nothing."""
    said = set[str]()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rlctl-smoke-") as folder:
        for number in range(1, runs + 1):
            file = Path(folder) / f"{number}.json"
            display.tell(f"run {number} of {runs}{_left(time.monotonic() - begun, done=number - 1, of=runs)}")
            code = _wait([sys.executable, "-m", "rlctl", "smoke", *arguments, "--record", str(file)], said)
            if not file.exists():
                yield code or 1
                return
            yield SmokeRun.load(file)


def _left(seconds: float, *, done: int, of: int) -> str:
    """After `done` runs, which took so many seconds."""
    return f", about {duration(seconds / done * (of - done))} left" if done else ""


def _wait(command: Sequence[str], said: set[str]) -> int:
    """Run it to its end; what asks this process to end asks the run, which ends in order.

    Of what it says on stderr, lines that runs before it `said` are left out: twenty would begin alike.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    teller = threading.Thread(target=_tell_what_is_new, args=(process.stderr, said), daemon=True)
    teller.start()
    with _passed_on(process):
        code = process.wait()
    teller.join(LAST_WORDS_S)
    # Killed by a signal, as a shell tells it.
    return 128 - code if code < 0 else code


def _tell_what_is_new(stderr: IO[bytes], said: set[str]) -> None:
    own = []
    with stderr:
        for line in stderr:
            own.append(line.decode(errors="backslashreplace").rstrip("\n"))
            if own[-1] not in said:
                display.tell(own[-1])
    said.update(own)


@contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    def pass_on(number: int, frame: object) -> None:
        # Ctrl-C of a terminal has reached the run already.
        if number != signal.SIGINT:
            process.send_signal(number)

    before: Mapping[int, Any] = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
