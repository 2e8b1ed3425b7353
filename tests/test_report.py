from __future__ import annotations

import numpy as np
import pytest

from rlctl import report, verdict
from rlctl.display import loss_notes, signed
from rlctl.report import pass_at_k, step_metrics
from rlctl.smoke_table import render
from rlctl.step_report import StepReport
from rlctl.types import (
    BackendInfo,
    Completion,
    GenerateStats,
    LossStats,
    OptimStats,
    Problem,
    Prompt,
    Rollout,
    SyncReport,
)

INFO = BackendInfo("test", 2, "float32", 1e9, "made up", 10, 10)


def rollout(score: float | None, *, length: int = 3, text: str = "x", truncated: bool = False) -> Rollout:
    completion = Completion(np.zeros(length, np.int32), np.zeros(length, np.float32), "length" if truncated else "stop")
    scores = {} if score is None else {"task": score}
    return Rollout(Problem("p", "q", "a", "src"), Prompt(np.zeros(5, np.int32), 0), completion, text, score, scores)


def a_step(**changes: object) -> StepReport:
    values = {
        "step": 1,
        "lr": 1e-3,
        "groups": [
            [rollout(1.0), rollout(0.0, length=5, truncated=True)],
            [rollout(1.0), rollout(1.0)],
            [rollout(0.0), rollout(None)],
        ],
        "advantages": [0.7, -0.7],
        "zero_signal_groups": 2,
        "shrunk_groups": 1,
        "losses": [
            LossStats(
                loss=0.5,
                tokens=4,
                entropy_sum=8.0,
                clipped_tokens=1,
                flops=1e9,
                tokens_delivered=30,
                tokens_computed=20,
                rows=2,
            )
        ],
        "updates": [OptimStats(0.3, 1e-3, True, 0.9)],
        "empty_updates": 0,
        "generation": GenerateStats(flops=1e9, seconds=1.0, tokens=20),
        "rollout_gap": (0.0, 0.0),
        "sync": SyncReport(7, 7, 1),
        "seconds": {"gen": 2.0, "update_actor": 1.0},
    }
    return StepReport(**{**values, **changes})  # type: ignore[arg-type]


def test_step_metrics_by_hand() -> None:
    m = step_metrics(a_step(), INFO, task="task", epoch=0, seconds=4.0)
    assert m["score/mean"] == pytest.approx(3 / 5)
    assert m["reward/failed"] == 1
    assert (m["reward/solved_none"], m["reward/solved_some"], m["reward/solved_all"]) == pytest.approx(
        (1 / 3, 1 / 3, 1 / 3)
    )
    assert m["reward/frac_zero_signal"] == pytest.approx(2 / 3)
    assert m["response_length/mean"] == pytest.approx(20 / 6)
    assert m["response_length/clip_ratio"] == pytest.approx(1 / 6)
    assert m["actor/entropy"] == 2.0
    assert m["actor/pg_clipfrac"] == 0.25
    assert m["perf/dedup_factor"] == 1.5
    # 1e9 FLOP in 1 s on two devices of 1e9 FLOP/s; the step does 2e9 in 4 s.
    assert m["perf/mfu/actor"] == 0.5
    assert m["perf/mfu/step"] == 0.25
    assert m["perf/tflops_per_device"] == pytest.approx(0.0005)
    assert m["perf/tokens_per_s"] == pytest.approx((6 * 5 + 20) / 4)
    assert m["perf/tokens_per_s_per_device"] == pytest.approx((6 * 5 + 20) / 8)


def test_masked_length_is_that_of_the_completion() -> None:
    # Field fault 036: lengths 3 and 6 have mean 4.5, whatever the width of a batch.
    groups = [[rollout(1.0, length=3), rollout(0.0, length=6)]]
    m = step_metrics(a_step(groups=groups), INFO, task="task", epoch=0, seconds=1.0)
    assert m["response_length/mean"] == 4.5


def test_a_step_that_trained_on_nothing_has_no_loss_and_no_mfu() -> None:
    m = step_metrics(a_step(losses=[], updates=[], rollout_gap=None), INFO, task="task", epoch=0, seconds=1.0)
    assert m["actor/loss"] is None
    assert m["perf/mfu/actor"] is None
    assert m["perf/mfu/actor/reason"] == "nothing was trained on"
    assert m["training/rollout_probs_diff_mean"] is None


@pytest.mark.parametrize(
    ("n", "solved", "k", "expected"),
    [(4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 4, 2, 1.0), (4, 0, 4, 0.0), (4, 3, 2, 1.0), (10, 3, 2, 1 - 7 / 10 * 6 / 9)],
)
def test_pass_at_k_is_unbiased(n: int, solved: int, k: int, expected: float) -> None:
    assert pass_at_k(n, solved, k) == pytest.approx(expected)


def test_evaluation_metrics_by_source() -> None:
    groups = [[rollout(1.0), rollout(0.0)], [rollout(1.0), rollout(1.0)]]
    m = report.evaluation_metrics(groups, task="task", seconds=1.0)
    assert m["val-core/src/acc/mean@2"] == 0.75
    assert m["val-core/src/pass@2"] == 1.0


def by_name(reports: list[StepReport], info: BackendInfo = INFO) -> dict[str, verdict.Check]:
    return {check.name: check for check in verdict.judge(reports, info, wanted_steps=len(reports))}


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"updates": [OptimStats(0.3, 1e-3, True, 0.0)]}, "weights changed at the first update"),
        ({"updates": [OptimStats(float("nan"), 1e-3, False, 0.0)]}, "gradients finite and not zero"),
        ({"updates": [OptimStats(0.0, 1e-3, True, 0.5)]}, "gradients finite and not zero"),
        ({"rollout_gap": (0.1, 0.5)}, "sampler agrees with trainer"),
        ({"rollout_gap": None}, "sampler agrees with trainer"),
        ({"losses": [LossStats(max_ratio_deviation=0.1, tokens=1)]}, "ratio 1 at the first update"),
        ({"losses": [LossStats(max_ratio_deviation=None, ppo_kl_sum=0.1, tokens=1)]}, "ratio 1 at the first update"),
        ({"updates": [OptimStats(0.3, 0.0, True, None)]}, "weights changed at the first update"),
        ({"sync": SyncReport(None, None, 0)}, "every weight reached the sampler"),
        ({"sync": SyncReport(7, 6, 1)}, "every weight reached the sampler"),
        ({"sync": SyncReport(7, 7, 0)}, "every weight reached the sampler"),
        ({"zero_signal_groups": 3}, "signal to learn from"),
        ({"groups": [[rollout(1.0), rollout(1.0)]]}, "rewards vary"),
    ],
)
def test_each_check_fails_for_its_own_reason(changes: dict[str, object], failing: str) -> None:
    good = {"groups": [[rollout(1.0), rollout(0.0)]], "zero_signal_groups": 0}
    checks = by_name([a_step(**{**good, **changes})])
    assert not checks[failing].holds
    assert checks[failing].reason
    assert all(check.holds for check in by_name([a_step(**good)]).values())


def test_what_a_backend_cannot_tell_is_judged_by_what_it_can_and_stays_null() -> None:
    blind = a_step(
        groups=[[rollout(1.0), rollout(0.0)]],
        zero_signal_groups=0,
        losses=[LossStats(max_ratio_deviation=None, ppo_kl_sum=1e-6, tokens=1)],
        updates=[OptimStats(0.3, 1e-3, True, None)],
        sync=SyncReport(None, None, 1),
    )
    checks = by_name([blind])
    assert all(check.holds for check in checks.values())
    assert checks["ratio 1 at the first update"].reason.endswith("this backend tells no maximum")
    m = step_metrics(blind, INFO, task="task", epoch=0, seconds=1.0)
    assert (m["actor/ratio_deviation_first"], m["actor/ratio_deviation_max"], m["actor/weights_changed"]) == (None,) * 3


def test_a_failed_reward_fails_the_verdict() -> None:
    assert not by_name([a_step()])["every reward finite"].holds


def test_bfloat16_has_wider_limits() -> None:
    info = BackendInfo("test", 1, "bfloat16", None, "", 10, 10)
    report_ = a_step(groups=[[rollout(1.0), rollout(0.0)]], rollout_gap=(0.002, 0.1))
    assert by_name([report_], info)["sampler agrees with trainer"].holds
    assert not by_name([report_])["sampler agrees with trainer"].holds


@pytest.mark.parametrize("style", ["table", "markdown"])
def test_the_smoke_table_shows_units_and_reasons(style: str) -> None:
    m = step_metrics(a_step(), INFO, task="task", epoch=0, seconds=4.0)
    text = render([m], list(by_name([a_step()]).values()), INFO, style=style)  # type: ignore[arg-type]
    assert "50.0 %" in text
    assert "made up" in text
    assert "FAIL every reward finite" in text
    assert "does not work here" in text


def test_unknown_peaks_are_shown_as_not_available() -> None:
    info = BackendInfo("X", 1, "float32", None, "no data-sheet peak for X", 10, 10)
    m = step_metrics(a_step(), info, task="task", epoch=0, seconds=4.0)
    text = render([m], [], info, style="table")
    assert "n/a" in text
    assert "MFU n/a: no data-sheet peak for X" in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, True),
        ({"actor/loss": 0.7}, False),  # advantages that are not centred
        ({"actor/loss": None}, False),  # a step that trained on nothing
        ({"actor/updates": 2}, False),
        ({"training/staleness_max": 1}, False),
    ],
)
def test_a_loss_of_about_0_is_explained_where_that_is_why(changes: dict[str, object], told: bool) -> None:
    step = {"actor/loss": -0.06, "actor/updates": 1, **changes}
    assert bool(loss_notes([step])) is told


def test_zero_has_no_minus_sign() -> None:
    assert (signed(-1e-9), signed(-0.5)) == ("0.0000", "-0.5000")
