"""Dynamic sampling: groups without signal are replaced until the batch is full or the bound is reached."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rlctl import report
from rlctl.errors import ConfigError
from rlctl.grpo import GrpoConfig, grpo_step
from rlctl.rewards import Scored
from rlctl.step_report import StepReport
from rlctl.types import BackendInfo, Problem
from tests import defaults
from tests.fakes import ByteTokenizer, FakeBackend, FakeSettings

CONFIG = defaults.grpo_config(n=2, mini_batch_size=4, sampling=defaults.sampling(max_new_tokens=3), max_refills=3)
INFO = BackendInfo("fake", 1, "float32", 1e12, "made up", 260, 260)


def problems(first: int, count: int) -> list[Problem]:
    return [Problem(f"p{i}", f"problem {i}", "1") for i in range(first, first + count)]


def step(
    *, useful: range, supply: int = 1000, config: GrpoConfig = CONFIG
) -> tuple[StepReport, list[int], FakeBackend]:
    """One step of 4 problems, of which only those numbered in `useful` have one right and one wrong completion."""
    asked: list[int] = []
    given = 4

    def more(count: int) -> list[Problem]:
        nonlocal given
        asked.append(count)
        further = problems(given, min(count, supply - given))
        given += len(further)
        return further

    async def score(items: Sequence[tuple[Problem, str]]) -> list[Scored]:
        values = [float(i % 2 == 0 and int(p.id[1:]) in useful) for i, (p, _) in enumerate(items)]
        return [Scored(value, {"task": value}) for value in values]

    backend = FakeBackend(FakeSettings(), defaults.job(end_token_ids=(256,)))
    done = asyncio.run(
        grpo_step(
            1, problems(0, 4), backend=backend, tokenizer=ByteTokenizer(), score=score, config=config, lr=0.1, more=more
        )
    )
    return done, asked, backend


def test_a_batch_with_signal_everywhere_is_not_refilled() -> None:
    done, asked, backend = step(useful=range(100))
    assert asked == []
    assert done.filled is not None
    assert (done.filled.refills, done.filled.missing_groups, done.filled.surplus_groups) == (0, 0, 0)
    assert backend.calls.count("generate") == 1


def test_groups_without_signal_are_replaced_until_the_batch_is_full() -> None:
    # 0 and 1 teach nothing; half of 4 had signal, so 4 problems should bring the 2 that are missing.
    done, asked, _ = step(useful=range(2, 100))
    assert asked == [4]
    assert done.filled is not None
    assert (done.filled.refills, done.filled.missing_groups, done.filled.surplus_groups) == (1, 0, 2)
    assert len(done.groups) == 8
    assert done.zero_signal_groups == 2
    # Four groups of two completions are trained on, and every one of them has an advantage.
    assert len(done.advantages) == 8
    assert all(done.advantages)


def test_refills_end_at_their_bound_and_what_is_missing_is_counted() -> None:
    done, asked, backend = step(useful=range(0))
    assert asked == [4, 4, 4]
    assert done.filled is not None
    assert (done.filled.refills, done.filled.missing_groups) == (3, 4)
    assert "optim_step" not in backend.calls
    assert backend.calls[-1] == "sync_weights"


def test_refills_end_when_no_further_problem_is_there() -> None:
    done, asked, _ = step(useful=range(1), supply=6)
    assert asked == [4, 4]
    assert done.filled is not None
    assert (done.filled.refills, done.filled.missing_groups, len(done.groups)) == (1, 3, 6)


def test_a_filled_batch_is_cut_into_minibatches_of_problems() -> None:
    _, _, backend = step(useful=range(2, 100), config=replace(CONFIG, mini_batch_size=2))
    assert backend.calls.count("optim_step") == 2


def test_what_dynamic_sampling_did_is_in_the_metrics() -> None:
    done, _, _ = step(useful=range(2, 100))
    metrics = report.step_metrics(done, INFO, task="task", epoch=0, seconds=1.0)
    assert {name: value for name, value in metrics.items() if name.startswith("rollout/")} == {
        "rollout/refills": 1,
        "rollout/sampled_groups": 8,
        "rollout/replaced_groups": 2,
        "rollout/missing_groups": 0,
        "rollout/surplus_groups": 2,
    }
    # The score is that of all that was sampled: six groups with one right of two, two with none.
    assert metrics["score/mean"] == pytest.approx(6 / 16)
    assert metrics["reward/frac_zero_signal"] == pytest.approx(2 / 8)


def test_sampling_of_all_refills_is_counted() -> None:
    done, _, _ = step(useful=range(0))
    assert done.generation.tokens == sum(len(r.completion.token_ids) for r in done.rollouts)
    assert done.generation.seconds == pytest.approx(4e-3)


def test_a_step_with_refills_is_the_same_again() -> None:
    texts = [[r.text for r in step(useful=range(2, 100))[0].rollouts] for _ in range(2)]
    assert texts[0] == texts[1]


def test_filtered_groups_cannot_be_kept() -> None:
    from rlctl import config

    with pytest.raises(ConfigError, match=r"algorithm\.filter_groups replaces the groups"):
        config.load(assignments=["algorithm.filter_groups=true", "algorithm.drop_zero_signal_groups=false"], environ={})
