"""OpenRLHF's options, dotted and flat, become rlctl's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlctl.peers.findings import Effect, Group
from tests.peers.translating import finding, openrlhf, translated

SIZES = ["--rollout.batch_size", "128", "--rollout.n_samples_per_prompt", "8", "--train.batch_size"]


@pytest.mark.parametrize(("samples", "mini"), [("1024", None), ("128", 16), ("512", 64), ("8", 1)])
def test_training_batches_count_samples(tmp_path: Path, samples: str, mini: int | None) -> None:
    settings = openrlhf(tmp_path, *SIZES, samples).settings
    assert settings["trainer.train_batch_size"] == 128
    assert settings.get("trainer.mini_batch_size") == mini


@pytest.mark.parametrize(
    ("samples", "group", "said"),
    [
        ("2048", Group.INVALID, "more than the 128 x 8"),
        ("100", Group.MEANING, "12.5 prompts"),
        ("0", Group.INVALID, "at least 1"),
    ],
)
def test_training_batches_that_do_not_fit_are_told(tmp_path: Path, samples: str, group: Group, said: str) -> None:
    found = finding(openrlhf(tmp_path, *SIZES, samples), "train.batch_size")
    assert (found.group, found.effect) == (group, Effect.RESULT)
    assert said in found.text


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (
            ["--algo.kl.use_loss", "--algo.kl.estimator", "k3", "--algo.kl.init_coef", "1e-3"],
            {"algorithm.kl_coef": 1e-3},
        ),
        (["--algo.kl.init_coef", "0"], {"algorithm.kl_coef": None}),
        (["--algo.kl.target", "0.05"], {"algorithm.kl_target": 0.05, "algorithm.use_kl_in_reward": True}),
        (["--algo.kl.target", "0.05", "--algo.kl.use_loss"], {"algorithm.kl_target": None}),
        (["--algo.advantage.estimator", "rloo"], {"algorithm.adv_estimator": "rloo"}),
        (
            ["--algo.advantage.estimator", "reinforce_baseline", "--algo.kl.init_coef", "1e-4"],
            {
                "algorithm.adv_estimator": "reinforce_plus_plus_baseline",
                "algorithm.use_kl_in_reward": True,
                "algorithm.kl_coef": 1e-4,
            },
        ),
        (
            ["--reward.overlong_buffer_len", "128", "--reward.overlong_penalty_factor", "0.5"],
            {"reward.overlong_buffer_len": 128, "reward.overlong_penalty_factor": 0.5},
        ),
        (["--actor.eps_clip", "0.1"], {"algorithm.clip_ratio_low": 0.1, "algorithm.clip_ratio_high": 0.1}),
        (
            ["--actor.eps_clip_low_high", "0.2", "0.27"],
            {"algorithm.clip_ratio_low": None, "algorithm.clip_ratio_high": 0.27},
        ),
        (
            ["--data.max_len", "5000", "--rollout.max_new_tokens", "4000"],
            {"data.max_prompt_length": 1000, "rollout.max_response_length": 4000},
        ),
        (["--actor.lr_scheduler", "constant"], {"trainer.lr_schedule": None, "trainer.warmup_ratio": None}),
        (["--actor.lr_scheduler", "constant_with_warmup"], {"trainer.warmup_ratio": 0.03}),
        (
            ["--data.prompt_dataset", "x.jsonl", "--data.input_key", "q", "--data.label_key", "a"],
            {"data.path": "x.jsonl", "data.question_key": "q", "data.answer_key": "a", "data.prompt_format": "text"},
        ),
        (
            ["--algo.dynamic_filtering_enable"],
            {"algorithm.filter_groups": True, "algorithm.drop_zero_signal_groups": None},
        ),
        (
            [],
            {
                "algorithm.clip_ratio_c": None,
                "trainer.betas": [0.9, 0.95],
                "trainer.weight_decay": 0.0,
                "eval.n": 4,
                "seed": 42,
            },
        ),
    ],
)
def test_settings_of_openrlhf(tmp_path: Path, arguments: list[str], settings: dict[str, Any]) -> None:
    made = openrlhf(tmp_path, *SIZES, "1024", *arguments).settings
    assert {name: made.get(name) for name in settings} == settings


def test_flat_options_are_those_of_the_older_version(tmp_path: Path) -> None:
    words = [
        "deepspeed",
        "--module",
        "openrlhf.cli.train_ppo_ray",
        "--pretrain",
        "m",
        "--advantage_estimator",
        "group_norm",
        "--n_samples_per_prompt",
        "4",
        "--rollout_batch_size",
        "16",
        "--train-batch-size",
        "32",
        "--prompt_max_len",
        "300",
        "--generate_max_len",
        "700",
        "--init_kl_coef",
        "0",
        "--actor_learning_rate",
        "5e-7",
    ]
    made = translated(tmp_path, "\n".join(words), "run.argv.txt")
    assert (made.peer, made.version) == ("OpenRLHF", "0.8.11")
    wanted = {
        "model.path": "m",
        "rollout.n": 4,
        "trainer.train_batch_size": 16,
        "trainer.mini_batch_size": 8,
        "data.max_prompt_length": 300,
        "rollout.max_response_length": 700,
        "trainer.lr": 5e-7,
    }
    assert {name: made.settings[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["--algo.advantage.estimator", "gae"], "algo.advantage.estimator"),
        (
            ["--algo.advantage.estimator", "reinforce", "--algo.advantage.gamma", "0.9"],
            "algo.advantage.estimator",
        ),
        (["--reward.remote_url", "reward.py"], "reward.remote_url"),
        (["--reward.normalize_enable"], "reward.normalize_enable"),
        (["--algo.advantage.is_correction_level", "seq"], "algo.advantage.is_correction_level"),
        (["--train.async_enable"], "train.async_enable"),
        (["--data.max_len", "2048"], "data.max_len"),
    ],
)
def test_what_rlctl_lacks_is_said_to_change_the_result(tmp_path: Path, arguments: list[str], key: str) -> None:
    found = finding(openrlhf(tmp_path, *SIZES, "1024", *arguments), key)
    assert (found.group, found.effect) == (Group.MISSING, Effect.RESULT)


def test_kl_in_the_reward_by_default_is_told(tmp_path: Path) -> None:
    made = openrlhf(tmp_path, *SIZES, "1024")
    assert any("taken off each token's reward, with weight 0.01" in found.text for found in made.findings)
    assert (made.settings["algorithm.kl_coef"], made.settings["algorithm.use_kl_in_reward"]) == (0.01, True)


def correcting(arguments: str) -> list[str]:
    """`level token` as --algo.advantage.is_correction_level token."""
    words = arguments.split()
    return [f"--algo.advantage.is_correction_{word}" if word in CORRECTION else word for word in words]


CORRECTION = ("level", "mode", "threshold", "gating")


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ("level token", {"_mode": "mask", "_lower": 0.5, "_threshold": 5.0}),
        ("level token threshold 3", {"_mode": "mask", "_lower": 0.0, "_threshold": 3.0}),
        ("level token mode clip threshold 0 3", {"_threshold": 3.0}),
    ],
)
def test_weights_of_tokens_are_bounded_alike(tmp_path: Path, arguments: str, settings: dict[str, Any]) -> None:
    made = openrlhf(tmp_path, *SIZES, "1024", *correcting(arguments))
    wanted = {"algorithm.rollout_is": "token"} | {f"algorithm.rollout_is{name}": v for name, v in settings.items()}
    assert {name: value for name, value in made.settings.items() if "rollout_is" in name} == wanted
    assert finding(made, "algo.advantage.is_correction_level").group is Group.EXACT


@pytest.mark.parametrize(
    ("arguments", "group", "said"),
    [
        ("level token mode clip", Group.MEANING, "also raises weights to 0.5"),
        ("level token gating tv", Group.MISSING, "by a divergence"),
        ("level token threshold much", Group.INVALID, "neither a bound nor two"),
    ],
)
def test_other_weights_change_the_result(tmp_path: Path, arguments: str, group: Group, said: str) -> None:
    found = finding(openrlhf(tmp_path, *SIZES, "1024", *correcting(arguments)), "algo.advantage.is_correction_level")
    assert (found.group, found.effect) == (group, Effect.RESULT)
    assert said in found.text
