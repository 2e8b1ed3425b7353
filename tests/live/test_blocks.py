"""Each block of the live view on its own; every figure is worked out by hand from `story.metrics`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlctl.live.glyphs import ASCII, UNICODE, glyphs_for
from rlctl.live.health import diagnosis_lines, signal_lines, speed_lines
from rlctl.live.lines import DIM
from rlctl.live.phases import phase_lines, phase_seconds, widths
from rlctl.live.progress import activity, duration, num_evaluations, progress_lines, seconds_left
from rlctl.live.sample import sample_lines
from rlctl.live.sparkline import curve_lines, sparkline
from rlctl.live.state import State
from rlctl.live.table import fitting_columns, table_lines, whole_width
from rlctl.types import Episode
from tests.live.story import metrics, rollout, state

LEVELS = "12345678"


def plain(lines: list[object]) -> list[str]:
    return [line.plain for line in lines]  # type: ignore[attr-defined]


def test_a_sparkline_spans_the_least_to_the_greatest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8, levels=LEVELS) == "12345678"
    assert sparkline([1.0, 0.0], 8, levels=LEVELS) == "81"


def test_a_long_history_is_squeezed_by_means() -> None:
    # Means of the halves of 0..7 are 1.5 and 5.5, of the quarters 0.5, 2.5, 4.5, 6.5.
    assert sparkline(list(range(8)), 2, levels=LEVELS) == "18"
    assert sparkline(list(range(8)), 4, levels=LEVELS) == "1368"


def test_equal_values_lie_in_the_middle_and_unknown_ones_are_blank() -> None:
    assert sparkline([2.0, 2.0], 5, levels=LEVELS) == "44"
    assert sparkline([0.0, None, 1.0], 5, levels=LEVELS) == "1 8"
    assert sparkline([None, None], 5, levels=LEVELS) == ""
    assert sparkline([], 5, levels=LEVELS) == ""


def test_curves_have_names_units_and_ranges() -> None:
    history = [metrics(step) for step in range(1, 13)]
    [score, *_] = plain(curve_lines(history, 100, 7, glyphs=UNICODE))
    assert score.startswith("score         0.520 ▁")
    assert score.endswith("0.410 to 0.520")
    names = [line.split("  ")[0] for line in plain(curve_lines(history, 60, 7, glyphs=UNICODE))]
    assert names == ["score", "reward", "length", "entropy", "KL", "clip frac", "mismatch"]


def test_two_curves_share_a_line_where_lines_are_few() -> None:
    lines = plain(curve_lines([metrics(1)], 79, 4, glyphs=UNICODE))
    assert len(lines) == 4
    assert "score" in lines[0]
    assert "reward" in lines[0]


@pytest.mark.parametrize("key", ["actor__kl_loss", "reward__kl__mean"])
def test_with_a_reference_model_the_divergence_from_it_is_shown(key: str) -> None:
    lines = plain(curve_lines([metrics(1, **{key: 0.02})], 60, 7, glyphs=UNICODE))
    assert next(line for line in lines if line.startswith("KL")).split()[:4] == ["KL", "to", "ref", "0.0200"]


def test_the_phase_bar_adds_up() -> None:
    seconds = phase_seconds(metrics(1))
    assert seconds == pytest.approx({"sample": 0.6, "score": 0.1, "update": 0.2, "sync": 0.05, "other": 0.05})
    assert widths(seconds, 20) == {"sample": 12, "score": 2, "update": 4, "sync": 1, "other": 1}
    bar, legend = plain(phase_lines(metrics(1), 120, 3, glyphs=UNICODE))
    assert bar == "█" * 72 + "▓" * 12 + "░" * 24 + "▚" * 6 + "·" * 6
    assert legend.startswith("█ sample 0.60 s 60 %  ▓ score 0.10 s 10 %  ░ update 0.20 s 20 %  ▚ sync 0.05 s 5 %")


def test_a_short_phase_still_has_a_cell() -> None:
    assert widths({"a": 1000.0, "b": 0.001, "c": 0.0}, 10) == {"a": 9, "b": 1, "c": 0}


def test_log_probs_are_a_phase_where_they_are_computed() -> None:
    assert phase_seconds(metrics(1, timing_s__old_log_prob=0.02, timing_s__ref=0.03))["log-probs"] == pytest.approx(
        0.05
    )


def test_the_phases_of_an_overlapped_step_add_up_to_it() -> None:
    # Half a second of sampling passed beside the update, and the trainer waited for a quarter.
    overlapped = {**metrics(1, timing_s__gen=0.75, timing_s__update_actor=0.6), "timing_s/wait_for_samples": 0.25}
    seconds = phase_seconds(overlapped)
    assert seconds == pytest.approx({"sample": 0.25, "score": 0.0, "update": 0.6, "sync": 0.05, "other": 0.1})
    assert sum(seconds.values()) == pytest.approx(overlapped["timing_s/step"])


@pytest.mark.parametrize("broken", [{"timing_s__step": None}, {"timing_s__step": 0.0, "timing_s__gen": None}])
def test_timings_that_are_missing_break_nothing(broken: dict[str, object]) -> None:
    assert phase_lines(metrics(1, **broken), 40, 3, glyphs=UNICODE)
    assert phase_lines({}, 40, 3, glyphs=UNICODE)


def test_time_left_counts_steps_evaluations_and_the_step_that_runs() -> None:
    run = state(12)  # 28 steps of 1 s are left, and no evaluation has been timed
    assert seconds_left(run, now=19.0) == pytest.approx(28.0)
    assert seconds_left(run, now=19.4) == pytest.approx(27.6)
    assert seconds_left(run, now=99.0) == pytest.approx(27.0)
    run.tests = [4.0, 6.0]  # 3 evaluations are due, after 20, 30 and 40
    assert seconds_left(run, now=19.0) == pytest.approx(28.0 + 15.0)
    assert seconds_left(State(total=40), now=1.0) is None


def test_one_slow_step_does_not_change_the_time_left() -> None:
    run = State(total=11)
    for step in range(1, 11):
        run.add(metrics(step, timing_s__step=100.0 if step == 1 else 1.0))
    assert seconds_left(run, now=run.step_began) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("done", "total", "every", "due"),
    [(0, 40, 10, 4), (10, 40, 10, 3), (12, 45, 10, 4), (40, 40, 10, 0), (3, 9, 0, 0), (3, 9, 50, 1)],
)
def test_evaluations_to_come(done: int, total: int, every: int, due: int) -> None:
    by_hand = sum(step % every == 0 or step == total for step in range(done + 1, total + 1)) if every else 0
    assert num_evaluations(done, total, every) == by_hand == due


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-3, "0 s"), (0.4, "0 s"), (59.6, "1 min 00 s"), (245, "4 min 05 s"), (7440, "2 h 04 min"), (180000, "2 d 02 h")],
)
def test_durations_have_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_progress_says_what_is_going_on() -> None:
    first, second = plain(progress_lines(state(12), 79, 2, glyphs=UNICODE, now=20.0))
    assert first.startswith("step 12/40 ━")
    assert first.endswith("30 %  20 s so far, about 27 s left")
    assert second == "step 13: sample, 2 s (32 x 8 completions)"
    [narrow, _] = plain(progress_lines(state(12), 39, 2, glyphs=UNICODE, now=20.0))
    assert narrow == "step 12/40 30 %  about 27 s left"
    [narrowest] = plain(progress_lines(state(12), 19, 1, glyphs=UNICODE, now=20.0))
    assert narrowest == "step 12/40 30 %"


def test_an_evaluation_is_told_from_a_step() -> None:
    run = state(12)
    run.evaluating = 12
    assert activity(run, now=20.0).startswith("evaluation of step 12: sample")
    run.evaluating = 0
    assert activity(run, now=20.0).startswith("evaluation before step 1")
    run.evaluated({})
    assert activity(run, now=20.0).startswith("step 13")


def test_the_signal_line_has_the_shares_of_groups() -> None:
    [text] = plain(signal_lines(metrics(1), 79, 1, glyphs=UNICODE))
    assert text == "signal 60 %  groups: none solved 10 %  some 60 %  all 30 %"


def test_the_speed_line_has_units_and_says_what_is_unknown() -> None:
    [text] = plain(speed_lines(metrics(1), 120, 1, glyphs=UNICODE))
    assert text.startswith("20,123 tok/s  MFU 12.3 % update  5.1 % step  0.100 TFLOP/s  memory 1.2 GiB")
    unknown = metrics(1, perf__mfu__actor=None, perf__max_memory_allocated_gb=None)
    [text] = plain(speed_lines(unknown, 120, 1, glyphs=UNICODE))
    assert "MFU n/a update" in text
    assert "memory n/a" in text


def test_the_diagnosis_has_the_gravest_finding_whole_where_it_fits() -> None:
    bad = [metrics(step, training__rollout_probs_diff_mean=0.05) for step in range(1, 6)]
    whole = " ".join(plain(diagnosis_lines(bad, 79, 4, glyphs=UNICODE, limit=64)))
    assert whole.startswith("! sampler and trainer disagree: probabilities differ by 0.05 on average over the last 5")
    assert "check-backend" in whole
    [short] = plain(diagnosis_lines(bad, 40, 1, glyphs=UNICODE, limit=64))
    assert len(short) <= 40
    assert short.endswith("…")


def test_a_healthy_run_is_called_so_only_after_a_few_steps() -> None:
    history = [metrics(step) for step in range(1, 4)]
    assert plain(diagnosis_lines(history, 79, 1, glyphs=UNICODE, limit=64)) == ["no sign of trouble"]
    assert plain(diagnosis_lines(history[:1], 79, 1, glyphs=UNICODE, limit=64)) == ["diagnosis: after 3 steps"]


@pytest.mark.parametrize("width", [39, 59, 79, 199])
def test_the_table_drops_columns_and_keeps_the_score(width: int) -> None:
    history = [metrics(step, timing_s__step=1234.5, perf__tokens_per_s=1234567.0) for step in range(1, 30)]
    lines = plain(table_lines(history, width, 6))
    assert len(lines) == 6
    assert all(len(text) <= width for text in lines)
    assert lines[-1].split()[:2] == ["29", "0.690"]
    assert "score" in lines[0]


def test_the_whole_table_has_every_column() -> None:
    history = [metrics(1)]
    assert len(fitting_columns(history, whole_width(history))) == 11
    assert len(fitting_columns(history, whole_width(history) - 1)) == 10


def test_a_completion_shows_its_beginning_and_its_end() -> None:
    text = "\n".join(f"line {i}" for i in range(100))
    lines = plain(sample_lines(rollout(text), 79, 8, glyphs=UNICODE, step=3))
    assert lines == [
        "completion of step 3: reward 1, gsm8k 1, 47 tokens, ended", "> Three and four?",
        "line 0", "line 1", "…", "line 97", "line 98", "line 99",
    ]  # fmt: skip


def test_a_reward_that_failed_is_named() -> None:
    assert "reward failed" in sample_lines(rollout(reward=None), 79, 5, glyphs=UNICODE, step=3)[0].plain


def test_signs_follow_what_the_terminal_can_write() -> None:
    assert glyphs_for("utf-8") is UNICODE
    assert all(glyphs_for(name) is ASCII for name in ("ascii", "latin-1", "cp1252", "no-such-encoding"))


def test_a_step_that_is_done_again_replaces_what_came_of_it() -> None:
    run = state(12)
    run.add(metrics(9, score__mean=0.0))
    assert [record["training/global_step"] for record in run.history] == list(range(1, 10))
    assert run.last["score/mean"] == 0.0


def test_the_rollout_shown_comes_from_all_places_of_a_batch() -> None:
    run, seen = State(), set()
    batch = [rollout(str(i)) for i in range(256)]
    for step in range(1, 257):
        run.sampled(batch)
        assert run.rollout is not None
        seen.add(run.rollout.text)
        run.add(metrics(step))
    assert len(seen) == 256


def test_what_an_environment_answered_is_told_from_what_the_policy_wrote() -> None:
    parts = (("policy", "3*4=<<3*4="), ("environment", "12>>"), ("policy", "12 eggs\n#### 12"))
    played = replace(rollout("not shown"), episode=Episode(parts, "done", 2))
    rows = sample_lines(played, 40, 10, glyphs=UNICODE, step=3)
    assert plain(rows)[2:] == ["3*4=<<3*4=", "<- 12>>", "12 eggs", "#### 12"]
    assert [str(span.style) for span in rows[3].spans] == [DIM]
    many = replace(played, episode=Episode(parts * 5000, "turns", 10_000))
    assert len(sample_lines(many, 40, 10, glyphs=ASCII, step=3)) == 10


@pytest.mark.parametrize("height", [3, 4])
def test_a_completion_of_which_only_the_end_fits_is_marked_as_cut(height: int) -> None:
    rows = plain(sample_lines(rollout("one\ntwo\nthree\n#### 4"), 79, height, glyphs=UNICODE, step=3))
    assert rows[-1] == ("… #### 4" if height == 3 else "#### 4")
    assert rows[2] == ("… #### 4" if height == 3 else "… three")
