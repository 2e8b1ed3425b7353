"""`rlctl runs` as a user types it: what is printed, where, and the exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlctl.cli import app
from rlctl.errors import BackendUnavailable, ConfigError
from tests.command_line import rlctl
from tests.runs_command.folders import sample, step, write_lines, write_run
from tests.test_cli import refused


def runs(*arguments: str) -> str:
    """What a command that succeeds prints on stdout."""
    return invoked(*arguments).stdout


def invoked(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["runs", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def complaint(*arguments: str) -> ConfigError:
    """What a command that refuses says, with exit code 2."""
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(app, ["runs", *arguments], catch_exceptions=False)
    assert caught.value.exit_code == 2
    return caught.value


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs in ./runs: `good`, finished, and `bad`, failed before its first step."""
    monkeypatch.chdir(tmp_path)
    records = [
        {
            "training/global_step": 0,
            "val-core/math/acc/mean@1": 0.25,
            "val-aux/math/num_problems": 100,
            "timing_s/testing": 2.0,
        },
        step(1, score__mean=0.25, timing_s__step=30.0, actor__loss=0.5, perf__mfu__actor__reason=""),
        step(2, score__mean=0.75, timing_s__step=31.5, actor__loss=None, not_finite=["actor/loss"]),
    ]
    kept = [
        sample(1, "p/1", reward=0.0, completion="first"), sample(1, "p/2", reward=1.0, completion="second"),
        sample(2, "p/1", reward=None, completion="\x1b[31mred\x07\u202e [bold]"), sample(2, "q/1", reward=0.5),
    ]  # fmt: skip
    write_run(
        tmp_path / "runs" / "good", records, samples=kept, total=2, ended={"exit_code": 0},
        settings={"trainer": {"lr": 1e-6, "steps": 2}, "reward": {"functions": ["gsm8k"]}},
        origins={"trainer.lr": "--set trainer.lr", "trainer.steps": "preset x"},
    )  # fmt: skip
    write_run(tmp_path / "runs" / "bad", total=5, ended={"exit_code": 1, "why": "RewardError: no"})
    os.utime(tmp_path / "runs" / "bad" / "metrics.jsonl", (1, 1))


def test_list_has_a_line_a_run() -> None:
    lines = runs("list", "--sort", "name").splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["bad", "failed", "0/5"], ["good", "finished", "2/2"]]
    assert "0.250 -> 0.750" in lines[2]
    assert "0.250 @0" in lines[2]
    assert "1 min 04 s" in lines[2]  # 30 + 31.5 + 2 seconds


def test_list_sorts_filters_and_has_four_formats() -> None:
    rows = json.loads(runs("list", "--sort", "score", "--reverse", "--format", "json"))
    assert [(row["name"], row["last_score"], row["seconds"]) for row in rows] == [
        ("good", 0.75, 63.5),
        ("bad", None, 0),
    ]
    table = list(csv.DictReader(io.StringIO(runs("list", "--state", "failed", "-f", "csv"))))
    assert [(row["name"], row["first_score"]) for row in table] == [("bad", "")]
    assert runs("list", "-f", "markdown").splitlines()[1] == "|---|---|---:|---:|---:|---:|---:|---:|"
    for key in ("time", "state", "steps", "evaluation", "duration", "size"):
        assert runs("list", "--sort", key)


def test_no_run_is_no_error_and_json_stays_json() -> None:
    Path("empty").mkdir()
    result = invoked("list", "--dir", "empty", "-f", "json")
    assert (json.loads(result.stdout), result.stderr) == ([], "there is no run in empty\n")
    assert "--dir nix is not a folder" in complaint("list", "--dir", "nix").message


def test_the_folder_of_runs_is_the_settings_own(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("runs").rename("elsewhere")
    monkeypatch.setenv("RLCTL_RUN__DIR", "elsewhere")
    assert "good" in runs("list")


def test_show_says_what_a_run_is_and_what_was_given() -> None:
    text = runs("show", "good")
    for part in ("state        finished", "2 of 2", "trainer.lr", "--set trainer.lr", "math/acc/mean@1"):
        assert part in text
    assert "trainer.steps" not in text  # of the preset
    assert "failed: RewardError: no" in runs("show", "bad")
    record = json.loads(runs("show", "good", "-f", "json"))
    assert (record["state"], record["config"]["settings"]["trainer"]["lr"]) == ("finished", 1e-6)
    assert "**evaluations**" in runs("show", "good", "-f", "markdown")


def test_show_warns_of_what_the_metrics_show() -> None:
    zeros = {"score__mean": 0.0, "reward__solved_none": 1.0, "reward__frac_zero_signal": 1.0, "timing_s__step": 1.0}
    write_run(Path("runs/zero"), [step(n, **zeros) for n in range(1, 7)])
    assert "warning: every score of the last 5 steps is 0" in runs("show", "zero")


def test_tail_prints_the_last_steps_or_chosen_metrics() -> None:
    assert runs("tail", "good", "-n", "1").startswith("step 2/2  score 0.750")
    assert runs("tail", "good", "-m", "score/*").splitlines() == [
        "step 0  score/mean n/a", "step 1  score/mean 0.25", "step 2  score/mean 0.75",
    ]  # fmt: skip
    assert invoked("tail", "good", "--follow").stderr == "good finished after step 2\n"


def test_compare_needs_two_different_runs() -> None:
    assert "95 % interval" in runs("compare", "good", "bad") or "no step in common" in runs("compare", "good", "bad")
    assert "two or more different runs" in complaint("compare", "good").message
    assert "two or more different runs" in complaint("compare", "good", "runs/good").message
    assert "no metric 'scor/mean'" in complaint("compare", "good", "bad", "-m", "scor/mean").message


def test_export_has_every_step_and_metric_in_fixed_columns() -> None:
    rows = list(csv.reader(io.StringIO(runs("export", "good", "--csv"))))
    assert rows[0][:2] == ["training/global_step", "training/epoch"]
    assert rows[0][2:] == sorted(rows[0][2:])
    table = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert [row["training/global_step"] for row in table] == ["0", "1", "2"]
    assert [row["actor/loss"] for row in table] == ["", "0.5", ""]
    assert table[2]["not_finite"] == "actor/loss"
    lines = [json.loads(line) for line in runs("export", "good", "--jsonl", "-m", "score/mean").splitlines()]
    assert lines[1] == {"training/global_step": 1, "score/mean": 0.25}


def test_export_writes_a_file_or_says_why_not() -> None:
    invoked("export", "good", "-o", "steps.csv")
    assert Path("steps.csv").read_text() == runs("export", "good")
    assert "cannot be written: No such file or directory" in complaint("export", "good", "-o", "no/such").message
    assert "choose one" in complaint("export", "good", "--csv", "--jsonl").hint


def test_numbers_that_json_has_not_leave_the_exports_strict() -> None:
    Path("runs/good/metrics.jsonl").write_text('{"training/global_step": 1, "a": NaN, "b": 1e999, "c": {"d": [NaN]}}\n')

    def refuse(name: str) -> None:
        raise AssertionError(name)

    for arguments in (("export", "good", "--jsonl"), ("show", "good", "-f", "json")):
        json.loads(runs(*arguments), parse_constant=refuse)
    assert runs("export", "good").splitlines()[1] == '1,,,,"{""d"": [null]}"'


@pytest.mark.parametrize(
    ("options", "completions"),
    [
        (["--step", "1", "--worst"], ["first", "second"]),
        (["--step", "1", "--best"], ["second", "first"]),
        (["--worst", "-n", "9"], ["first", "text", "second", "\x1b[31mred\x07\u202e [bold]"]),
        (["--best", "-n", "2", "--offset", "1"], ["text", "first"]),
        (["--failed"], ["\x1b[31mred\x07\u202e [bold]"]),
        (["--problem", "q/*"], ["text"]),
        (["--problem", "p/1", "--step", "1"], ["first"]),
        (["--problem", "nobody"], []),
    ],
)
def test_samples_are_chosen_and_ordered(options: list[str], completions: list[str]) -> None:
    found = json.loads(runs("samples", "good", *options, "-f", "json"))
    assert [each["completion"] for each in found] == completions


def test_text_of_a_model_is_printed_without_its_control_characters() -> None:
    text = runs("samples", "good", "--failed")
    assert "\\x1b[31mred\\x07\\u202e [bold]" in text
    assert "no reward (timeout)" in text
    assert not set(text) & set("\x1b\x07\u202e")


def test_a_sample_cannot_pass_for_the_next_one() -> None:
    write_lines(
        Path("runs/good/samples.jsonl"),
        [sample(1, "p\n--- step 9", reward=1.0, completion="a\n--- step 2  p  reward 1")],
    )
    assert [line for line in runs("samples", "good").splitlines() if line.startswith("---")] == [
        "--- step 1  p\\n--- step 9  reward 1  gsm8k 1  5 tokens"
    ]


def test_samples_say_how_to_go_on_and_why_there_are_none() -> None:
    assert runs("samples", "good", "-n", "3").splitlines()[-1] == "1 to 3 of 4 samples; --offset 3 shows the next"
    assert "it has those of steps 1 to 2" in complaint("samples", "good", "--step", "7").message
    assert "has kept no completions" in complaint("samples", "bad").message
    assert "none of them is so" in complaint("samples", "good", "--problem", "x").message
    assert "both given" in complaint("samples", "good", "--worst", "--best").message


def test_damaged_samples_are_told_and_the_others_shown() -> None:
    with Path("runs/good/samples.jsonl").open("a") as file:
        file.write('{"step": "x", "scores": 3, "failures": "no", "reward": "high", "completion": ["a"]}\nnonsense\n')
    result = invoked("samples", "good", "-n", "9")
    assert "samples.jsonl:6 is not a JSON object" in result.stderr
    assert "--- step ?    no reward" in result.stdout


def test_a_long_text_is_cut_unless_it_is_asked_for() -> None:
    write_lines(Path("runs/good/samples.jsonl"), [sample(1, "p", reward=1.0, completion="x" * 10_000)])
    assert len(runs("samples", "good")) < 3_000
    assert "x" * 10_000 in runs("samples", "good", "--full")


def test_plot_draws_a_panel_a_metric() -> None:
    one = Path("runs/other")
    write_run(one, [step(1, score__mean=0.1, actor__loss=1.0), step(2, score__mean=0.2)])
    invoked("plot", "good", "score/mean", "actor/*", "--with", "other", "--png", "-o", "two.png")
    invoked("plot", "good", "score/mean")
    sizes = [struct.unpack(">II", Path(name).read_bytes()[16:24]) for name in ("two.png", "good.png")]
    assert [width for width, _ in sizes] == [1040, 1040]
    assert sizes[0][1] > sizes[1][1] + 200


@pytest.mark.parametrize(
    ("count", "words"),
    [(2, "1.000 last step"), (4, "2.000 mean of the last 3 steps"), (9, "6.000 mean of the last 5 steps")],
)
def test_what_a_run_came_to_says_over_how_many_steps(count: int, words: str) -> None:
    write_run(Path("runs/counts"), [step(n + 1, score__mean=float(n)) for n in range(count)])
    assert f"0.000 at the first step, {words}\n" in runs("show", "counts")


def test_csv_holds_no_formula_and_no_escape() -> None:
    """Names are other people's: a spreadsheet would compute `=...`, a terminal would obey the escape."""
    odd = {"=1+1": 1.0, "@a": -2.5, "\x1b[2Jb": 3.0, " +c": "=cmd|' /C calc'!A0", "d": "two\nlines"}
    write_run(Path("runs/-odd"), [{"training/global_step": 1, **odd}])
    (row,) = csv.DictReader(io.StringIO(runs("export", "--csv", "--", "-odd")))
    assert {name: row[name] for name in row if name not in ("training/global_step", "training/epoch")} == {
        "'=1+1": "1.0", "'@a": "-2.5", "\\x1b[2Jb": "3.0", "' +c": "'=cmd|' /C calc'!A0", "d": "two\\nlines",
    }  # fmt: skip
    assert "\n'-odd,stopped" in runs("list", "-f", "csv")


def test_a_run_without_steps_is_no_line_of_json() -> None:
    assert runs("export", "bad", "--jsonl") == ""
    invoked("export", "bad", "--jsonl", "-o", "none.jsonl")
    assert Path("none.jsonl").read_text() == ""


def test_plot_refuses_what_it_cannot_draw() -> None:
    assert "Did you mean score/mean?" in complaint("plot", "good", "score/men").message
    assert "-o a.png names the file" in complaint("plot", "good", "score/mean", "a.png").hint
    assert "cannot be written" in complaint("plot", "good", "score/mean", "-o", "no/such.png").message
    assert "no step is done yet" in complaint("plot", "bad", "score/mean").hint
    assert "score/*" in complaint("plot", "good").hint


def test_names_with_markup_of_matplotlib_are_drawn_as_they_are() -> None:
    write_run(
        Path("runs/odd"), [{"training/global_step": n, "a$\\frac$/b_{c": n, "_hidden": n, "数": n} for n in (1, 2)]
    )
    invoked("plot", "odd", "*", "-w", "good", "-o", "odd.png")
    assert Path("odd.png").stat().st_size > 1_000


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    for arguments in (["plot", "good", "score/mean"], ["report", "good"]):
        with pytest.raises(BackendUnavailable) as caught:
            CliRunner().invoke(app, ["runs", *arguments], catch_exceptions=False)
        assert "rlctl[plots]" in caught.value.hint


def test_errors_end_in_two_lines_and_code_two(tmp_path: Path) -> None:
    refused(
        rlctl("runs", "show", "goo-d", cwd=tmp_path), 2, "no run 'goo-d'. Did you mean good?", "runs in runs: bad, good"
    )


def test_output_to_a_pipe_that_closes_ends_quietly(tmp_path: Path) -> None:
    import subprocess
    import sys

    command = f"{sys.executable} -m rlctl runs export good | head -1"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path, env=environ)
    assert result.stdout.startswith("training/global_step")
    assert result.stderr == ""
