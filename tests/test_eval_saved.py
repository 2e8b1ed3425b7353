"""Comparing with an earlier evaluation: what was sampled otherwise, or on other problems, is told or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rlctl import eval_saved
from rlctl.cli import app
from rlctl.errors import ConfigError, DataError
from tests.test_cli import fake


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def saved(name: str, *, model: str = "m", questions: str = "q", n: int = 1, **sampling: Any) -> str:
    """The folder of an evaluation of four problems; without `sampling` as an older rlctl left it."""
    folder = Path(name)
    folder.mkdir()
    samples = [
        {
            "model": model, "source": "set", "problem": f"p{i}", "question": f"{questions}{i}?", "answer": "1",
            "task": "t", "scores": {"t": float(i % 2)},
        }
        for i in range(4) for _ in range(n)
    ]  # fmt: skip
    (folder / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples))
    known = {"sampling": {"n": n, **sampling}} if sampling else {}
    (folder / "evaluation.json").write_text(json.dumps({"evaluations": [{"model": model, "n": n, **known}]}))
    return name


def compared(first: str, second: str, *more: str) -> Result:
    return CliRunner().invoke(app, ["eval", "--compare", first, second, *more], catch_exceptions=False)


def test_two_evaluations_that_were_sampled_otherwise_are_compared_with_a_note() -> None:
    first = saved("a", n=1, temperature=0, max_response_length=64)
    second = saved("b", n=2, temperature=1, max_response_length=64)
    text = "a/samples.jsonl is sampled with n 1, temperature 0, b/samples.jsonl with n 2, temperature 1"
    assert f"note: {text}: what differs is not the models alone" in compared(first, second).stdout
    result = json.loads(compared(first, second, "--format", "json").stdout)
    assert result["notes"] == [f"{text}: what differs is not the models alone"]


def test_evaluations_that_were_sampled_alike_have_no_note() -> None:
    first, second = (saved(name, temperature=1, max_response_length=64) for name in ("a", "b"))
    assert "note:" not in compared(first, second).stdout


def test_of_an_older_evaluation_it_is_told_that_nothing_is_known_but_what_its_samples_show() -> None:
    result = compared(saved("a"), saved("b", n=2, temperature=1, max_response_length=64)).stdout
    assert "a/samples.jsonl is sampled with n 1, b/samples.jsonl with n 2" in result
    assert "note: how a/samples.jsonl was sampled is not recorded beside it" in result


@pytest.mark.usefixtures("fake_backend")
def test_a_model_that_would_be_sampled_otherwise_is_refused_before_it_is_loaded(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """With the options that make it alike; the fake backend would sample at once."""
    arguments = [*fake(tiny_llama, tmp_path), "--data", str(tmp_path / "problems.jsonl"), "--limit", "4"]
    out = ["--n", "2", "--temperature", "1", "--out", "first"]
    made = CliRunner().invoke(app, ["eval", str(tiny_llama), *arguments, *out], catch_exceptions=False)
    assert made.exit_code == 0, made.output
    assert json.loads(Path("first/evaluation.json").read_text())["evaluations"][0]["sampling"] == {
        "n": 2, "temperature": 1.0, "max_response_length": 6,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"sampled with n 2, temperature 1, .* with n 1, temperature 0") as caught:
        compared("first", str(tiny_llama), *arguments)
    assert "add --n 2 --temperature 1;" in (caught.value.hint or "")
    more = ["--set", "rollout.max_response_length=5"]
    with pytest.raises(ConfigError, match=r"max_response_length 6, .* max_response_length 5") as caught:
        compared(str(tiny_llama), "first", *arguments, "--n", "2", "--temperature", "1", *more)
    assert "add --set rollout.max_response_length=6;" in (caught.value.hint or "")


def test_evaluations_on_other_data_are_not_compared() -> None:
    """Names of problems are numbers of rows in many files, so that equal names mean little."""
    with pytest.raises(DataError, match="other questions or answers under the same name: 4 of 4, the first set p0"):
        compared(saved("a"), saved("b", questions="r"))
    moved = Path("b/samples.jsonl")
    moved.write_text(moved.read_text().replace('"set"', '"other"'))
    with pytest.raises(DataError, match="have no problem in common"):
        compared("a", "b")


def test_a_score_that_is_no_number_is_refused_and_other_line_ends_are_text() -> None:
    saved("a")
    samples = Path("a/samples.jsonl")
    first, *rest = samples.read_text().splitlines()
    samples.write_text("\n".join([first.replace("q0?", "q\u2028?"), *rest]), encoding="utf-8")
    assert len(eval_saved.read(samples).asked.problems) == 4
    samples.write_text(first.replace("0.0", "NaN") + "\n")
    with pytest.raises(DataError, match=r"samples\.jsonl:1: not a sample of `rlctl eval`: ValueError: the score nan"):
        eval_saved.read(samples)


def test_samples_of_two_models_are_not_taken_for_one() -> None:
    saved("a", model="x")
    saved("b", model="y")
    both = Path("a/samples.jsonl")
    both.write_text(both.read_text() + Path("b/samples.jsonl").read_text())
    with pytest.raises(DataError, match="samples of 2 models: x, y"):
        eval_saved.read(both)
