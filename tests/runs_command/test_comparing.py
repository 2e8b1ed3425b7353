"""What differs between runs: settings with origins, metrics with intervals, and what makes them incomparable."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from rlctl.runs.compare_table import render
from rlctl.runs.comparing import compare, difference
from rlctl.runs.reading import Run, read_run
from tests.runs_command.folders import step, write_run

MACHINE = {"device": "cpu", "num_devices": 1, "dtype": "float32", "num_parameters": 10}


def run(folder: Path, scores: list[float | None], **settings: object) -> Run:
    records = [step(number, score__mean=score) for number, score in enumerate(scores, start=1)]
    return read_run(
        write_run(folder, records, settings={"trainer": {"lr": 1.0}, **settings}, total=len(scores), machine=MACHINE)
    )


def test_means_are_over_the_steps_that_both_have(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a", [0.0, None, 1.0, 9.0]), run(tmp_path / "b", [1.0, 1.0, 4.0])
    found = difference("score/mean", a, b, seed=0)
    assert found is not None
    assert (found.first, found.other, found.difference, found.num_steps) == (0.5, 2.5, 2.0, 2)
    assert found.verdict == "too few steps"
    assert difference("nothing", a, b, seed=0) is None


@pytest.mark.parametrize(("gap", "verdict"), [(0.2, "higher"), (-0.2, "lower")])
def test_a_difference_beyond_the_noise_is_told(tmp_path: Path, gap: float, verdict: str) -> None:
    noise = random.Random(1)
    a = run(tmp_path / "a", [0.5 + noise.gauss(0, 0.1) for _ in range(100)])
    b = run(tmp_path / "b", [0.5 + gap + noise.gauss(0, 0.1) for _ in range(100)])
    found = difference("score/mean", a, b, seed=0)
    assert found is not None
    assert found.verdict == verdict
    assert found.block == 5  # 100 ** (1 / 3) is 4.64
    assert found.low is not None
    assert found.high is not None
    # 20 blocks of 5 differences with deviation 0.1 * sqrt(2): a standard error of 0.0141, of which 1.96 on each side.
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.0141, rel=0.35)


def test_equal_runs_are_seldom_told_apart(tmp_path: Path) -> None:
    """An interval of 95 % errs once in 20; of 60, more than 9 would come by chance once in 1,000."""
    told = 0
    for trial in range(60):
        noise = random.Random(trial)
        a, b = (run(tmp_path / name, [noise.gauss(0, 0.1) for _ in range(30)]) for name in "ab")
        found = difference("score/mean", a, b, seed=0)
        assert found is not None
        told += found.verdict != "not told apart"
    assert told <= 9


def test_runs_that_drift_together_are_not_taken_for_many_independent_steps(tmp_path: Path) -> None:
    """Of differences that keep their value for ten steps, an interval over single steps is sqrt(10) too narrow."""
    noise, gaps = random.Random(2), []
    for _ in range(100):
        gaps += [noise.gauss(0, 1)] * 10
    a, b = run(tmp_path / "a", [0.0] * 1000), run(tmp_path / "b", list(gaps))
    found = difference("score/mean", a, b, seed=0)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low == pytest.approx(2 * 1.96 / 100**0.5, rel=0.3)


@pytest.mark.parametrize(("gap", "verdict"), [(0.0, "equal"), (1.0, "higher"), (-1.0, "lower")])
def test_a_difference_that_never_changes_needs_no_interval(tmp_path: Path, gap: float, verdict: str) -> None:
    a, b = run(tmp_path / "a", [1.0, 2.0, 4.0]), run(tmp_path / "b", [1.0 + gap, 2.0 + gap, 4.0 + gap])
    found = difference("score/mean", a, b, seed=0)
    assert found is not None
    assert (found.low, found.high, found.verdict) == (None, None, verdict)


def test_settings_that_differ_stand_there_with_their_origins(tmp_path: Path) -> None:
    for name, lr in (("a", 1e-5), ("b", 1e-6)):
        settings = {"trainer": {"lr": lr}, "run": {"name": name}, "seed": 0, "remote_backend": {}}
        write_run(
            tmp_path / name, settings=settings, origins={"trainer.lr": "--set trainer.lr" if lr > 5e-6 else "default"}
        )
    write_run(tmp_path / "c", settings={"trainer": {"lr": 1e-5}, "seed": 0, "remote_backend": {"x": {"y": 1}}})
    found = compare([read_run(tmp_path / name) for name in "abc"])
    assert [(one.name, one.values) for one in found.settings] == [
        ("remote_backend.x.y", ("absent", "absent", "1")),
        ("trainer.lr", ("1e-05", "1e-06", "1e-05")),
    ]
    assert found.settings[1].origins == ("--set trainer.lr", "default", "unknown")


def test_what_the_algorithms_do_not_share_is_told_of_each(tmp_path: Path) -> None:
    lines = {"a": "grpo advantages centred only, vanilla loss, no KL", "b": "rloo advantages, vanilla loss, no KL"}
    for name, algorithm in lines.items():
        write_run(tmp_path / name, settings={"seed": 0}, algorithm=algorithm)
    found = compare([read_run(tmp_path / name) for name in lines])
    (apart,) = found.settings
    assert apart.values == ("grpo advantages centred only", "rloo advantages")
    assert "effective algorithm of b: rloo advantages\n" in render(found, style="text") + "\n"
    assert "rloo advantages" in render(found, style="markdown")


def test_what_keeps_runs_from_being_comparable_is_told(tmp_path: Path) -> None:
    a = run(tmp_path / "a", [0.1, 0.2], data={"path": "a.jsonl"}, rollout={"n": 8})
    other = write_run(
        tmp_path / "b", [step(1, score__mean=0.3)], total=5, ended={"exit_code": 4, "why": "x"},
        settings={"data": {"path": "b.jsonl"}, "rollout": {"n": 4}},
        machine={**MACHINE, "device": "gpu", "num_parameters": 20},
    )  # fmt: skip
    told = "\n".join(compare([a, read_run(other)]).notes)
    for part in (
        "other data or rewards", "different numbers of completions", "different machines or precisions",
        "models of different size", "a has 2 steps and b 1", "b is failed after step 1",
    ):  # fmt: skip
        assert part in told


def test_the_same_numbers_are_called_so_though_times_differ(tmp_path: Path) -> None:
    for name, seconds in (("a", 1.0), ("b", 2.0)):
        write_run(tmp_path / name, [step(1, score__mean=0.5, timing_s__step=seconds, perf__mfu__step=seconds)])
    told = compare([read_run(tmp_path / "a"), read_run(tmp_path / "b")]).notes
    assert any("the same numbers in every common step" in note for note in told)


@pytest.mark.parametrize("style", ["text", "markdown", "json"])
def test_every_style_holds_the_difference(tmp_path: Path, style: str) -> None:
    a, b = run(tmp_path / "a", [0.0, 0.5] * 10), run(tmp_path / "b", [1.0, 1.75] * 10)
    text = render(compare([a, b], metrics=["score/mean"]), style=style)
    if style == "json":
        (found,) = json.loads(text)["metrics"]
        assert (found["first"], found["other"], found["difference"]) == (0.25, 1.375, 1.125)
    else:
        assert "+1.12" in text
        assert "0.25" in text
