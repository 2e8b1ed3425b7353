"""Whole runs with an environment: settings to metrics, the same again and resumed, evaluated, and refused in time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rlctl import config, loop, resuming
from rlctl.backends import registry as backends
from rlctl.environments import registry
from rlctl.errors import ConfigError
from rlctl.prepare import Prepared, prepare
from rlctl.runs.samples import read_samples, render
from rlctl.settings.environment import EnvironmentSettings
from tests import runs
from tests.runs import Recorder, lines, without_times

SMALL = [
    "trainer.steps=2", "trainer.train_batch_size=2", "rollout.n=4", "data.eval_size=4", "trainer.eval_freq=2",
    "trainer.save_freq=1", "run.samples_per_step=8",
]  # fmt: skip


def calculating(*assignments: str) -> Prepared:
    return prepare(config.load(preset="calculator-tool", assignments=[*SMALL, *assignments], environ={}).settings)


def train(ready: Prepared, folder: Path, recorder: Recorder | None = None) -> Any:
    """As `rlctl train` does: on from a checkpoint where the folder has one."""
    plan = resuming.plan(folder, ready)
    files = plan.open(folder, config={}, note=lambda text: None)
    work = loop.run(
        ready, backend=loop.backend_for(ready), reporter=recorder or Recorder(), files=files, resume=plan.resume
    )
    return asyncio.run(work)


class Killed(BaseException):
    """What a kill is to the code below it."""


def killed(step: int) -> None:
    raise Killed


@pytest.mark.slow
def test_a_run_with_a_tool_resumed_is_the_run_that_was_not(tmp_path: Path) -> None:
    ready = calculating()
    train(ready, tmp_path / "straight")
    with pytest.raises(Killed):
        train(ready, tmp_path / "killed", Recorder(killed))
    train(ready, tmp_path / "killed")
    assert without_times(tmp_path / "straight/metrics.jsonl") == without_times(tmp_path / "killed/metrics.jsonl")
    assert (tmp_path / "straight/samples.jsonl").read_text() == (tmp_path / "killed/samples.jsonl").read_text()

    _, first, second = lines(tmp_path / "straight/metrics.jsonl")
    assert first["environment/tool_calls/mean"] > 1
    assert first["environment/ended_by/failed"] == 0
    # The trainer gives what the policy wrote the probabilities with which it was drawn, answers in between or not.
    assert first["training/rollout_probs_diff_max"] < 1e-4
    assert second["val-aux/word-problems/tool_calls/mean"] > 1
    samples, complaints = read_samples(tmp_path / "straight")
    assert complaints == ()
    called = next(sample for sample in samples if sample.record["tool_calls"])
    text = render([called], total=1, first=0, full=True)
    writer, answer = called.turns[1]
    assert writer == "environment"
    assert f"\n  > {answer}\n" in text
    assert "completion (| the policy, > the environment):" in text
    assert render([called], total=1, first=0, full=False) == text


def test_evaluations_play_with_the_environment_too(tmp_path: Path) -> None:
    from rlctl import eval_run

    settings = config.load(preset="calculator-tool", assignments=[*SMALL, "data.eval_size=8"], environ={}).settings
    prepared = eval_run.prepare(settings, limit=None)
    asyncio.run(eval_run.run(prepared, reporter=Recorder(), samples=tmp_path / "samples.jsonl", name="tiny"))
    records = lines(tmp_path / "samples.jsonl")
    assert len(records) == 8
    assert any(turn["writer"] == "environment" for record in records for turn in record["turns"])


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCTL_PLUGINS", "tests.fake_plugin,tests.environments.plugin,tests.environments.only_games")


@pytest.mark.usefixtures("plugins")
def test_what_an_environment_answered_is_not_trained_on(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = runs.prepared(
        tiny_llama, data, "environment.name=plugged", "rollout.max_response_length=400", "trainer.steps=2",
        "data.max_prompt_length=80",
    )  # fmt: skip
    assert [reward.name for reward in ready.rewards.rewards] == ["environment"]
    outcome, backend = runs.run(ready, tmp_path / "run")
    rows = [row for row in backend.trained if row.policy_mask is not None]
    assert rows
    for row in rows:
        theirs = ready.tokenizer.decode(row.completion_ids[~row.policy_mask])
        assert theirs.startswith("\nuser: you said ")
        # Of what the policy wrote, nothing is in its turns that the template writes.
        assert "you said" not in ready.tokenizer.decode(row.completion_ids[row.policy_mask])
    assert outcome.metrics[0]["environment/metrics/seen/mean"] > 1


@pytest.mark.usefixtures("plugins")
def test_a_backend_that_knows_no_masks_is_refused_before_the_run(tiny_llama: Path, data: Path) -> None:
    ready = runs.prepared(tiny_llama, data, "environment.name=plugged", "backend=deaf", "data.max_prompt_length=80")
    with pytest.raises(ConfigError, match=r"backend 'deaf' cannot leave the environment's tokens out of the loss"):
        loop.backend_for(ready)
    alone = runs.prepared(tiny_llama, data, "backend=deaf", "data.max_prompt_length=80")
    assert loop.backend_for(alone)


def test_the_platform_that_takes_texts_is_refused() -> None:
    assert not backends.get("arctic").load("backend").plays_episodes


@pytest.mark.usefixtures("plugins")
def test_environments_of_plugins_are_found_and_hurt_no_backend() -> None:
    assert {"calculator", "verifiers", "plugged", "only-game"} <= set(registry.names())
    assert [record.name for record in backends.plugins() if record.error and "environments" in record.origin] == []
    found = registry.load(EnvironmentSettings(name="only-game"))
    assert found is not None
    assert found.name == "only-game"


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("calculater", {}, r"environment\.name = 'calculater': there is no such environment\. Did you mean calculator"),
        ("calculator", {"decimal": 2}, r"'calculator' cannot be made with decimal: TypeError: .*'decimal'"),
        ("calculator", {"decimals": -1}, r"ValueError: decimals = -1 must be a whole number"),
        ("no.such:Thing", {}, r"[Ee]nvironment 'no\.such:Thing' needs module 'no\.such'"),
        ("tests.environments.games:Nobody", {}, r"has no 'Nobody'"),
        ("tests.environments.games:NotQuite", {}, r"(?s)has no method step.*grades = 'yes' must be true or false"),
        ("tests.environments.games:NotQuite", {}, r"stop = '=' must be a list of texts"),
        ("tests.environments.games:TYPES", {}, r"has no 'TYPES'"),
        ("json:__name__", {}, r"'json:__name__' is a str, not a class"),
    ],
)
def test_a_name_or_option_that_does_not_fit_is_told(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        registry.load(EnvironmentSettings(name=name, options=options))


def test_a_taken_name_and_a_crooked_reference_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'calculator' is taken \(built-in\); module tests\.environments\.test_runs"):
        registry.register("calculator", environment="a:B")
    with pytest.raises(ConfigError, match=r"'mine' is registered as 'a\.B'"):
        registry.register("mine", environment="a.B")


def test_a_custom_class_is_taken_by_its_name_and_closed(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    options = json.dumps({"how": "raises", "only": "nobody"})
    ready = calculating(
        "environment.name=tests.environments.games:Faulty", f"environment.options={options}", "trainer.steps=1",
        "trainer.eval_freq=0",
    )  # fmt: skip
    train(ready, tmp_path / "run")
    environment = ready.player.environment.environment if ready.player else None
    assert environment.release.is_set()
    assert lines(tmp_path / "run/metrics.jsonl")[-1]["score/mean"] == 1.0
