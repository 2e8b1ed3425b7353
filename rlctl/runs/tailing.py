"""`rlctl runs tail`: the last steps of a run, and the next ones as they come, until the run ends.

A run that is resumed cuts lines off its metrics and writes them again; what was printed and has changed is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from rlctl import regular, runlock
from rlctl.display import COLUMNS, core_scores
from rlctl.runfiles import STEP
from rlctl.runs.lines import Record, number, parsed
from rlctl.runs.printable import printable
from rlctl.runs.reading import read_run

POLL_S = 0.3
"""Seconds between two looks at the file: steps take longer."""


@dataclass
class Follower:
    """Reads what a growing file of metrics has gained since the last look."""

    path: Path
    _end: int = 0
    _last: bytes = b""
    """The last line that was read, to see that it still stands where it stood."""
    _lines: dict[int, bytes] = field(default_factory=dict)

    def news(self) -> tuple[int | None, list[Record]]:
        """(the step after which lines were cut off, None where none were; the new records).

        A cut that was written over again shows by what stands in the place of the last line read.
        """
        try:
            with regular.open_rb(self.path) as stream:
                cut = not self._stands(stream)
                stream.seek(0 if cut else self._end)
                content = stream.read()
        except OSError:  # not there yet, or not readable just now
            return None, []
        return self._after_cut(content) if cut else (None, self._take(content))

    def _stands(self, stream: BinaryIO) -> bool:
        stream.seek(self._end - len(self._last))
        return stream.read(len(self._last)) == self._last

    def _after_cut(self, content: bytes) -> tuple[int | None, list[Record]]:
        before, self._lines, self._end, self._last = self._lines, {}, 0, b""
        records = self._take(content)
        same = [step for step, line in self._lines.items() if before.get(step) == line]
        kept = max(same, default=-1)
        lost = any(step > kept for step in before)
        return (kept if lost else None), [record for record in records if record[STEP] > kept]

    def _take(self, content: bytes) -> list[Record]:
        whole = content[: content.rfind(b"\n") + 1]
        records = []
        for line in (part + b"\n" for part in whole.split(b"\n")[:-1]):
            self._last = line
            record = parsed(line)
            if record is not None and isinstance(record.get(STEP), int):
                self._lines[record[STEP]] = line
                records.append(record)
        self._end += len(whole)
        return records


@dataclass(frozen=True, slots=True)
class Told:
    """A line to print; `note` says that it is not of the run's result."""

    text: str
    note: bool = False


def follow(
    folder: Path, *, last: int, wait_s: float, lines: Callable[[Record], list[str]], forever: bool
) -> Iterator[Told]:
    """The lines of the last steps and, with `forever`, of each further one until the run ends.

    One that ended before its last step is waited for for `wait_s` seconds, in case it goes on.
    """
    follower = Follower(folder / "metrics.jsonl")
    _, records = follower.news()
    yield from (Told(line) for record in records[max(0, len(records) - last) :] for line in lines(record))
    since = time.monotonic()
    while forever:
        if not folder.is_dir():
            yield Told(f"{printable(folder.name, one_line=True)}: its folder is gone", note=True)
            return
        run = read_run(folder) if not runlock.is_held(folder) else None
        cut, records = follower.news()
        if cut is not None:
            yield Told(f"the run was resumed: steps after {max(cut, 0)} come again", note=True)
        yield from (Told(line) for record in records for line in lines(record))
        if run is None or records:
            since = time.monotonic()
        elif run.state.kind in ("finished", "failed") or time.monotonic() - since >= wait_s:
            why = f": {printable(run.state.why, one_line=True)}" if run.state.why else ""
            yield Told(f"{run.name} {run.state.kind} after step {run.done}{why}", note=True)
            return
        time.sleep(POLL_S)


def words(record: Record, *, total: int | None) -> list[str]:
    """A step as `rlctl train` prints it, and its evaluation."""
    figures = {name: number(value) for name, value in record.items()}
    step, found = int(record[STEP]), []
    if step:
        of = "" if total is None else f"/{total}"
        parts = [f"step {step}{of}", *(f"{column.heading} {column.text(figures)}" for column in COLUMNS[1:-1])]
        found.append("  ".join([*parts, f"{COLUMNS[-1].text(figures)} s"]))
    scores = core_scores(figures)
    return [*found, *(f"step {step}: {printable(name, one_line=True)} {value:.3f}" for name, value in scores.items())]


def chosen_words(record: Record, names: Sequence[str]) -> list[str]:
    """Only these metrics of a step."""
    values = ((name, number(record.get(name))) for name in names)
    shown = [f"{printable(name, one_line=True)} {'n/a' if v is None else format(v, '.6g')}" for name, v in values]
    return ["  ".join([f"step {record[STEP]}", *shown])]
