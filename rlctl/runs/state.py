"""Whether a run is going, and how it ended: by its lock, by `ended.json`, and by what a killed process leaves."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlctl import runlock
from rlctl.runs.lines import Record
from rlctl.stopping import OUT_OF_TIME

Kind = Literal["running", "finished", "interrupted", "failed", "killed", "stopped"]


@dataclass(frozen=True, slots=True)
class State:
    """`kind` in a word, `why` in a sentence, "" where there is no more to say."""

    kind: Kind
    why: str = ""


def state_of(folder: Path, *, ended: Record, done: int, total: int | None) -> State:
    """What the folder says of its run. A run that left no word of its end was killed, or is of an earlier version."""
    held, holder = runlock.is_held(folder), ""
    if held:
        return State("running")
    if held is False:
        holder = runlock.left_by(folder)
    if holder:
        return State("killed", f"{holder}, is gone without having ended the run")
    if "exit_code" in ended:
        return _by_code(ended)
    if total is not None and done >= total:
        return State("finished")
    return State("stopped", "nothing says how it ended")


def _by_code(ended: Record) -> State:
    code, why = ended["exit_code"], str(ended.get("why") or "")
    if code == 0:
        return State("finished")
    if code == OUT_OF_TIME:
        return State("interrupted", "trainer.save_before left no time for another step")
    if isinstance(code, int) and 128 < code < 128 + signal.NSIG:
        return State("interrupted", why or f"by {_signal_name(code - 128)}")
    if why == "KeyboardInterrupt":
        return State("interrupted", "by SIGINT")
    return State("failed", why or f"exit code {code}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
