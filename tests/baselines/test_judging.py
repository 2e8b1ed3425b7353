"""What a later run is called, on records whose machine is made up: drifting by half, with noise and neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlctl.baselines.file import Baseline
from rlctl.baselines.judging import Finding, Judgement, judge
from rlctl.baselines.record import Record
from rlctl.baselines.words import comparison_line
from tests.baselines.synthetic import KEY, RECIPE, baseline, run, several


def finding(judgement: Judgement, metric: str) -> Finding:
    return next(each for each in judgement.findings if each.metric.startswith(metric))


def with_key(record: Record, **changed: Any) -> Record:
    return replace(record, key={**record.key, **changed})


def test_an_update_a_tenth_slower_is_a_regression_in_nine_of_ten_trials() -> None:
    called = [judge(baseline(first_seed=100 * i), several(100 * i + 50, update=1.1)).outcome for i in range(30)]
    assert called.count("regression") >= 27


def test_no_unchanged_runs_are_a_regression() -> None:
    called = [judge(baseline(first_seed=100 * i), several(100 * i + 50)).outcome for i in range(30)]
    assert "regression" not in called
    assert called.count("pass") >= 20


def test_one_run_alone_is_no_regression_and_mostly_inconclusive() -> None:
    called = [judge(baseline(first_seed=100 * i), [run(100 * i + 50)]).outcome for i in range(30)]
    assert "regression" not in called
    assert called.count("inconclusive") > 15


def test_what_waiting_for_a_processor_costs_is_learnt_from_the_runs_and_not_called_slower() -> None:
    loaded = Baseline(tuple(run(i, waited=i / 5, whole=0.005) for i in range(15)))
    crowded = [run(50 + i, waited=4.0, whole=0.005) for i in range(7)]
    update = finding(judge(loaded, crowded), "update")
    # 5 ** 0.07 is 1.12, where the baseline's runs are 1.06 in the middle.
    assert update.value == pytest.approx(0.0, abs=0.03)
    assert update.outcome != "regression"
    blind = [replace(each, steps=tuple(replace(s, wall=s.seconds) for s in each.steps)) for each in crowded]
    assert (finding(judge(loaded, blind), "update").value or 0.0) > 0.05


def test_phases_that_all_slow_down_alike_are_doubted() -> None:
    judgement = judge(baseline(), several(50, update=1.2, sampling=1.2))
    assert judgement.outcome == "inconclusive"
    assert "every phase alike" in finding(judgement, "update").why


def test_an_update_that_slows_down_by_far_more_than_the_rest_is_not_doubted() -> None:
    judgement = judge(baseline(), several(50, update=1.3, sampling=1.1))
    assert finding(judgement, "sampling").value == pytest.approx(0.1, abs=0.04)
    assert finding(judgement, "update").outcome == "regression"


def test_a_neighbour_that_takes_more_from_one_kind_of_work_is_learnt_from_the_runs() -> None:
    """An update that is all like its own reference work, of which 30 % more or less is believed to be of the other."""

    def hit(record: Record, by: float) -> Record:
        steps = [
            replace(
                step,
                seconds={**step.seconds, "update": step.seconds["update"] * by},
                reference={**step.reference, "update": tuple(by * seconds for seconds in step.reference["update"])},
            )
            for step in record.steps
        ]
        return replace(record, steps=tuple(steps))

    before = [hit(each, 1 + number / 15) for number, each in enumerate(several(0, runs=15, whole=0.005, noise=0.01))]
    now = [hit(each, 2.0) for each in several(50, whole=0.005, noise=0.01)]
    update = finding(judge(Baseline(tuple(before)), now), "update")
    # By shares alone it would be 2 ** 0.3 over 1.45 ** 0.3, which is 10 % more.
    assert update.value == pytest.approx(0.0, abs=0.04)
    assert update.outcome != "regression"


def test_a_regression_says_how_large_and_how_sure() -> None:
    judgement = judge(baseline(), several(50, update=1.2))
    update = finding(judgement, "update")
    assert update.value is not None
    assert update.low is not None
    assert update.high is not None
    assert 0 < update.low < update.value < update.high
    assert update.value == pytest.approx(0.2, abs=0.05)
    assert judgement.exit_code == 4
    assert f"regression - update (MFU) {100 * update.value:+.1f} %" in comparison_line(judgement, num_runs=10)


def test_only_the_phase_that_changed_is_blamed() -> None:
    judgement = judge(baseline(), several(50, sampling=1.2))
    assert finding(judgement, "update").outcome == "pass"
    assert finding(judgement, "sampling").outcome == "regression"


def test_a_faster_run_passes() -> None:
    judgement = judge(baseline(), several(50, update=0.8, sampling=0.8))
    assert judgement.outcome == "pass"
    assert judgement.exit_code == 0


def test_a_band_wider_than_the_effect_is_inconclusive() -> None:
    judgement = judge(baseline(noise=0.8, steps=10), several(50, noise=0.8, steps=10))
    assert judgement.outcome == "inconclusive"
    assert judgement.exit_code == 5


def test_more_runs_narrow_the_interval() -> None:
    def width(runs: int) -> float:
        update = finding(judge(baseline(), several(50, runs=runs)), "update")
        assert update.high is not None
        assert update.low is not None
        return update.high - update.low

    assert width(4) < width(1)


def test_seconds_without_a_reference_are_judged_as_drifting() -> None:
    bare = [replace(each, steps=tuple(replace(s, reference={}) for s in each.steps)) for each in baseline().runs]
    judgement = judge(replace(baseline(), runs=tuple(bare)), bare)
    assert finding(judgement, "update").outcome == "inconclusive"
    assert "no reference work beside it" in finding(judgement, "update").why


def test_a_count_that_differs_is_told_with_its_first_step() -> None:
    more = run(9, flops_update=lambda number: 1e9 * (1 + number % 3) + (7 if number >= 5 else 0))
    judgement = judge(baseline(), [more])
    assert judgement.outcome == "changed"
    assert judgement.exit_code == 4
    told = finding(judgement, "FLOPs of the update")
    assert told.why == "first differs at step 5: 3000000000.0 in the baseline, 3000000007.0 now"


def test_on_equal_versions_another_loss_is_a_finding() -> None:
    judgement = judge(baseline(), [run(9, loss=lambda number: 0.01 * number + (1e-12 if number == 3 else 0))])
    assert finding(judgement, "loss").outcome == "changed"
    assert "first differs at step 3" in finding(judgement, "loss").why
    assert finding(judgement, "score").outcome == "pass"


def test_on_another_rlctl_the_score_is_judged_by_problem() -> None:
    versions = {**KEY["versions"], "rlctl": "0.2.0"}
    worse = with_key(run(9, score=lambda _: 0.1, scores=lambda n: {f"q{i}": 0.0 for i in range(4)}), versions=versions)
    judgement = judge(baseline(), [worse])
    assert not judgement.differences
    assert judgement.notes == ("versions.rlctl: '0.1.0' in the baseline, '0.2.0' now; that is what is compared",)
    score = finding(judgement, "score")
    # Half of all problems were solved before, none now, over 8 steps of 4.
    assert (score.outcome, score.value) == ("regression", -0.5)
    assert "over 32 problems" in score.why


def test_where_the_baseline_does_not_repeat_itself_its_score_is_judged_by_problem() -> None:
    other = run(1, score=lambda number: 0.5 + 0.01 * (number % 2))
    mixed = replace(baseline(), runs=(run(0), other))
    assert finding(judge(mixed, [run(9)]), "score").why.startswith("+0.000 over 32 problems")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"device": "NVIDIA H200"}, "device: 'cpu' in the baseline, 'NVIDIA H200' now"),
        ({"dtype": "bfloat16"}, "dtype: 'float32' in the baseline"),
        ({"backend": "ray"}, "backend: 'local' in the baseline"),
        ({"model": "n"}, "model: 'm' in the baseline, 'n' now"),
        ({"threads": 2}, "threads: 1 in the baseline, 2 now"),
        ({"clock": "wall seconds"}, "clock: "),
        ({"versions": {"rlctl": "0.1.0", "torch": "3.0"}}, "versions.torch: '2.13.0' in the baseline, '3.0' now"),
        ({"versions": {"rlctl": "0.1.0"}}, "versions.torch: '2.13.0' in the baseline, absent now"),
    ],
)
def test_on_another_machine_nothing_is_judged(changed: dict[str, Any], told: str) -> None:
    judgement = judge(baseline(), [with_key(run(9), **changed)])
    assert judgement.findings == ()
    assert (judgement.outcome, judgement.exit_code) == ("inconclusive", 5)
    assert told in comparison_line(judgement, num_runs=1)


def test_every_difference_of_the_recipe_is_told() -> None:
    other = replace(run(9), recipe={**RECIPE, "trainer.lr": 2e-3, "problems of data": "9 xyz", "seed": 3})
    judgement = judge(baseline(), [other])
    assert [each.name for each in judgement.differences] == ["problems of data", "seed", "trainer.lr"]


def test_a_tuple_of_the_settings_is_the_list_of_the_file() -> None:
    other = replace(run(9), recipe={**RECIPE, "trainer.betas": (0.9, 0.95)})
    assert not judge(baseline(), [other]).differences


def test_too_few_steps_are_not_judged() -> None:
    judgement = judge(baseline(), [run(9, steps=9)])
    assert judgement.outcome == "inconclusive"
    assert "7 steps after 2 of warm-up are too few, 8 are needed" in judgement.findings[0].why
