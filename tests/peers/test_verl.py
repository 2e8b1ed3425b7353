"""verl's settings become rlctl's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlctl.config import load
from rlctl.grpo import learning_rate
from rlctl.peers import writing
from rlctl.peers.findings import Effect, Group
from tests.peers.translating import finding, translated, verl

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."


@pytest.mark.parametrize(
    ("overrides", "settings"),
    [
        (
            ["data.train_batch_size=64", f"{ACTOR}ppo_mini_batch_size=16"],
            {"trainer.train_batch_size": 64, "trainer.mini_batch_size": 16},
        ),
        (
            [f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_coef=0.01", f"{ACTOR}kl_loss_type=mse"],
            {"algorithm.kl_coef": 0.01, "algorithm.kl_estimator": "k2"},
        ),
        ([f"{ACTOR}kl_loss_coef=0.01"], {"algorithm.kl_coef": None}),
        ([f"{ACTOR}clip_ratio_high=0.28"], {"algorithm.clip_ratio_high": 0.28, "algorithm.clip_ratio_low": None}),
        ([f"{ACTOR}loss_agg_mode=seq-mean-token-sum"], {"algorithm.loss_agg_mode": "seq-mean-token-sum"}),
        (["algorithm.norm_adv_by_std_in_grpo=False"], {"algorithm.norm_adv_by_std": False}),
        (["algorithm.adv_estimator=rloo"], {"algorithm.adv_estimator": "rloo"}),
        (
            [f"{ACTOR}policy_loss.loss_mode=sapo", f"{ACTOR}tau_neg=1.2"],
            {"algorithm.policy_loss": "sapo", "algorithm.tau_neg": 1.2, "algorithm.tau_pos": None},
        ),
        ([f"{ACTOR}policy_loss.loss_mode=geo_mean"], {"algorithm.policy_loss": "gmpo"}),
        (
            [f"{ACTOR}policy_loss.loss_mode=kl_cov"],
            {"algorithm.policy_loss": "kl_cov", "algorithm.ppo_kl_coef": 0.1},
        ),
        (
            [f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_type=low_var_kl+"],
            {"algorithm.kl_coef": 0.001, "algorithm.kl_estimator": "k3+"},
        ),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.02", "algorithm.kl_penalty=low_var_kl"],
            {"algorithm.use_kl_in_reward": True, "algorithm.kl_coef": 0.02, "algorithm.kl_penalty": "k3"},
        ),
        (
            ["algorithm.use_kl_in_reward=True", f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_coef=0.03"],
            {
                "algorithm.use_kl_in_reward": True,
                "algorithm.kl_coef": 0.001,
                "algorithm.kl_loss_coef": 0.03,
                "algorithm.kl_estimator": None,
            },
        ),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=5000"],
            {"algorithm.kl_target": 0.1, "algorithm.kl_horizon": 5000, "algorithm.kl_loss_coef": None},
        ),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.target_kl=0.2"],
            {"algorithm.kl_target": None, "algorithm.kl_horizon": None},
        ),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0", f"{ACTOR}use_kl_loss=True"],
            {"algorithm.use_kl_in_reward": None, "algorithm.kl_coef": 0.001},
        ),
        (
            ["algorithm.rollout_correction.rollout_is=sequence", "algorithm.rollout_correction.rollout_is_threshold=5"],
            {"algorithm.rollout_is": "sequence", "algorithm.rollout_is_threshold": 5},
        ),
        (
            [
                "algorithm.rollout_correction.rollout_is=token",
                "algorithm.rollout_correction.rollout_is_threshold='0.5_5.0'",
            ],
            {
                "algorithm.rollout_is_mode": "mask",
                "algorithm.rollout_is_lower": 0.5,
                "algorithm.rollout_is_threshold": 5.0,
            },
        ),
        ([f"{ACTOR}tis_imp_ratio_cap=3"], {"algorithm.rollout_is": "token", "algorithm.rollout_is_threshold": 3}),
        (
            ["reward_model.overlong_buffer.enable=True", "reward_model.overlong_buffer.len=128"],
            {"reward.overlong_buffer_len": 128},
        ),
        ([f"{ROLLOUT}top_p=0.9"], {"rollout.top_p": 0.9, "rollout.allow_biased_sampling": True}),
        ([f"{ROLLOUT}val_kwargs.do_sample=True", f"{ROLLOUT}val_kwargs.temperature=0.6"], {"eval.temperature": 0.6}),
        ([f"{ACTOR}optim.lr_scheduler_type=cosine"], {"trainer.lr_schedule": "cosine"}),
        ([f"{ACTOR}optim.lr_warmup_steps_ratio=0.05"], {"trainer.warmup_ratio": 0.05}),
        (["trainer.save_freq=-1", "trainer.test_freq=-1"], {"trainer.save_freq": 0, "trainer.eval_freq": 0}),
        (["trainer.resume_mode=disable"], {"run.resume": "never"}),
        (["data.train_files=[a/train.parquet,b/train.parquet]"], {"data.path": None}),
        (
            ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.max_num_gen_batches=10"],
            {"algorithm.filter_groups": True, "algorithm.max_refills": 9},
        ),
        (
            [f"{ACTOR}use_dynamic_bsz=True", f"{ACTOR}ppo_max_token_len_per_gpu=9000"],
            {"trainer.max_tokens_per_device": 9000},
        ),
        (
            ["actor_rollout_ref.model.lora_rank=32", "actor_rollout_ref.model.target_modules=[q_proj,v_proj]"],
            {"model.lora.rank": 32, "model.lora.alpha": 16, "model.lora.target_modules": ["q_proj", "v_proj"]},
        ),
    ],
)
def test_settings_of_verl(tmp_path: Path, overrides: list[str], settings: dict[str, Any]) -> None:
    made = verl(tmp_path, *overrides).settings
    assert {name: made.get(name) for name in settings} == settings


def test_defaults_of_verl_hold_where_the_command_is_silent(tmp_path: Path) -> None:
    made = verl(tmp_path).settings
    # 1024 prompts a step, 256 an update; the other defaults are rlctl's own or off.
    assert made == {
        "algorithm.drop_zero_signal_groups": False,
        "local.gradient_checkpointing": True,
        "rollout.max_response_length": 512,
        "data.max_prompt_length": 512,
        "trainer.train_batch_size": 1024,
        "trainer.mini_batch_size": 256,
        "trainer.epochs": 30,
        "trainer.save_freq": 0,
        "trainer.eval_freq": 0,
    }


@pytest.mark.parametrize("total", [3, 7, 10, 1005])
def test_warm_up_in_steps_is_that_many_steps(tmp_path: Path, total: int) -> None:
    for steps in {1, 2, total // 2, total - 1}:
        made = verl(tmp_path, f"{ACTOR}optim.lr_warmup_steps={steps}", f"trainer.total_training_steps={total}").settings
        ratio = made["trainer.warmup_ratio"]
        rates = [
            learning_rate(step, peak=1.0, schedule="cosine", warmup_ratio=ratio, total_steps=total)
            for step in range(1, total + 1)
        ]
        assert rates.index(1.0) + 1 == steps


def test_several_files_become_sources_that_load(tmp_path: Path) -> None:
    made = verl(tmp_path, "data.train_files=['/d/gsm8k/train.parquet','/d/math/train.parquet']")
    assert [source["path"] for source in made.settings["data.sources"]] == [
        "/d/gsm8k/train.parquet",
        "/d/math/train.parquet",
    ]
    file = tmp_path / "made.toml"
    file.write_text(writing.toml(made), encoding="utf-8")
    sources = load(config=str(file), environ={}).settings.data.sources
    assert [source.name for source in sources] == ["1-gsm8k-train", "2-math-train"]


@pytest.mark.parametrize(
    ("override", "group"),
    [
        ("algorithm.use_kl_in_reward=True", Group.EXACT),
        ("algorithm.adv_estimator=gae", Group.MISSING),
        ("algorithm.adv_estimator=gpg", Group.MEANING),
        (f"{ACTOR}policy_loss.loss_mode=gspo", Group.EXACT),
        (f"{ACTOR}policy_loss.loss_mode=dppo_tv", Group.MISSING),
        (f"{ROLLOUT}multi_turn.enable=True", Group.MISSING),
        (f"{ACTOR}kl_loss_type=abs", Group.EXACT),
        ("custom_reward_function.path=reward.py", Group.MISSING),
        ("algorithm.rollout_correction.rollout_is=token", Group.EXACT),
        ("algorithm.rollout_correction.rollout_rs=token_k1", Group.MISSING),
        (f"{ACTOR}ppo_mini_batch_size=2048", Group.INVALID),
        (f"{ACTOR}clip_ratio=0.1", Group.INVALID),
        ("trainer.total_epochs=many", Group.INVALID),
        ("actor_rollout_ref.model.path=$BASE", Group.UNRESOLVED),
        (f"{ACTOR}optim.lr_warmup_steps=10", Group.MISSING),
        ("actor_rollout_ref.optim.lr=1e-5", Group.UNKNOWN),
        ("+my.own=1", Group.UNKNOWN),
        ("~trainer.logger", Group.MISSING),
    ],
)
def test_groups_of_findings(tmp_path: Path, override: str, group: Group) -> None:
    key = override.lstrip("+~").partition("=")[0]
    found = finding(verl(tmp_path, override), key)
    assert found.group is group
    assert found.effect is (Effect.NONE if group is Group.EXACT else Effect.RESULT)


def test_unknown_keys_say_what_hydra_does_and_what_is_near(tmp_path: Path) -> None:
    slip = finding(verl(tmp_path, "actor_rollout_ref.optim.lr=1e-5"), "actor_rollout_ref.optim.lr").text
    assert "hydra refuses it without a +" in slip
    assert "Did you mean actor_rollout_ref.actor.optim.lr?" in slip
    assert "added by hand (+)" in finding(verl(tmp_path, "+my.own=1"), "my.own").text


def test_a_mini_batch_that_does_not_divide_is_told_with_what_is_done(tmp_path: Path) -> None:
    made = verl(tmp_path, "data.train_batch_size=10", f"{ACTOR}ppo_mini_batch_size=4")
    found = finding(made, "data.train_batch_size")
    assert (found.group, found.effect) == (Group.MEANING, Effect.RESULT)
    assert made.settings["trainer.train_batch_size"] == 10
    assert "trainer.mini_batch_size" not in made.settings


@pytest.mark.parametrize("n", [["actor_rollout_ref.rollout.n=1"], []])
def test_a_group_of_one_is_not_replaced_by_another_size(tmp_path: Path, n: list[str]) -> None:
    words = ["python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "data.train_batch_size=8", *n]
    made = translated(tmp_path, "\n".join(words), "run.argv.txt")
    assert "rollout.n" not in made.settings
    assert any("a group of 1" in found.text and found.effect is Effect.RESULT for found in made.findings)


def test_another_estimator_is_told_given_or_by_default(tmp_path: Path) -> None:
    words = ["python3", "-m", "verl.trainer.main_ppo", "data.train_batch_size=8", "trainer.nnodes=1"]
    silent = translated(tmp_path, "\n".join(words), "run.argv.txt")
    assert any("gae (verl's default" in found.text for found in silent.findings)
    gae = finding(verl(tmp_path, "algorithm.adv_estimator=gae"), "algorithm.adv_estimator")
    assert (gae.group, gae.effect) == (Group.MISSING, Effect.RESULT)


def test_yaml_with_references_of_omegaconf_is_resolved(tmp_path: Path) -> None:
    text = """
algorithm: {adv_estimator: grpo}
data: {max_prompt_length: 300, train_batch_size: 64}
actor_rollout_ref:
  rollout: {n: 4, prompt_length: "${data.max_prompt_length}"}
  actor: {ppo_mini_batch_size: "${data.train_batch_size}"}
"""
    made = translated(tmp_path, text)
    assert made.peer == "verl"
    assert made.settings["trainer.train_batch_size"] == 64
    assert "trainer.mini_batch_size" not in made.settings
    assert made.settings["data.max_prompt_length"] == 300
