"""`rlctl train` on a real terminal: a small run of the embedded model on a pseudo-terminal whose screen is read."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.command_line import ROOT, rlctl
from tests.live.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")]

SMALL = {
    "trainer.train_batch_size": 4, "rollout.n": 4, "trainer.eval_freq": 2, "data.eval_size": 4, "trainer.save_freq": 0,
}  # fmt: skip


def arguments(folder: Path, *options: str, steps: int) -> list[str]:
    changed = SMALL | {"trainer.steps": steps, "run.dir": str(folder), "run.name": "small"}
    assignments = [word for key, value in changed.items() for word in ("--set", f"{key}={value}")]
    return ["train", "--preset", "gsm8k-grpo", "--variant", "embedded", *assignments, *options]


def command(folder: Path, *options: str, steps: int = 4) -> list[str]:
    return [sys.executable, "-m", "rlctl", *arguments(folder, *options, steps=steps)]


def environ(**changed: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")}
    terminal = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return kept | terminal | changed


def whole(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_a_run_is_drawn_resized_interrupted_and_gone_on_with(tmp_path: Path) -> None:
    with Terminal(command(tmp_path, steps=400), columns=100, lines=40, environ=environ()) as terminal:
        terminal.until(lambda: progress_of(terminal) >= 3, within_s=120)
        blocks = ("grad norm", "entropy", "update", "tok/s", "groups: none solved", "completion of step")
        terminal.until(lambda: all(words in terminal.text() for words in blocks), within_s=20)
        for columns, lines in [(60, 30), (44, 12), (120, 20), (160, 45), (80, 24)]:
            terminal.resize(columns, lines)
            count = progress_of(terminal)
            terminal.until(lambda count=count: progress_of(terminal) > count, within_s=60)  # type: ignore[misc]
            # A moment may show half a picture, but what a resize leaves behind would stay.
            terminal.until(lambda: num_pictures(terminal) == (1, 1), within_s=20)
        os.kill(terminal.pid, signal.SIGINT)
        assert terminal.until_end(within_s=60) == 130
        assert not terminal.screen.cursor.hidden
        assert terminal.received.rstrip().count(b"\x1b[?7l") == terminal.received.count(b"\x1b[?7h")
        assert "model:" in terminal.text()  # the summary stands below the last picture
        assert "SIGINT: finishing the step" in whole("\n".join([*terminal.history(), *terminal.rows()]))

    steps = [json.loads(line) for line in (tmp_path / "small" / "metrics.jsonl").read_text().splitlines()]
    last = steps[-1]["training/global_step"]
    resumed = command(tmp_path, steps=last + 1)
    with Terminal(resumed, columns=80, lines=24, environ=environ()) as terminal:
        assert terminal.until_end(within_s=120) == 0
        score = next(row for row in terminal.rows() if row.startswith("score "))
        # Where it went on there is one new step, and the curve is that of all.
        assert len(re.sub(r"[^▁▂▃▄▅▆▇█]", "", score.split("reward")[0])) == min(last + 1, 18)


def num_pictures(terminal: Terminal) -> tuple[int, int]:
    """Lines of progress, and headings of the table, that are on the screen."""
    rows = terminal.rows()
    progress = sum(re.match(r"step \d+/400", row) is not None for row in rows)
    return progress, sum(row.lstrip().startswith("step   score") for row in rows)


def progress_of(terminal: Terminal) -> int:
    found = re.findall(r"step (\d+)/400", terminal.text())
    return int(found[-1]) if found else -1


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(tmp_path: Path) -> None:
    wanted = environ(TERM="dumb", FORCE_COLOR="1")
    with Terminal(command(tmp_path, steps=2), columns=80, lines=24, environ=wanted) as terminal:
        assert terminal.until_end(within_s=120) == 0
    received = terminal.received.decode()
    assert "\x1b" not in received
    assert re.search(r"^step 1/2  score ", received, re.MULTILINE)


def test_a_terminal_without_colour_and_unicode_gets_the_view_without(tmp_path: Path) -> None:
    wanted = environ(NO_COLOR="1", PYTHONIOENCODING="ascii")
    with Terminal(command(tmp_path, steps=2), columns=80, lines=24, environ=wanted) as terminal:
        assert terminal.until_end(within_s=120) == 0
        assert "groups: none solved" in terminal.text()
    received = terminal.received.decode("utf-8")
    assert received.isascii()
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38;|4[0-7])[0-9;]*m", received)


def test_a_pipe_gets_plain_lines_even_where_colour_is_forced(tmp_path: Path) -> None:
    done = rlctl(*arguments(tmp_path, steps=2), TERM="xterm-256color", FORCE_COLOR="1", NO_COLOR="")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines() if "signal" in line] == ["step 1/2", "step 2/2"]


def test_quiet_prints_the_result_and_errors_only(tmp_path: Path) -> None:
    done = rlctl(*arguments(tmp_path, "--quiet", steps=2))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [line.split(":")[0] for line in done.stdout.splitlines()][-1] == "model"
    assert not any(line.startswith(("step", "note", "run:")) for line in done.stdout.splitlines())
    again = rlctl(*arguments(tmp_path, "-q", "--set", "run.resume=never", steps=2))
    assert (again.returncode, again.stdout) == (2, "")
    assert "already holds a run" in again.stderr
