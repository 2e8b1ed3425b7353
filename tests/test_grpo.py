"""One GRPO step against the fake backend: no tensor, no model."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rlctl.algorithms.advantages import group_advantages
from rlctl.algorithms.comparing import comparable, plain_rows, with_advantages
from rlctl.grpo import GrpoConfig, grpo_step, has_signal, learning_rate, loss_denominator, minibatches
from rlctl.rewards import Scored
from rlctl.step_report import StepReport
from rlctl.types import Completion, Problem, Prompt, Rollout, TrainRow
from tests import defaults
from tests.fakes import ByteTokenizer, FakeBackend, FakeSettings

CONFIG = defaults.grpo_config(n=4, sampling=defaults.sampling(max_new_tokens=8), mini_batch_size=4)
PROBLEMS = [Problem(str(i), f"problem {i}", str(i)) for i in range(4)]


def make_backend(**settings: int) -> FakeBackend:
    return FakeBackend(FakeSettings(**settings), defaults.job(model=""))


def step(
    backend: FakeBackend, rewards: Sequence[float | None], config: GrpoConfig = CONFIG, lr: float = 0.1
) -> StepReport:
    """A step whose i-th completion gets the i-th reward, over and over."""

    async def score(items: Sequence[tuple[Problem, str]]) -> list[Scored]:
        values = [rewards[i % len(rewards)] for i in range(len(items))]
        return [
            Scored(v, {} if v is None else {"task": v}, failure=None if v is not None else "it broke") for v in values
        ]

    return asyncio.run(
        grpo_step(1, PROBLEMS, backend=backend, tokenizer=ByteTokenizer(), score=score, config=config, lr=lr)
    )


def group(*rewards: float | None, lengths: Sequence[int] = ()) -> list[Rollout]:
    return [
        Rollout(
            PROBLEMS[0],
            Prompt(np.array([1], np.int32), 0),
            Completion(np.zeros(length, np.int32), np.zeros(length, np.float32), "stop"),
            "",
            reward,
        )
        for reward, length in zip(rewards, lengths or [2] * len(rewards), strict=True)
    ]


def train_rows(group: list[Rollout], config: GrpoConfig) -> list[TrainRow]:
    """The rows of one group that are trained on."""
    kept = comparable(group, config.advantage)
    return with_advantages([plain_rows(kept)], [kept], config.advantage).batches[0]


def test_advantages_are_normalised_by_group() -> None:
    # Field fault 001: batch-wide statistics give +1.207615 / -0.724569 everywhere.
    first = group_advantages([1, 1, 0, 0], scale=True, eps=0.0)
    second = group_advantages([1, 0, 0, 0], scale=True, eps=0.0)
    assert first == pytest.approx([0.8660254, 0.8660254, -0.8660254, -0.8660254])
    assert second == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_adding_a_constant_to_a_groups_rewards_changes_nothing() -> None:
    assert group_advantages([1.25, 0.5, 0.5], scale=True) == group_advantages([11.25, 10.5, 10.5], scale=True)


def test_without_scaling_advantages_are_only_centred() -> None:
    assert group_advantages([1.0, 0.0], scale=False) == [0.5, -0.5]


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1e-9, -7.3])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_equal_rewards_give_exactly_zero(reward: float, n: int) -> None:
    # Field fault 004, and the mean of three 0.1s, which is not 0.1.
    assert group_advantages([reward] * n, scale=True) == [0.0] * n


def test_group_with_equal_rewards_trains_on_nothing_unless_kept() -> None:
    # Field fault 007.
    flat, useful = group(1.0, 1.0), group(1.0, 0.0)
    assert train_rows(flat, CONFIG) == []
    kept = train_rows(flat, replace(CONFIG, advantage=replace(CONFIG.advantage, drop_zero_signal_groups=False)))
    assert [row.advantage for row in kept] == [0.0, 0.0]
    both = kept + train_rows(useful, CONFIG)
    # The denominator doubles and the flat rows add nothing: the gradient is exactly half.
    assert loss_denominator(both, defaults.loss()) == 2 * loss_denominator(train_rows(useful, CONFIG), defaults.loss())


def test_a_failed_reward_excludes_its_row_only() -> None:
    rows = train_rows(group(1.0, None, 0.0), CONFIG)
    assert [row.advantage for row in rows] == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], rel=1e-5)


def test_a_group_shrunk_to_one_trains_on_nothing_and_is_counted() -> None:
    assert not has_signal(group(1.0, None))
    report = step(make_backend(), [0.7, None, None, None])
    assert (report.shrunk_groups, report.zero_signal_groups, report.losses) == (4, 4, [])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("token-mean", 6.0), ("seq-mean-token-sum", 2.0), ("seq-mean-token-mean", 2.0), ("seq-mean-token-sum-norm", 16.0)],
)
def test_loss_denominators(mode: str, expected: float) -> None:
    rows = train_rows(group(1.0, 0.0, lengths=[2, 4]), CONFIG)
    assert loss_denominator(rows, defaults.loss(loss_agg_mode=mode, max_response_length=8)) == expected  # type: ignore[arg-type]


def test_minibatches_count_problems_and_keep_their_order() -> None:
    groups = [[row] if keep else [] for row, keep in zip(some_rows(5), [1, 0, 0, 1, 1], strict=True)]
    sizes = [len(batch) for batch in minibatches(groups, 2)]
    assert sizes == [1, 1, 1]
    assert [len(batch) for batch in minibatches(groups, 1)] == [1, 0, 0, 1, 1]


def some_rows(count: int) -> list[TrainRow]:
    return [TrainRow(np.zeros(1, np.int32), np.zeros(1, np.int32), 1.0, np.zeros(1, np.float32)) for _ in range(count)]


def test_verbs_are_called_in_the_order_of_the_algorithm() -> None:
    backend = make_backend()
    config = replace(CONFIG, mini_batch_size=2, loss=defaults.loss(kl_coef=0.1))
    step(backend, [1.0, 0.0], config)
    update = ["forward_backward", "optim_step"]
    assert backend.calls == [
        "generate",
        "log_probs",
        "log_probs",
        "reference",
        "reference",
        *update,
        *update,
        "sync_weights",
    ]


def test_one_update_needs_no_old_log_probs() -> None:
    backend = make_backend()
    report = step(backend, [1.0, 0.0])
    assert backend.calls == ["generate", "forward_backward", "optim_step", "sync_weights"]
    assert report.losses[0].max_ratio_deviation == 0.0


def test_old_log_probs_stay_the_same_through_all_epochs() -> None:
    # Field fault 018: recomputed ones make every ratio 1.
    backend = make_backend()
    report = step(backend, [1.0, 0.0], replace(CONFIG, ppo_epochs=2), lr=1.0)
    first, second = backend.old_seen
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert report.losses[0].max_ratio_deviation <= 1e-6
    assert report.losses[1].max_ratio_deviation > 1e-3


def test_loss_is_zero_on_policy_while_the_gradient_is_not() -> None:
    # Field fault 019: rewards [1, 0], completions of one token each.
    config = replace(CONFIG, sampling=defaults.sampling(max_new_tokens=1))
    report = step(make_backend(), [1.0, 0.0], config)
    assert report.loss.loss == pytest.approx(0.0, abs=1e-12)
    assert report.updates[0].grad_norm > 0


def test_a_batch_without_signal_takes_no_update_and_still_syncs() -> None:
    # Field fault 015.
    backend = make_backend()
    report = step(backend, [1.0], replace(CONFIG, mini_batch_size=2))
    assert "optim_step" not in backend.calls
    assert backend.calls[-1] == "sync_weights"
    assert (report.empty_updates, report.zero_signal_groups) == (2, 4)


def test_rewards_see_the_completion_alone() -> None:
    # Field fault 051.
    seen: list[str] = []

    async def score(items: Sequence[tuple[Problem, str]]) -> list[Scored]:
        seen.extend(text for _, text in items)
        return [Scored(float(i % 2), {}) for i in range(len(items))]

    asyncio.run(
        grpo_step(1, PROBLEMS, backend=make_backend(), tokenizer=ByteTokenizer(), score=score, config=CONFIG, lr=0.1)
    )
    assert len(seen) == 16
    assert not any("problem" in text for text in seen)


def test_two_runs_of_a_step_are_alike_and_another_step_is_not() -> None:
    reports = [step(make_backend(), [1.0, 0.0]) for _ in range(2)]
    assert [r.text for r in reports[0].rollouts] == [r.text for r in reports[1].rollouts]
    other = step(make_backend(), [1.0, 0.0], replace(CONFIG, seed=1))
    assert [r.text for r in reports[0].rollouts] != [r.text for r in other.rollouts]


@pytest.mark.parametrize(("step_", "expected"), [(1, 1e-7), (5, 5e-7), (10, 1e-6), (11, 1e-6), (100, 1e-6)])
def test_the_first_step_of_a_warm_up_is_not_wasted(step_: int, expected: float) -> None:
    # Field fault 123: warm-up of 10 steps to 1e-6.
    rate = learning_rate(step_, peak=1e-6, schedule="constant", warmup_ratio=0.1, total_steps=100)
    assert rate == pytest.approx(expected)


@pytest.mark.parametrize(("schedule", "half", "last"), [("linear", 0.5, 0.01), ("cosine", 0.5, 0.000247)])
def test_schedules_fall_to_zero_one_step_after_the_last(schedule: str, half: float, last: float) -> None:
    rate = [learning_rate(s, peak=1.0, schedule=schedule, warmup_ratio=0.0, total_steps=100) for s in (1, 51, 100)]
    assert rate == pytest.approx([1.0, half, last], rel=1e-2)


def test_grpo_imports_neither_torch_nor_pydantic() -> None:
    code = "import sys, rlctl.grpo; print(sorted({'torch', 'pydantic', 'transformers', 'rich'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_every_step_draws_anew() -> None:
    async def score(items: Sequence[tuple[Problem, str]]) -> list[Scored]:
        return [Scored(1.0, {}) for _ in items]

    texts = []
    for number in (1, 2):
        report = asyncio.run(
            grpo_step(
                number, PROBLEMS, backend=make_backend(), tokenizer=ByteTokenizer(), score=score, config=CONFIG, lr=0.1
            )
        )
        texts.append([r.text for r in report.rollouts])
    assert texts[0] != texts[1]
