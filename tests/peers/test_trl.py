"""TRL's settings become rlctl's, with sizes in prompts and every default that differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlctl.config import load
from rlctl.peers import writing
from rlctl.peers.findings import Effect, Group
from tests.peers.translating import finding, translated

BASE = "num_generations: 8\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 6\n"


def trl(tmp_path: Path, text: str, **options: Any) -> Any:
    return translated(tmp_path, text, **{"devices": 4, "peer": "trl", **options})


# 4 a device x 4 devices = 16 completions a forward pass; 8 a prompt. x 6 accumulated = 96 an update = 12 prompts.
@pytest.mark.parametrize(
    ("more", "batch", "mini"),
    [
        ("", 12, None),
        ("steps_per_generation: 6\n", 12, None),
        ("steps_per_generation: 12\n", 24, 12),
        ("generation_batch_size: 192\n", 24, 12),
        ("steps_per_generation: 1\n", 12, None),  # an update over six generations of one policy
    ],
)
def test_batches_are_counted_in_prompts(tmp_path: Path, more: str, batch: int, mini: int | None) -> None:
    settings = trl(tmp_path, BASE + more).settings
    assert settings["trainer.train_batch_size"] == batch
    assert settings.get("trainer.mini_batch_size") == mini


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BASE + "steps_per_generation: 6\ngeneration_batch_size: 96\n", "TRL refuses steps_per_generation beside"),
        (BASE + "generation_batch_size: 100\n", "no multiple of 4 x 4 devices"),
        ("num_generations: 5\nper_device_train_batch_size: 4\n", "3.2 prompts, no whole number of groups"),
        ("num_generations: 8\nper_device_train_batch_size: four\n", "whole numbers of at least 1"),
    ],
)
def test_batches_that_trl_refuses_are_told(tmp_path: Path, text: str, said: str) -> None:
    made = trl(tmp_path, text)
    found = finding(made, "per_device_train_batch_size")
    assert found.group is Group.INVALID
    assert said in found.text
    assert "trainer.train_batch_size" not in made.settings


def test_without_the_number_of_devices_no_batch_is_guessed(tmp_path: Path) -> None:
    made = trl(tmp_path, BASE, devices=None)
    found = finding(made, "per_device_train_batch_size")
    assert (found.group, found.effect) == (Group.UNRESOLVED, Effect.RESULT)
    assert "--num-devices" in found.text
    assert not {"trainer.train_batch_size", "trainer.mini_batch_size"} & made.settings.keys()
    global_size = trl(tmp_path, BASE + "generation_batch_size: 96\n", devices=None)
    assert global_size.settings["trainer.train_batch_size"] == 96 // 8


def test_an_update_within_a_group_is_not_made_up(tmp_path: Path) -> None:
    # 1 x 1 device x 4 accumulated = 4 completions an update, half of a group of 8.
    sizes = "per_device_train_batch_size: 1\ngradient_accumulation_steps: 4\ngeneration_batch_size: 16\n"
    made = trl(tmp_path, "num_generations: 8\n" + sizes, devices=1)
    found = finding(made, "generation_batch_size")
    assert (found.group, found.effect) == (Group.MEANING, Effect.RESULT)
    assert "0.5 prompts" in found.text
    assert made.settings["trainer.train_batch_size"] == 2


def test_updates_become_steps(tmp_path: Path) -> None:
    # Two updates a generation, each generation passed over three times: 6 of TRL's steps are one of rlctl's.
    text = BASE + "steps_per_generation: 12\nnum_iterations: 3\nmax_steps: 100\nsave_steps: 60\neval_strategy: steps\n"
    made = trl(tmp_path, text + "eval_steps: 30\n")
    assert made.settings["trainer.ppo_epochs"] == 3
    assert made.settings["trainer.steps"] == 17  # 100 / 6, rounded up
    assert (made.settings["trainer.save_freq"], made.settings["trainer.eval_freq"]) == (10, 5)
    assert finding(made, "max_steps").group is Group.MEANING


def test_defaults_of_trl_are_written_out_where_rlctl_has_others(tmp_path: Path) -> None:
    made = trl(tmp_path, BASE + "dataset_name: open-r1/x\n")
    wanted = {
        "algorithm.clip_ratio_c": None,
        "algorithm.drop_zero_signal_groups": False,
        "data.question_key": "prompt",
        "data.subset": None,
        "trainer.epochs": 3,
        "trainer.eval_freq": 0,
        "trainer.lr_schedule": "linear",
        "trainer.weight_decay": 0.0,
        "rollout.max_response_length": 512,
        "trainer.save_freq": 500,
        "local.gradient_checkpointing": True,
        "seed": 42,
    }
    assert {name: made.settings.get(name, "absent") for name in wanted} == wanted


def test_the_version_is_the_newest_that_knows_the_settings(tmp_path: Path) -> None:
    newest = trl(tmp_path, BASE)
    older = trl(tmp_path, BASE + "max_prompt_length: 300\n")
    assert (newest.version, older.version) == ("1.16.0", "0.18.0")
    assert "algorithm.kl_coef" not in newest.settings
    assert older.settings["algorithm.kl_coef"] == 0.04  # the default of 0.18
    assert any("--peer-version 1.16.0 has other defaults" in note and "beta = 0.0" in note for note in older.notes)
    assert trl(tmp_path, BASE, version="0.18.0").settings["rollout.max_response_length"] == 256


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("loss_type: grpo\n", {"algorithm.loss_agg_mode": "seq-mean-token-mean"}),
        (
            "loss_type: dr_grpo\nscale_rewards: false\n",
            {"algorithm.loss_agg_mode": "seq-mean-token-sum-norm", "algorithm.norm_adv_by_std": False},
        ),
        ("importance_sampling_level: sequence\n", {"algorithm.importance_sampling": "sequence"}),
        ("mask_truncated_completions: true\n", {"algorithm.mask_truncated_completions": True}),
        ("multi_objective_aggregation: normalize_then_sum\n", {"algorithm.adv_estimator": "gdpo"}),
        (
            "loss_type: sapo\nsapo_temperature_neg: 1.2\n",
            {"algorithm.policy_loss": "sapo", "algorithm.tau_neg": 1.2, "algorithm.clip_ratio_low": None},
        ),
        (
            "loss_type: cispo\nepsilon_high: 5.0\n",
            {"algorithm.policy_loss": "cispo", "algorithm.clip_ratio_high": 4.0, "algorithm.clip_ratio_low": 0.999},
        ),
        (
            "use_vllm: true\n",
            {
                "algorithm.rollout_is": "sequence",
                "algorithm.rollout_is_mode": "mask",
                "algorithm.rollout_is_threshold": 3.0,
                "algorithm.rollout_is_lower": 0.0,
            },
        ),
        (
            "use_vllm: true\nvllm_importance_sampling_mode: token_truncate\nvllm_importance_sampling_clip_max: 2.5\n",
            {"algorithm.rollout_is": "token", "algorithm.rollout_is_threshold": 2.5},
        ),
        ("epsilon: 0.1\n", {"algorithm.clip_ratio_low": 0.1, "algorithm.clip_ratio_high": 0.1}),
        ("epsilon: 0.1\nepsilon_high: 0.28\n", {"algorithm.clip_ratio_low": 0.1, "algorithm.clip_ratio_high": 0.28}),
        ("delta: 4.0\n", {"algorithm.clip_ratio_c": 4.0}),
        ("adam_beta2: 0.95\n", {"trainer.betas": [0.9, 0.95]}),
        ("top_k: 50\n", {"rollout.top_k": 50, "rollout.allow_biased_sampling": True}),
        ("lr_scheduler_type: constant_with_warmup\nwarmup_ratio: 0.1\n", {"trainer.warmup_ratio": 0.1}),
        ("warmup_steps: 10\nmax_steps: 100\n", {"trainer.warmup_ratio": 0.1}),
        ("warmup_steps: 0.2\n", {"trainer.warmup_ratio": 0.2}),
        ("save_strategy: 'no'\n", {"trainer.save_freq": 0}),
        (
            "use_peft: true\nlora_r: 8\nlora_target_modules: [q_proj]\n",
            {"model.lora.rank": 8, "model.lora.target_modules": ["q_proj"]},
        ),
        ("dataset_name: rows.jsonl\n", {"data.path": "rows.jsonl"}),
        ("eval_strategy: steps\ntemperature: 0.7\n", {"eval.temperature": 0.7, "eval.n": 8}),
    ],
)
def test_settings_of_trl(tmp_path: Path, text: str, settings: dict[str, Any]) -> None:
    made = trl(tmp_path, BASE + text).settings
    assert {name: made.get(name) for name in settings} == settings


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("scale_rewards: batch\n", "scale_rewards"),
        ("loss_type: vespo\n", "loss_type"),
        ("loss_type: cispo\n", "loss_type"),
        ("importance_sampling_level: sequence_token\n", "importance_sampling_level"),
        ("reward_funcs: [accuracy]\n", "reward_funcs"),
        ("lr_scheduler_type: polynomial\n", "lr_scheduler_type"),
        ("num_train_epochs: 0.5\n", "num_train_epochs"),
        ("warmup_steps: 10\n", "warmup_steps"),
        ("optim: adamw_8bit\n", "optim"),
    ],
)
def test_what_rlctl_lacks_is_said_to_change_the_result(tmp_path: Path, text: str, key: str) -> None:
    found = finding(trl(tmp_path, BASE + text), key)
    assert (found.group, found.effect) == (Group.MISSING, Effect.RESULT)
    assert not found.settings


@pytest.mark.parametrize("value", ["nan", ".inf", "1e999", "-1e999", "9" * 400, "null", "[1]", "{a: 1}", "''"])
@pytest.mark.parametrize("key", ["num_generations", "max_steps", "warmup_steps", "beta", "learning_rate", "top_p"])
def test_hostile_numbers_leave_a_file_that_loads(tmp_path: Path, key: str, value: str) -> None:
    made = trl(tmp_path, BASE.replace("num_generations: 8\n", "") + f"{key}: {value}\n")
    file = tmp_path / "made.toml"
    file.write_text(writing.toml(made), encoding="utf-8")
    load(config=str(file), environ={})
    assert any(key in one or one.startswith(f"{key}.") for found in made.findings for one in found.keys)


def test_numbers_in_quotes_are_numbers(tmp_path: Path) -> None:
    assert trl(tmp_path, BASE + "learning_rate: '5e-7'\n").settings["trainer.lr"] == 5e-7


def test_a_warm_up_that_transformers_ignores_is_not_translated(tmp_path: Path) -> None:
    made = trl(tmp_path, BASE + "lr_scheduler_type: constant\nwarmup_ratio: 0.1\n")
    assert "trainer.warmup_ratio" not in made.settings
    assert "no warm-up" in finding(made, "warmup_ratio").text


def test_corrections_on_by_default_are_told_though_the_file_is_silent(tmp_path: Path) -> None:
    made = trl(tmp_path, BASE + "use_vllm: true\n")
    assert any("trainer/sampler probabilities" in found.text and not found.keys for found in made.findings)
    silent = trl(tmp_path, BASE + "use_vllm: false\n")
    assert not any("trainer/sampler probabilities" in found.text for found in silent.findings)


def test_unknown_keys_get_the_nearest(tmp_path: Path) -> None:
    found = finding(trl(tmp_path, BASE + "learning_rte: 1e-5\n"), "learning_rte")
    assert found.group is Group.UNKNOWN
    assert "Did you mean learning_rate?" in found.text
    assert found.place == "line 4"


@pytest.mark.parametrize(
    ("value", "said"), [("fast", "wants a number"), ("-1", "greater than 0"), ("010", "wants a number")]
)
def test_values_that_rlctl_refuses_leave_a_file_that_loads(tmp_path: Path, value: str, said: str) -> None:
    made = trl(tmp_path, BASE + f"learning_rate: {value}\n")
    found = finding(made, "learning_rate")
    assert (found.group, found.effect) == (Group.INVALID, Effect.RESULT)
    assert said in found.text
    assert "trainer.lr" not in made.settings
