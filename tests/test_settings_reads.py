"""Settings that a run set and nothing read: found, explained where the reason is known, never a false alarm."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from rlctl.config import dump, load
from rlctl.settings import Settings
from rlctl.settings_reads import Reads, Unread, unread, worth_telling
from rlctl.smoke_run import run_here
from tests.tiny import save_tiny_llama


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCTL_PLUGINS", "tests.fake_plugin,tests.secret_plugin")


def watched(*assignments: str) -> tuple[Settings, Settings, Reads]:
    loaded, reads = load(preset="smoke", assignments=assignments), Reads()
    return loaded.settings, reads.watch(loaded.settings), reads


def names(found: list[Unread]) -> set[str]:
    return {setting.name for setting in found}


def test_what_is_asked_for_is_read_and_nothing_else() -> None:
    _, settings, reads = watched()
    assert settings.trainer.lr == 5e-4
    assert reads.names == {"trainer", "trainer.lr"}


def test_dumping_comparing_and_copying_read_nothing() -> None:
    plain, settings, reads = watched("data.sources=[]")
    assert dump(settings) == dump(plain)
    assert settings == plain
    assert plain == settings
    assert copy.deepcopy(settings) == plain
    assert settings.model_copy() == plain
    assert reads.names == set()


def test_watched_settings_are_frozen_and_of_their_own_class() -> None:
    plain, settings, _ = watched()
    assert isinstance(settings.trainer, type(plain.trainer))
    with pytest.raises(ValueError, match="frozen"):
        settings.trainer.lr = 1.0


def test_a_pickled_table_arrives_plain_and_its_settings_are_excused() -> None:
    plain, settings, reads = watched("local.kv_cache_gb=2")
    arrived = pickle.loads(pickle.dumps(settings.local))
    assert type(arrived) is type(plain.local)
    assert arrived == plain.local
    (found,) = [each for each in unread(plain, reads, {}) if each.name == "local.kv_cache_gb"]
    assert "another process" in found.why


def test_a_table_that_is_asked_for_as_a_whole_is_read() -> None:
    plain, settings, reads = watched("reward.gsm8k.allow_last_number=true")
    assert settings.reward.blocks()["gsm8k"] == {"allow_last_number": True}
    assert "reward.gsm8k.allow_last_number" not in names(unread(plain, reads, {}))


def test_settings_of_a_list_of_tables_are_told_apart() -> None:
    tables = '[{"source": "generated:word-problems"}, {"source": "generated:word-problems", "name": "b"}]'
    plain, settings, reads = watched(f"data.sources={tables}", "data.source=openai/gsm8k", "data.prompt_suffix=")
    assert settings.data.sources[0].source == "generated:word-problems"
    assert {"data.sources[2].source", "data.sources[2].name"} <= names(unread(plain, reads, {}))
    assert "data.sources[1].source" not in names(unread(plain, reads, {}))


@pytest.mark.parametrize(
    ("assignment", "why"),
    [
        ("trainer.eval_freq=3", "a smoke run evaluates nothing"),
        ("run.dir=x", "a smoke run writes no files"),
        ("model.lora.alpha=2", "model.lora.rank is 0"),
        ("reward.sql.timeout_s=3", "reward.functions does not name sql"),
        ("remote_backend.ray.trainer_ranks=2", "the run is on backend local"),
    ],
)
def test_what_another_choice_leaves_unread_is_told_with_that_choice(assignment: str, why: str) -> None:
    loaded = load(preset="smoke", assignments=[assignment])
    name = assignment.split("=")[0]
    (found,) = [each for each in unread(loaded.settings, Reads(), loaded.origins) if each.name == name]
    assert why in found.line()
    assert f"(from --set {name})" in found.line()
    assert found in worth_telling([found])


def test_a_secret_is_never_shown() -> None:
    loaded = load(preset="smoke", assignments=["remote_backend.secretive.token=s3cr3t-xyz-1"])
    lines = [setting.line() for setting in unread(loaded.settings, Reads(), loaded.origins)]
    assert any("remote_backend.secretive.token = ***" in line for line in lines)
    assert "s3cr3t" not in str(lines)


SQL = ["data.source=generated:text-to-sql", "data.max_prompt_length=8000"]
MATH = ["data.max_prompt_length=500", "data.source=generated:word-problems"]
SMALL = ["backend=fake", "data.eval_size=4", "rollout.n=2", "rollout.max_response_length=4", "trainer.steps=1"]


@pytest.mark.parametrize(
    ("preset", "variant", "where"),
    [
        ("smoke", None, MATH), ("gsm8k-grpo", "gpu", MATH), ("gsm8k-grpo", "embedded", MATH),
        ("gsm8k-grpo", "cpu", MATH), ("calculator-tool", None, MATH),
        ("bird-grpo", "gpu", SQL), ("bird-grpo", "embedded", SQL), ("bird-grpo", "cpu", SQL),
    ],
)  # fmt: skip
def test_no_preset_sets_what_a_run_does_not_read(
    tmp_path: Path, preset: str, variant: str | None, where: list[str]
) -> None:
    save_tiny_llama(tmp_path, max_position_embeddings=9000)
    where, size = [*where, f"model.path={tmp_path}"], "trainer.train_batch_size=2"
    loaded = load(preset=preset, variant=variant, assignments=[*where, *SMALL, size, "reward.check=false"])
    assert list(run_here(loaded, measured=False).unread) == []


def test_a_setting_without_a_use_is_told_at_the_end_of_a_run() -> None:
    loaded = load(
        preset="smoke", assignments=[*SMALL, "trainer.train_batch_size=2", "data.subset=algebra", "local.compile=true"]
    )
    lines = list(run_here(loaded, measured=False).unread)
    assert lines == [
        'data.subset = "algebra" (from --set data.subset) was not read in this run',
        "local.compile = true (from --set local.compile) was not read in this run: the run is on backend fake",
    ]
