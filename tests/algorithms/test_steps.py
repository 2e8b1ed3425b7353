"""What an algorithm makes of a whole step, against the fake backend: no tensor, no model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlctl import dumps
from rlctl.algorithms.kl_in_reward import kl_penalties
from rlctl.grpo import GrpoConfig, grpo_step, loss_denominator
from rlctl.recipe import grpo_config
from rlctl.report import step_metrics
from rlctl.rewards import Scored
from rlctl.rollouts import More
from rlctl.settings import Settings
from rlctl.step_report import Refused, StepReport
from rlctl.types import BackendInfo, KlEstimator, LogProbs, LossSpec, LossStats, Problem, TrainRow
from tests import defaults
from tests.fakes import ByteTokenizer, FakeBackend, FakeSettings

PROBLEMS = [Problem(str(i), f"problem {i}", str(i)) for i in range(4)]


class Recording(FakeBackend):
    """Keeps the rows that each update got."""

    def __init__(self) -> None:
        super().__init__(FakeSettings(), defaults.job(model=""))
        self.updates: list[list[TrainRow]] = []

    async def forward_backward(self, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        self.updates.append(list(rows))
        return await super().forward_backward(rows, loss=loss, loss_denominator=loss_denominator)


class OffPolicy(Recording):
    """Its trainer gives some tokens more, and some less, than its sampler says."""

    async def log_probs(self, rows: Sequence[TrainRow], *, reference: bool = False) -> list[LogProbs]:
        found = await super().log_probs(rows, reference=reference)
        return [v + np.sin(row.completion_ids).astype(np.float32) for v, row in zip(found, rows, strict=True)]


def config_of(**tables: dict[str, Any]) -> GrpoConfig:
    rollout = {"n": 4, "max_response_length": 8} | tables.pop("rollout", {})
    trainer = {"train_batch_size": 4} | tables.pop("trainer", {})
    return grpo_config(Settings(rollout=rollout, trainer=trainer, **tables))


def step(
    config: GrpoConfig, rewards: Sequence[float | None], *, backend: Recording | None = None, more: More | None = None
) -> StepReport:
    """A step whose i-th completion of all gets the i-th reward, over and over; the likeliest ones begin anew."""

    async def score(items: Sequence[tuple[Problem, str]]) -> list[Scored]:
        values = [rewards[i % len(rewards)] for i in range(len(items))]
        return [
            Scored(v, {}, parts=() if v is None else ((1.0, v),), failure="" if v is None else None) for v in values
        ]

    work = grpo_step(
        1,
        PROBLEMS,
        backend=backend or Recording(),
        tokenizer=ByteTokenizer(),
        score=score,
        config=config,
        lr=0.1,
        more=more,
    )
    return asyncio.run(work)


def metrics(report: StepReport) -> dict[str, Any]:
    return step_metrics(report, BackendInfo("", 1, "", None, "", 1, 1), task="task", epoch=0, seconds=1.0)


def algorithm(**changes: Any) -> GrpoConfig:
    return config_of(algorithm=changes)


def test_truncated_completions_leave_numerator_and_denominator_and_still_count_as_siblings() -> None:
    backend = Recording()
    report = step(algorithm(mask_truncated_completions=True), [1.0, 0.0], backend=backend)
    cut = [r for r in report.rollouts if r.completion.truncated]
    (rows,) = backend.updates
    assert 0 < len(cut) < 16
    assert len(rows) == 16 - len(cut) == 16 - report.masked_rows
    assert loss_denominator(rows, defaults.loss()) == sum(
        len(r.completion.token_ids) for r in report.rollouts if not r.completion.truncated
    )
    # Two of four are right in every group, whoever is left out.
    assert {round(abs(row.advantage), 4) for row in rows} == {0.866}
    assert metrics(report)["actor/masked_truncated_rows"] == len(cut)


def test_a_minibatch_of_truncated_completions_alone_takes_no_update() -> None:
    # Field fault 015: a batch whose tokens are all masked.
    config = config_of(algorithm={"mask_truncated_completions": True}, rollout={"max_response_length": 1})
    backend = Recording()
    backend.theta[256] = -1e9  # nothing ends by itself
    report = step(config, [1.0, 0.0], backend=backend)
    assert (report.empty_updates, report.masked_rows, backend.updates) == (1, 16, [])


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline", "gpg", "remax", "gdpo"])
def test_estimators_that_learn_from_flat_groups_get_them(name: str) -> None:
    backend = Recording()
    step(algorithm(adv_estimator=name), [1.0, 0.0] * 4 + [1.0] * 8, backend=backend)
    assert len(backend.updates[0]) == 16


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "grpo_passk"])
def test_others_do_not(name: str) -> None:
    backend = Recording()
    step(algorithm(adv_estimator=name), [1.0, 0.0] * 4 + [1.0] * 8, backend=backend)
    assert len(backend.updates[0]) == 8


def test_remax_samples_the_likeliest_completion_of_each_prompt_in_the_same_step() -> None:
    backend = Recording()
    # Of four likeliest ones, in order of the problems, the rewards are 0.5, 1, 0.5, 1.
    report = step(algorithm(adv_estimator="remax"), [0.5, 1.0], backend=backend)
    assert backend.calls[:2] == ["generate", "generate"]
    assert [group[0].baseline for group in report.groups] == [0.5, 1.0, 0.5, 1.0]
    assert [row.advantage for row in backend.updates[0]] == [0.0, 0.5, 0.0, 0.5, -0.5, 0.0, -0.5, 0.0] * 2
    assert len(report.rollouts) == 16
    assert metrics(report)["reward/baseline/mean"] == 0.75


def test_a_group_whose_baseline_failed_is_left_out() -> None:
    backend = Recording()
    step(algorithm(adv_estimator="remax"), [1.0, None, 0.0, 0.0], backend=backend)
    # The second problem's likeliest completion has no reward; of the others, three completions each are left.
    assert len(backend.updates[0]) == 9


def test_kl_in_the_reward_scores_first_and_leaves_the_loss_without_it() -> None:
    backend = Recording()
    backend.reference = backend.reference + np.linspace(0, 1, len(backend.reference))
    config = algorithm(use_kl_in_reward=True, kl_coef=0.1)
    report = step(config, [1.0, 0.0], backend=backend)
    assert backend.calls[:4] == ["generate", "log_probs", "reference", "forward_backward"]
    assert config.loss.kl_coef == 0
    rows = backend.updates[0]
    penalties = np.array([0.1 * (row.old_logprobs - row.ref_logprobs).sum() for row in rows])
    scores = np.array([1.0, 0.0] * 8) - penalties
    expected = [(s - g.mean()) / (g.std(ddof=1) + 1e-6) for g in scores.reshape(4, 4) for s in g]
    np.testing.assert_allclose([row.advantage for row in rows], expected, rtol=1e-5)
    shown, differences = metrics(report), [row.old_logprobs - row.ref_logprobs for row in rows]
    assert shown["reward/kl/mean"] == pytest.approx(np.concatenate(differences).mean(), rel=1e-5)
    assert shown["actor/reward_kl_penalty"] == pytest.approx(np.mean([d.mean() for d in differences]), rel=1e-5)
    assert shown["actor/reward_kl_penalty_coeff"] == 0.1


def test_kl_is_in_loss_and_reward_each_with_its_own_weight() -> None:
    backend = Recording()
    backend.reference = backend.reference + np.linspace(0, 1, len(backend.reference))
    config = algorithm(use_kl_in_reward=True, kl_coef=0.1, kl_loss_coef=0.02, kl_estimator="k2")
    assert (config.advantage.kl_coef, config.advantage.kl_penalty) == (0.1, "k1")
    assert (config.loss.kl_coef, config.loss.kl_estimator) == (0.02, "k2")
    step(config, [1.0, 0.0], backend=backend)
    alone = Recording()
    alone.reference = backend.reference
    step(algorithm(use_kl_in_reward=True, kl_coef=0.1), [1.0, 0.0], backend=alone)
    # One pass of the reference for both; what is compared is that of the reward alone.
    assert backend.calls.count("reference") == 1
    assert [row.advantage for row in backend.updates[0]] == [row.advantage for row in alone.updates[0]]
    assert all(row.ref_logprobs is not None for row in backend.updates[0])


@pytest.mark.parametrize(("kind", "expected"), [("k1", 50.0), ("k2", 1250.0), ("abs", 50.0), ("k3", 10.0)])
def test_kl_off_the_reward_is_bounded_for_k3_alone(kind: KlEstimator, expected: float) -> None:
    one = np.full(1, -1.0, np.float32)
    row = TrainRow(np.zeros(1, np.int32), np.zeros(1, np.int32), 0.0, one, one, one - 50)
    assert kl_penalties(row, kind).tolist() == [expected]


def test_reinforce_plus_plus_gives_tokens_their_own_advantage_where_kl_is_in_the_reward() -> None:
    backend = Recording()
    backend.reference = backend.reference + np.linspace(0, 1, len(backend.reference))
    config = algorithm(adv_estimator="reinforce_plus_plus", use_kl_in_reward=True, kl_coef=0.1, kl_penalty="k3")
    assert config.loss.token_advantages
    step(config, [1.0, 0.0], backend=backend)
    rows = backend.updates[0]
    returns = []
    for row, reward in zip(rows, [1.0, 0.0] * 8, strict=True):
        d = (row.old_logprobs - row.ref_logprobs).astype(float)
        returns.append([reward - 0.1 * (np.exp(-d[t:]) - 1 + d[t:]).sum() for t in range(len(d))])
    flat = np.concatenate(returns)
    expected = (flat - flat.mean()) / np.sqrt(flat.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(np.concatenate([row.advantages for row in rows]), expected, rtol=1e-4, atol=1e-5)
    assert rows[0].advantage == pytest.approx(rows[0].advantages.mean(), rel=1e-5)


def test_a_correction_scores_first_and_weighs_advantages() -> None:
    backend = Recording()
    report = step(algorithm(rollout_is="token"), [1.0, 0.0], backend=backend)
    # The fake samples and scores alike: weights of 1.
    assert backend.calls[:3] == ["generate", "log_probs", "forward_backward"]
    assert all(np.allclose(row.token_advantages, row.advantage, rtol=1e-5) for row in backend.updates[0])
    shown = metrics(report)
    assert shown["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-6)
    assert shown["rollout_corr/rollout_is_frac_outside"] == 0
    assert shown["rollout_corr/kl"] == pytest.approx(0.0, abs=1e-6)


def test_rewards_are_shaped_by_length_in_training() -> None:
    backend = Recording()
    config = config_of(reward={"overlong_buffer_len": 8})
    report = step(config, [1.0], backend=backend)
    # All rewards are alike but for what length takes off: 1 - length / 8.
    assert all(r.reward == pytest.approx(1 - len(r.completion.token_ids) / 8) for r in report.rollouts)
    assert backend.updates
    assert metrics(report)["reward/shaping/mean"] == pytest.approx(
        -np.mean([len(r.completion.token_ids) for r in report.rollouts]) / 8
    )


@pytest.mark.parametrize("weight", [0.1, 10.0])
def test_gdpo_weighs_length_as_it_is_told_to(weight: float) -> None:
    config = config_of(algorithm={"adv_estimator": "gdpo"}, reward={"length_penalty": weight})
    backend = Recording()
    report = step(config, [1.0, 0.0], backend=backend)
    lengths = np.array([len(r.completion.token_ids) for r in report.rollouts])
    solved = np.array([1.0, 0.0] * 8).reshape(4, 4)

    def normalised(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        centred = values - values.mean(axis=1, keepdims=True)
        return np.asarray(centred / (values.std(axis=1, ddof=1, keepdims=True) + 1e-6))

    expected = (normalised(solved) + weight * normalised(-lengths.reshape(4, 4) / 8)).ravel()
    tokens = np.repeat(expected, lengths)
    expected = (expected - tokens.mean()) / tokens.std(ddof=1)
    assert len(set(lengths)) > 1
    np.testing.assert_allclose([row.advantage for row in backend.updates[0]], expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_tokens_are_chosen_over_the_whole_minibatch_before_each_update(name: str) -> None:
    backend = Recording()
    changes = {"policy_loss": name, "clip_cov_ratio": 0.1, "kl_cov_ratio": 0.1, "clip_cov_lb": 0.0, "clip_cov_ub": 99.0}
    config = config_of(algorithm=changes, trainer={"mini_batch_size": 2})
    step(config, [1.0, 0.0, 0.0, 0.0], backend=backend)
    # Scored once before the first update, for both minibatches, and again before the second.
    assert backend.calls[1:6] == ["log_probs", "log_probs", "forward_backward", "optim_step", "log_probs"]
    for rows in backend.updates:
        tokens = sum(len(row.completion_ids) for row in rows)
        assert sum(int(row.selected.sum()) for row in rows) == max(1, int(0.1 * tokens))


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_tokens_are_chosen_by_their_advantages_and_not_by_weights_of_the_sampler(name: str) -> None:
    found = []
    for correction in ("off", "token"):
        backend = OffPolicy()
        changes = {"policy_loss": name, "clip_cov_lb": 0.5, "clip_cov_ub": 2.0, "kl_cov_ratio": 0.2}
        config = algorithm(**changes, clip_cov_ratio=0.2, rollout_is=correction)
        step(config, [1.0, 0.0, 0.0, 0.0], backend=backend)
        found.append(np.concatenate([row.selected for row in backend.updates[0]]))
    assert found[0].any()
    assert np.array_equal(*found)


def test_a_choice_of_tokens_is_the_same_in_a_second_run() -> None:
    found = []
    for _ in range(2):
        backend = Recording()
        config = algorithm(policy_loss="clip_cov", clip_cov_ratio=0.1, clip_cov_lb=0.0, clip_cov_ub=99.0)
        step(config, [1.0, 0.0, 0.0, 0.0], backend=backend)
        found.append(np.concatenate([row.selected for row in backend.updates[0]]))
    assert np.array_equal(*found)


def test_log_probs_that_are_not_finite_are_left_to_the_optimizer() -> None:
    backend = Recording()
    backend.reference = backend.reference * np.nan
    step(algorithm(use_kl_in_reward=True, kl_coef=0.1), [1.0, 0.0], backend=backend)
    assert np.isnan(backend.updates[0][0].advantage)


def test_a_dump_keeps_what_tokens_have_of_their_own(tmp_path: Path) -> None:
    backend = Recording()
    step(algorithm(policy_loss="kl_cov", rollout_is="token"), [1.0, 0.0], backend=backend)
    (rows,) = backend.updates
    dumps.write(tmp_path, step=1, refused=Refused(0, rows, 1.0, 0.0, 0.0), settings={})
    for mine, theirs in zip(dumps.read(tmp_path).refused.rows, rows, strict=True):
        assert np.array_equal(mine.token_advantages, theirs.token_advantages)
        assert np.array_equal(mine.selected, theirs.selected)


def test_dynamic_sampling_looks_at_rewards_before_length() -> None:
    # Lengths make every group differ; only the first and the third have right and wrong answers.
    config = config_of(algorithm={"filter_groups": True, "max_refills": 1}, reward={"overlong_buffer_len": 8})
    backend = Recording()
    report = step(config, [1.0, 0.0, 1.0, 0.0, *[1.0] * 4], backend=backend, more=lambda count: [])
    assert {row.prompt_ids.tobytes() for row in backend.updates[0]} == {
        ByteTokenizer().encode(PROBLEMS[i]).tobytes() for i in (0, 2)
    }
    assert report.filled is not None
    assert (report.filled.replaced_groups, report.filled.missing_groups) == (2, 2)
