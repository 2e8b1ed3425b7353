"""A run's trackers at work: each in a thread of its own behind a bounded queue, so that none can hold up a run.

What was sent last is kept in `trackers/NAME.json` of the run's folder. A run that goes on sends each step once, and
whatever came after the last one sent, so that a tracker which failed or was added later has it all.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl import regular
from rlctl.cache import write_whole
from rlctl.errors import Interrupted
from rlctl.runfiles import STEP, RunFiles
from rlctl.trackers.base import State, TrackedRun, Tracker
from rlctl.trackers.parameters import numbers, parameters

if TYPE_CHECKING:  # the settings load pydantic
    from rlctl.settings.tracking import TrackingSettings

INTERRUPTED_TIMEOUT_S = 5.0
"""Seconds that trackers have after a signal: SLURM and Kubernetes kill 30 s after theirs, and a save comes first."""


class Following:
    """The trackers of a run, and the exit code that it ends with: 0 is finished, another one interrupted."""

    def __init__(self, workers: Sequence[Worker], *, note: Callable[[str], None]) -> None:
        self.workers, self.note = workers, note
        self.exit_code = 0
        self.state: State = "finished"

    def ended(self, exit_code: int) -> None:
        """The run has ended in good order, on its own or because it was asked to."""
        self.exit_code, self.state = exit_code, "interrupted" if exit_code else "finished"

    def broke(self, error: BaseException) -> None:
        interrupted = isinstance(error, Interrupted | KeyboardInterrupt)
        self.exit_code = getattr(error, "exit_code", 130 if interrupted else 1)
        self.state = "interrupted" if interrupted else "failed"

    @property
    def hangs(self) -> bool:
        return any(worker.thread.is_alive() for worker in self.workers)

    def write(self, record: Mapping[str, Any]) -> None:
        """Hand a step's record to every tracker; returns at once."""
        for worker in self.workers:
            worker.send(record)
        self._tell()

    def finish(self, *, timeout_s: float) -> None:
        """End every tracker, giving them `timeout_s` seconds together."""
        deadline = time.monotonic() + timeout_s
        for worker in self.workers:
            worker.end(self.state)
        for worker in self.workers:
            worker.wait(max(0.0, deadline - time.monotonic()), timeout_s=timeout_s)
        self._tell()

    def _tell(self) -> None:
        # Told here, by the run's own thread: who shows a run is not made for several.
        for worker in self.workers:
            while worker.notes:
                self.note(worker.notes.pop(0))


@contextlib.contextmanager
def following(
    trackers: Mapping[str, Tracker],
    files: RunFiles,
    *,
    settings: TrackingSettings,
    note: Callable[[str], None],
    leave: Callable[[int], None],
) -> Iterator[Following]:
    """Inside, every record that is written to metrics.jsonl goes to the trackers too.

    Whoever uses this calls `ended` when the run has ended in good order. `leave` is called with the exit code when a
    tracker hangs at the end: its package may wait for it again as the process ends.
    """
    workers = [Worker(name, tracker, files, queue_size=settings.queue_size) for name, tracker in trackers.items()]
    followed = Following(workers, note=note)
    files.listeners.append(followed.write)
    for worker in workers:
        worker.start()
    try:
        yield followed
    except BaseException as error:
        followed.broke(error)
        raise
    finally:
        files.listeners.remove(followed.write)
        limit = settings.finish_timeout_s
        followed.finish(timeout_s=min(limit, INTERRUPTED_TIMEOUT_S) if followed.state == "interrupted" else limit)
        if followed.hangs:
            leave(followed.exit_code)


class Worker:
    """One tracker, its thread, and the steps that wait for it."""

    def __init__(self, name: str, tracker: Tracker, files: RunFiles, *, queue_size: int) -> None:
        self.name, self.tracker, self.files = name, tracker, files
        self.kept = Kept(files.folder / "trackers" / f"{re.sub(r'[^A-Za-z0-9_.]', '-', name)}.json")
        self.waiting: queue.Queue[Mapping[str, Any]] = queue.Queue(queue_size)
        self.history = list(files.records)
        self.notes: list[str] = []
        self.dropped = 0
        self.failed = self.finishing = False
        self.ending: State | None = None
        self.wake = threading.Event()
        # A daemon: a tracker that hangs must not keep the process from ending.
        self.thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def send(self, record: Mapping[str, Any]) -> None:
        if self.failed:
            return
        try:
            self.waiting.put_nowait(record)
        except queue.Full:
            if not self.dropped:
                self.notes.append(f"tracker {self.name} does not keep up: steps are dropped; metrics.jsonl has them")
            self.dropped += 1
        self.wake.set()

    def end(self, state: State) -> None:
        self.ending = state
        self.wake.set()

    def wait(self, seconds: float, *, timeout_s: float) -> None:
        self.thread.join(seconds)
        left = self.waiting.qsize()
        if self.thread.is_alive():
            lost = f"{left} steps were not sent" if left else "its last words may be lost"
            self.notes.append(f"tracker {self.name} did not finish within {timeout_s:g} s: {lost}")
        if self.dropped:
            self.notes.append(f"tracker {self.name}: {self.dropped} steps were dropped; metrics.jsonl has them")

    def _work(self) -> None:
        try:
            self._follow()
        # The boundary to somebody else's code, in a thread that nobody looks at: told once, and over.
        except BaseException as error:
            self.failed = True
            what = "failed as it was ended" if self.finishing else "is switched off, and the run goes on"
            self.notes.append(f"tracker {self.name} {what}: {_reason(error)}")

    def _follow(self) -> None:
        last = self.tracker.start(self._run())
        if not isinstance(last, int):  # somebody else's code: most likely it returns nothing
            raise TypeError(f"start gave {last!r}, not the last step that is held")
        self.kept.write(last if last > self.kept.last_step else self.kept.last_step)
        for record in self.history:
            last = self._log(record, last)
        self.history.clear()
        while (waiting := self._next()) is not None:
            last = self._log(waiting, last)
        self.finishing = True
        self.tracker.finish(self.ending or "failed")

    def _run(self) -> TrackedRun:
        after = self.history[-1][STEP] if self.history else -1
        # Before the tracker knows the run: when this process is killed now, the next one asks for the same run.
        self.kept.write(self.kept.last_step)
        return TrackedRun(
            name=self.files.folder.name,
            folder=self.files.folder,
            id=self.kept.id,
            parameters=parameters(self.files.config),
            after=after,
            sent=self.kept.last_step,
        )

    def _log(self, record: Mapping[str, Any], last: int) -> int:
        step = int(record[STEP])
        if step <= last:
            return last
        self.tracker.log(step, numbers(record))
        self.kept.write(step)
        return step

    def _next(self) -> Mapping[str, Any] | None:
        """The next record; None when the run has ended and none is left."""
        while True:
            try:
                return self.waiting.get_nowait()
            except queue.Empty:
                if self.ending is not None and self.waiting.empty():
                    return None
                self.wake.wait()
                self.wake.clear()


class Kept:
    """What is remembered of a tracker between the lives of a run: its id of the run, and the last step it was given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        record: Any = None
        with contextlib.suppress(OSError, ValueError):  # not there, or cut short: a run that this tracker begins
            record = json.loads(regular.read_bytes(path))
        known = record if isinstance(record, dict) and isinstance(record.get("last_step"), int) else {}
        self.id = str(known.get("id") or secrets.token_hex(6))
        self.last_step: int = known.get("last_step", -1)

    def write(self, last_step: int) -> None:
        """Raises OSError."""
        self.last_step = last_step
        write_whole(self.path, json.dumps({"id": self.id, "last_step": last_step}).encode() + b"\n")


def _reason(error: BaseException) -> str:
    try:
        # What SQLAlchemy says ends with the whole statement.
        text = " ".join(str(error).partition("\n[SQL:")[0].split())
    except Exception:  # whoever raises may also fail to say why
        text = ""
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
