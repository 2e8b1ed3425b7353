"""How far a run is, how long it will still take, and what it is doing now."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

from rich.text import Text

from rlctl.live.glyphs import Glyphs
from rlctl.live.lines import DIM, cut, line
from rlctl.live.sparkline import finite
from rlctl.live.state import Metrics, State

RECENT = 10
"""Steps whose median says how long a step takes: the first ones compile, and one may have waited for a disk."""


def progress_lines(state: State, width: int, height: int, *, glyphs: Glyphs, now: float) -> list[Text]:
    """A bar with the steps, the time so far and the time left; below it what is going on."""
    share = state.done / state.total if state.total else 0.0
    count = f"step {state.done}/{state.total}" if state.total else "starting"
    times = _times(state, now=now)
    if len(count) + len(times) + 7 > width:
        times = times.rpartition(", ")[2]
    if len(count) + len(times) + 7 > width:
        times = ""
    room = width - len(count) - len(times) - 11
    bar = _bar(share, min(room, 60), glyphs)
    first = line((count, "bold"), *bar, f" {100 * share:.0f} %", f"  {times}" if times else "")
    lines = [cut(first, width, ellipsis=glyphs.cut)]
    doing = activity(state, now=now)
    return [*lines, cut(line((doing, DIM)), width, ellipsis=glyphs.cut)][:height]


def _times(state: State, *, now: float) -> str:
    so_far, left = duration(now - state.began), seconds_left(state, now=now)
    if state.total and state.done >= state.total and state.evaluating is None:
        return f"done in {so_far}"
    return f"{so_far} so far, " + ("time left n/a" if left is None else f"about {duration(left)} left")


def _bar(share: float, width: int, glyphs: Glyphs) -> list[tuple[str, str]]:
    """Nothing where it would be too short to say anything."""
    if width < 8:
        return []
    done = int(share * width)
    return [(" ", ""), (glyphs.done * done, "green"), (glyphs.left * (width - done), DIM)]


def activity(state: State, *, now: float) -> str:
    """What the run waits for at this moment, and for how long it has."""
    what = _what(state)
    waits = state.waits()
    if not waits:
        return what
    name, since = waits[-1]
    verb = _VERB.search(name)
    words = PHASE_OF.get(verb.group(1), "") if verb else ""
    detail = _VERB.sub("", name)
    return f"{what}: {words}{', ' if words else ''}{duration(now - since)} ({detail})"


def _what(state: State) -> str:
    if state.evaluating is not None:
        return f"evaluation of step {state.evaluating}" if state.evaluating else "evaluation before step 1"
    if not state.total:
        return "start"
    return f"step {state.done + 1}" if state.done < state.total else "end"


_VERB = re.compile(r" \((\w+)\)$")

PHASE_OF = {
    "generate": "sample",
    "log_probs": "log-probs",
    "forward_backward": "update",
    "optim_step": "update",
    "sync_weights": "sync",
    "snapshot": "save",
    "save": "save",
    "load": "load",
}
"""Verb of a backend -> phase."""


def seconds_left(state: State, *, now: float) -> float | None:
    """Seconds until the last step is done and evaluated, by the steps and evaluations so far; None before the first.

    A step that takes longer than usual does not make the time left negative.
    """
    steps = _recent(state.history, "timing_s/step")
    if not steps or not state.total:
        return None
    step = statistics.median(steps) + _mean(_recent(state.history, "timing_s/save_checkpoint"))
    tests = state.tests[-RECENT:]
    due = num_evaluations(state.done, state.total, state.eval_freq) if tests else 0
    spent = min(now - state.step_began, step) if state.evaluating is None else 0.0
    return max(0.0, (state.total - state.done) * step + due * _mean(tests) - spent)


def num_evaluations(done: int, total: int, every: int) -> int:
    """Evaluations due after step `done` until the last step, which always has one."""
    if every <= 0 or done >= total:
        return 0
    return (total - 1) // every - done // every + 1


def _recent(history: Sequence[Metrics], key: str) -> list[float]:
    return [value for record in history[-RECENT:] if (value := finite(record.get(key))) is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def duration(seconds: float) -> str:
    """Two units at most, the smaller one whole: 12 s, 4 min 05 s, 2 h 04 min, 3 d 02 h."""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"
