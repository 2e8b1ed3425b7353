"""The thread that draws: it never holds up a run, never ends one, and loses no note."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live
from rich.text import Text

from rlctl import loop
from rlctl.live.reporter import FASTEST_S, NO_WRAP, WRAP, LiveReporter, Picture
from tests.live.story import HOSTILE, metrics, rollout
from tests.runs import prepared, write_problems

LOOSE_S = 30.0
"""Three times the longest rest between two pictures, far less than what it takes to wait for the terminal."""


class Stream(io.StringIO):
    """A terminal that takes nothing while it is `stuck`, as after Ctrl-S."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.free.set()

    def write(self, text: str) -> int:
        self.free.wait()
        return super().write(text)


def screen(stream: Stream) -> Console:
    return Console(
        file=stream, force_terminal=True, width=100, height=40, color_system=None, _environ={"TERM": "xterm"}
    )


@pytest.fixture
def notes_on_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes go to the screen where stderr is a terminal, which it is not under pytest."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)


def test_a_terminal_that_takes_nothing_does_not_hold_up_the_run() -> None:
    stream = Stream()
    with LiveReporter(screen(stream)) as live:
        stream.free.clear()
        begun = time.monotonic()
        for step in range(1, 200):
            live.sampled([rollout()])
            live.step(metrics(step))
            live.evaluation(step, {"val-core/x/acc/mean@1": 0.5})
        assert time.monotonic() - begun < LOOSE_S
        stream.free.set()
    assert "2.390" in stream.getvalue()  # the score of step 199


def test_leaving_at_once_waits_no_longer_than_a_moment_for_such_a_terminal() -> None:
    stream = Stream()
    live = LiveReporter(screen(stream))
    live.__enter__()
    stream.free.clear()
    begun = time.monotonic()
    live.step(metrics(1))
    live.abort()
    assert time.monotonic() - begun < LOOSE_S
    stream.free.set()
    live.__exit__()


def test_a_view_that_fails_leaves_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveReporter(screen(Stream())) as live:
        live.step(metrics(1, score__mean="not a number"))
        deadline = time.monotonic() + LOOSE_S
        # Until the picture is put away, what is printed goes above it, on this screen and not to capsys.
        while (not live.failed or live.live.is_started) and time.monotonic() < deadline:
            time.sleep(0.02)
        live.step(metrics(2))
        live.note("still here")
    printed = capsys.readouterr()
    assert printed.out.startswith("step 2/0  score 0.420")
    assert "the live view failed (ValueError" in printed.err
    assert "still here" in printed.err


def test_every_note_stands_above_the_view_once_and_in_order(notes_on_screen: None) -> None:
    stream = Stream()
    with LiveReporter(screen(stream)) as live:
        for number in range(50):
            live.note(f"note {number:02d}.")
            live.step(metrics(number + 1))
    written = stream.getvalue()
    places = [written.index(f"note {number:02d}.") for number in range(50)]
    assert places == sorted(places)
    assert written.count("note 07.") == 1


def test_a_note_with_escapes_is_harmless(notes_on_screen: None) -> None:
    stream = Stream()
    with LiveReporter(screen(stream)) as live:
        live.note(f"reward failed: {HOSTILE}")
    assert "[/red] [bold] [link=http://x]\\x1b[2J\\x1b[31mred" in stream.getvalue()
    assert "\x1b[31m" not in stream.getvalue()


def test_fast_steps_are_not_drawn_one_by_one() -> None:
    stream, begun = Stream(), time.monotonic()
    with LiveReporter(screen(stream)) as live:
        for step in range(1, 400):
            live.step(metrics(step))
            time.sleep(0.002)
    pictures = stream.getvalue().count("\x1b[?7l")
    assert pictures <= (time.monotonic() - begun) / FASTEST_S + 4


def test_the_curves_of_a_run_that_goes_on_begin_with_what_was_done() -> None:
    stream = Stream()
    before = [{"training/global_step": 0, "val-core/x/acc/mean@1": 0.1}, *(metrics(step) for step in range(1, 9))]
    with LiveReporter(screen(stream), history=before) as live:
        live.step(metrics(9))
    score = [line for line in stream.getvalue().splitlines() if line.lstrip("\r").startswith("score ")][-1]
    assert sum(sign in "▁▂▃▄▅▆▇█" for sign in score.split("reward")[0]) == 9


def test_the_cursor_is_shown_again_however_it_ends() -> None:
    stream = Stream()

    def fail() -> None:
        with LiveReporter(screen(stream)) as live:
            live.step(metrics(1))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_a_whole_run_tells_the_view_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_llama: Path
) -> None:
    """Steps, evaluations, waits and rollouts of a run on the fake backend arrive."""
    monkeypatch.setenv("RLCTL_PLUGINS", "tests.fake_plugin")
    ready = prepared(tiny_llama, write_problems(tmp_path))
    seen: list[tuple[object, ...]] = []

    class Watching(LiveReporter):
        def evaluating(self, step: int) -> None:
            super().evaluating(step)
            seen.append(("evaluating", step))

        def step(self, metrics: object) -> None:
            super().step(metrics)  # type: ignore[arg-type]
            seen.append(("step", self.state.done, self.state.rollout is not None))

    stream = Stream()
    with Watching(screen(stream), title="run") as live:
        work = loop.run(ready, backend=loop.backend_for(ready), reporter=live, files=None)
        asyncio.run(work)
    assert [event for event in seen if event[0] == "evaluating"] == [
        ("evaluating", 0),
        ("evaluating", 3),
        ("evaluating", 6),
    ]
    assert [event for event in seen if event[0] == "step"] == [("step", step, True) for step in range(1, 7)]
    assert live.state.evaluating is None
    assert list(live.state.waits()) == []
    assert "step 6/6" in stream.getvalue()


def test_a_picture_that_has_become_too_large_leaves_the_terminal_wrapping() -> None:
    stream = Stream()
    small = Console(file=stream, force_terminal=True, width=20, height=4, _environ={"TERM": "xterm"})
    with Live(console=small, auto_refresh=False, vertical_overflow="crop") as live:
        live.update(Picture([Text("x" * 90)] * 12), refresh=True)
    assert "x" * 20 in stream.getvalue()
    assert stream.getvalue().count(NO_WRAP) == stream.getvalue().count(WRAP)
