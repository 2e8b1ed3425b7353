"""rlctl eval: what is measured, of which model, with which settings, and what is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlctl import eval_report, eval_run, eval_saved, eval_table
from rlctl.checkpoints import manifest
from rlctl.commands.eval import _data_options, _settings
from rlctl.errors import ConfigError, DataError
from rlctl.eval_models import Target, target
from rlctl.eval_report import Evaluation, summarise
from rlctl.recipe import backend_for
from rlctl.report import evaluation_metrics
from rlctl.rewards import load_rewards
from rlctl.settings import Settings
from rlctl.types import Completion, Problem, Prompt, Rollout
from tests.command_line import rlctl
from tests.test_cli import PLUGIN, fake, refused_on_stderr
from tests.test_loop import Recorder, lines, prepared, run

pytestmark = pytest.mark.usefixtures("fake_backend")

GSM8K = load_rewards(["gsm8k"])


def group(name: str, *texts: str, gold: str = "7", source: str = "set") -> list[Rollout]:
    """Completions as the reward itself grades them."""
    problem = Problem(name, f"{name}?", gold, source)
    completion = Completion(np.zeros(3, np.int32), np.zeros(3, np.float32), "stop")
    scores = [float(GSM8K.rewards[0].function(problem, text).score) for text in texts]  # type: ignore[union-attr]
    prompt = Prompt(np.zeros(1, np.int32), 0)
    return [Rollout(problem, prompt, completion, t, s, {"gsm8k": s}) for t, s in zip(texts, scores, strict=True)]


def summary(*groups: list[Rollout], wanted: int | None = None) -> Evaluation:
    return summarise("m", groups, rewards=GSM8K, wanted=wanted or len(groups), seconds=1.0, seed=0)


# What is measured


def test_mean_pass_and_majority_by_hand() -> None:
    found = summary(
        group("a", "#### 7", "#### 7.0", "#### 8", "none"),  # 2 of 4; 7 and 7.0 are one answer, which wins
        group("b", "#### 8", "#### 7", "#### 9", "#### 9"),  # 1 of 4; 9 wins and is wrong
        group("c", "x", "x", "x", "x"),  # nothing to vote for
        group("d", "#### 7", "#### 8", "#### 8", "#### 7"),  # a tie, and 7 came first
    )
    core = {name.removeprefix("val-core/set/"): value.value for name, value in found.intervals.items()}
    assert core["acc/mean@4"] == pytest.approx((2 + 1 + 0 + 2) / 16)
    # Chen et al.: 1 - C(n - c, 2) / C(n, 2) with C(4, 2) = 6.
    assert core["pass@2"] == pytest.approx(((1 - 1 / 6) + (1 - 3 / 6) + 0 + (1 - 1 / 6)) / 4)
    assert core["pass@4"] == pytest.approx(3 / 4)
    assert core["acc/maj@4"] == pytest.approx((1 + 0 + 0 + 1) / 4)


def test_names_are_those_of_trainings_evaluations(tiny_llama: Path, tmp_path: Path) -> None:
    data = tmp_path / "problems.jsonl"
    data.write_text("\n".join(json.dumps({"question": f"{i}?", "answer": "1"}) for i in range(40)))
    ready = prepared(tiny_llama, data, "eval.n=2", "eval.temperature=1", "reward.functions=gsm8k")
    trained, _ = run(ready, tmp_path / "run")
    _, during = trained.evaluations[0]
    before = eval_run.prepare(ready.settings, limit=None)
    again, _ = asyncio.run(eval_run.run(before, reporter=Recorder(), samples=tmp_path / "s.jsonl", name="m"))
    assert set(during) <= set(again.metrics)
    # The same code, problems and seeds: the untrained model gets the same figures.
    same = [name for name in during if not name.startswith("timing")]
    assert {name: again.metrics[name] for name in same} == pytest.approx({name: during[name] for name in same})
    assert len(lines(tmp_path / "s.jsonl")) == 2 * len(before.problems)


def test_each_source_has_figures_of_its_own() -> None:
    found = summary(group("a", "#### 7"), group("b", "x", source="other"))
    assert {name: value.value for name, value in found.intervals.items() if "acc" in name} == {
        "val-core/other/acc/mean@1": 0.0,
        "val-core/set/acc/mean@1": 1.0,
    }


def test_a_problem_without_a_score_is_left_out_and_counted() -> None:
    failed = [Rollout(r.problem, r.prompt, r.completion, r.text, None, {}) for r in group("b", "x")]
    found = summary(group("a", "#### 7"), failed)
    assert found.metrics["val-core/set/acc/mean@1"] == 1.0
    assert found.metrics["val-aux/set/failed"] == 1
    assert "1 completions whose reward failed are left out" in eval_table.render([found], [], style="text")


def test_a_completion_whose_reward_failed_is_not_taken_for_a_wrong_one() -> None:
    """a: 1 of the 3 known, pass@2 1 - C(2, 2) / C(3, 2) = 2/3, no pass@4 of three; b: 4 of 4."""
    wrong, right, another, lost = group("a", "#### 8", "#### 7", "#### 9", "x")
    lost = Rollout(lost.problem, lost.prompt, lost.completion, lost.text, None, {})
    groups = [[wrong, right, another, lost], group("b", *["#### 7"] * 4)]
    found = summary(*groups)
    assert found.metrics["val-core/set/acc/mean@4"] == pytest.approx((1 / 3 + 1) / 2)
    assert found.metrics["val-core/set/pass@2"] == pytest.approx((2 / 3 + 1) / 2)
    assert found.metrics["val-core/set/pass@4"] == 1.0
    in_training = evaluation_metrics(groups, task="gsm8k", seconds=1.0)
    core = {name: value for name, value in in_training.items() if name.startswith("val-core/")}
    assert core == pytest.approx({name: found.metrics[name] for name in core})


def test_two_models_are_compared_on_the_problems_both_have() -> None:
    first, second = (
        {"set": {"a": 0.0, "b": 0.0, "c": 1.0}},
        {"set": {"b": 1.0, "c": 1.0, "d": 1.0}, "other": {"x": 1.0}},
    )
    (pair,) = eval_report.compare(first, second, seed=0)
    assert (pair.source, pair.only_in_one) == ("set", 2)
    assert (pair.comparison.num_problems, pair.comparison.better, pair.comparison.worse) == (2, 1, 0)
    text = eval_table.render([], [pair], style="text")
    assert "B - A +50.00 points" in text
    assert "p = 1.0000 (exact McNemar, two-sided: each problem is right or wrong in both" in text
    assert "2 problems that only one of them has are left out" in text


@pytest.mark.parametrize("style", ["text", "markdown", "json"])
def test_every_format_shows_value_and_interval(style: Any) -> None:
    shown = eval_table.render([summary(group("a", "#### 7"), group("b", "x"))], [], style=style)
    if style == "json":
        record = json.loads(shown)["evaluations"][0]
        found = record["intervals"]["val-core/set/acc/mean@1"]
        assert (found["value"], found["low"], found["high"], found["level"]) == (0.5, 0.0, 1.0, 0.95)
    else:
        assert "50.00 %  [0.00, 100.00]" in shown


def test_nothing_graded_is_said_and_not_a_number() -> None:
    assert "no problem was graded" in eval_table.render([summary(wanted=5)], [], style="text")
    assert json.loads(eval_table.render([summary(wanted=5)], [], style="json"))["evaluations"][0]["intervals"] == {}


# Which model, which settings


@dataclass(frozen=True)
class Ready:
    """What a backend is made from, where nothing is trained."""

    settings: Settings
    model: str
    end_token_ids: tuple[int, ...]


def a_run(folder: Path, *steps: int) -> Path:
    for step in steps:
        checkpoint = folder / f"checkpoints/step_{step:06d}"
        checkpoint.mkdir(parents=True)
        manifest.seal(checkpoint, step=step, metrics={}, expected={})
    folder.mkdir(exist_ok=True)
    settings = {
        "model": {"path": "x", "tokenizer": None, "chat_template": None},
        "data": {"prompt_suffix": "Answer!", "path": "own.jsonl"},
        "seed": 5,
        "backend": "ray",
    }
    (folder / "config.resolved.json").write_text(json.dumps({"settings": settings}))
    return folder


def test_a_run_stands_for_its_last_checkpoint_and_lends_its_prompts(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 50, 100)
    found = target(str(folder))
    assert found.model == str(folder / "checkpoints/step_000100")
    settings = _settings(found, [found], {}, dict.fromkeys(("preset", "variant", "config", "assignments")))
    assert settings is not None
    assert (settings.data.prompt_suffix, settings.seed, settings.backend) == ("Answer!", 5, "local")
    assert settings.model.path == found.model
    checkpoint = target(str(folder / "checkpoints/step_000050"))
    assert (checkpoint.model, checkpoint.lent) == (str(folder / "checkpoints/step_000050"), found.lent)


@pytest.mark.parametrize(
    "assignments",
    [
        ("kl_coef=0.1",),
        ("kl_loss_coef=0.1",),
        ("kl_coef=0.1", "use_kl_in_reward=true", "kl_loss_coef=0.1", "kl_target=0.05"),
    ],
)
def test_no_evaluation_loads_a_reference_model(tiny_llama: Path, tmp_path: Path, assignments: tuple[str, ...]) -> None:
    found = target(str(a_run(tmp_path / "run", 50)))
    given = {"assignments": tuple(f"algorithm.{text}" for text in assignments)}
    settings = _settings(found, [found], {}, dict.fromkeys(("preset", "variant", "config")) | given)
    assert settings is not None
    assert settings.algorithm.needs_reference
    assert not backend_for(Ready(settings, str(tiny_llama), (0,))).job.needs_reference


def test_data_given_by_hand_replaces_the_runs_own(tmp_path: Path) -> None:
    found = target(str(a_run(tmp_path / "run", 1)))
    (tmp_path / "test.jsonl").write_text("{}")
    for data, path, source in (
        (str(tmp_path / "test.jsonl"), "test.jsonl", "openai/gsm8k"),
        ("owner/set", None, "owner/set"),
    ):
        options = _data_options(data)
        settings = _settings(found, [found], options, dict.fromkeys(("preset", "variant", "config", "assignments")))
        assert settings is not None
        assert settings.data.path is None
        assert (settings.data.eval_path and Path(settings.data.eval_path).name) == path
        assert settings.data.source == source
        assert settings.data.eval_size == 2**31 - 1


def test_a_misspelt_run_is_not_taken_for_a_model(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.resolved.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no such run in .*Did you mean mine\?"):
        target(str(tmp_path / "mime"))
    assert target("Qwen/Qwen3-0.6B") == Target("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B")


def test_a_comparison_with_one_name_is_told_so() -> None:
    refused_on_stderr(rlctl("eval", "--compare", "one", "--limit"), 2, "--compare wants two names")


def test_a_run_is_found_by_its_name_where_runs_are(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "mine", 50)
    assert target("mine", run_dir=tmp_path).model == str(folder / "checkpoints/step_000050")


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no good checkpoint"):
        target(str(a_run(tmp_path / "run")))


def test_samples_that_are_not_there_are_told() -> None:
    with pytest.raises(DataError, match=r"nope\.jsonl: no such file"):
        target("nope.jsonl")


def test_anything_else_is_a_model_path() -> None:
    assert target("owner/name") == Target("owner/name", "owner/name")


def test_scores_are_read_back_from_samples(tmp_path: Path) -> None:
    records = [("a", 1.0), ("a", 0.0), ("b", 1.0), ("c", None)]
    path = tmp_path / "samples.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {"source": "set", "problem": p, "task": "t", "scores": {"u": 0} if s is None else {"u": 0, "t": s}}
            )
            + "\n"
            for p, s in records
        )
    )
    assert eval_saved.read(path).scores == {"set": {"a": 0.5, "b": 1.0}}
    path.write_text('{"source": "set", "problem": "a", "task": "t", "scores": {"t": 1}}\n{"step": 1}\n')
    with pytest.raises(DataError, match=r"samples\.jsonl:2: not a sample"):
        eval_saved.read(path)


# Ending early


def test_a_signal_keeps_what_was_sampled_and_says_so(tiny_llama: Path, tmp_path: Path) -> None:
    data = tmp_path / "problems.jsonl"
    data.write_text("\n".join(json.dumps({"question": f"{i}?", "answer": "1"}) for i in range(300)))
    ready = prepared(tiny_llama, data, f"data.eval_path={data}", "data.eval_size=300")

    class Interrupter(Recorder):
        def note(self, text: str) -> None:
            super().note(text)
            if "64/300" in text:
                os.kill(os.getpid(), signal.SIGINT)

    recorder = Interrupter()
    ended, number = asyncio.run(
        eval_run.run(eval_run.prepare(ready.settings, limit=None), reporter=recorder, samples=tmp_path / "s", name="m")
    )
    assert number == signal.SIGINT
    assert ended.num_problems in (64, 128)
    assert not ended.whole
    assert len(lines(tmp_path / "s")) == ended.num_problems
    assert f"the first {ended.num_problems} of 300 problems" in eval_table.render([ended], [], style="text")
    assert any("once more ends at once" in note for note in recorder.notes)


# The command


def test_the_command_prints_accuracy_with_its_interval_and_leaves_its_files(tiny_llama: Path, tmp_path: Path) -> None:
    arguments = [*fake(tiny_llama, tmp_path), "--data", str(tmp_path / "problems.jsonl"), "--limit", "20"]
    model, out = str(tiny_llama), tmp_path / "first"
    result = rlctl("eval", model, *arguments, "--out", str(out), "--n", "2", "--temperature", "1", **PLUGIN)
    assert result.returncode == 0, result.stderr
    assert "20 problems, 2 samples each" in result.stdout
    assert "val-core/problems/acc/mean@2" in result.stdout
    assert len(lines(out / "samples.jsonl")) == 40
    assert json.loads((out / "evaluation.json").read_text())["evaluations"][0]["num_problems"] == 20

    compared = rlctl(
        "eval", "--compare", str(out), model, *arguments, "--n", "2", "--temperature", "1", "-f", "json",
        "--out", str(tmp_path / "second"), **PLUGIN,
    )  # fmt: skip
    assert compared.returncode == 0, compared.stderr
    (comparison,) = json.loads(compared.stdout)["comparisons"]
    # The same model, problems and seed.
    assert (comparison["difference"]["value"], comparison["p_value"], comparison["num_problems"]) == (0.0, 1.0, 20)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--n", "4"], ["eval.n = 4 completions at temperature 0 would all be the same", "--temperature 1"]),
        (["--data", "missing.jsonl"], ["missing.jsonl: no such file"]),
        (["--out", "."], []),
        (["--compare", "a", "b"], ["--compare were both given"]),
    ],
)  # fmt: skip
def test_bad_input_ends_with_2_and_the_cure(
    tiny_llama: Path, tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    if arguments[0] == "--out":
        (tmp_path / "samples.jsonl").touch()
        arguments, parts = ["--out", str(tmp_path)], ["holds an evaluation already"]
    refused_on_stderr(rlctl("eval", str(tiny_llama), *fake(tiny_llama, tmp_path), *arguments, **PLUGIN), 2, *parts)
