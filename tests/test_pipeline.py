"""Sampling ahead of training, with a fake of two sides: which policy draws which batch, whatever takes how long."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rlctl import loop
from rlctl.checkpoints import ahead
from rlctl.errors import BackendError, ConfigError
from rlctl.outcome import Outcome
from rlctl.pipeline import Clock
from rlctl.prepare import Prepared
from rlctl.types import LossSpec, LossStats, TrainRow
from tests import runs
from tests.runs import Recorder, lines, run, saved
from tests.test_resuming import STEERED, Killed, killed_after, same_files, theta
from tests.two_sided import TwoSidedBackend


@pytest.fixture(autouse=True)
def two_sided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCTL_PLUGINS", "tests.two_sided_plugin,tests.fake_plugin")


def prepared(model: Path, data: Path, most: int, *assignments: str) -> Prepared:
    own = ("backend=two_sided", f"trainer.max_off_policy_steps={most}", "trainer.eval_freq=0", *assignments)
    return runs.prepared(model, data, *own)


def delays(sample_s: float, update_s: float) -> tuple[str, str]:
    table = "remote_backend.two_sided"
    return f"{table}.sample_s={sample_s}", f"{table}.update_s={update_s}"


def ran(ready: Prepared, folder: Path, recorder: Recorder | None = None) -> tuple[Outcome, TwoSidedBackend]:
    outcome, backend = run(ready, folder, recorder)
    assert isinstance(backend, TwoSidedBackend)
    return outcome, backend


def staleness(outcome: Outcome) -> list[int]:
    return [metrics["training/staleness_max"] for metrics in outcome.metrics]


@pytest.mark.parametrize(
    ("most", "drawn_from", "ages"),
    [
        (1, [0, 0, 1, 2, 3, 4], [0, 1, 1, 1, 1, 1]),
        (2, [0, 0, 0, 2, 2, 4], [0, 1, 2, 1, 2, 1]),
        (3, [0, 0, 0, 0, 3, 3], [0, 1, 2, 3, 1, 2]),
        (100, [0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_batch_is_from_a_policy_at_most_so_many_steps_old(
    tiny_llama: Path, data: Path, tmp_path: Path, most: int, drawn_from: list[int], ages: list[int]
) -> None:
    outcome, backend = ran(prepared(tiny_llama, data, most, "trainer.save_freq=0"), tmp_path / "run")
    assert backend.drawn_from == drawn_from
    assert staleness(outcome) == ages
    samples = lines(tmp_path / "run/samples.jsonl")
    assert [next(s["policy_version"] for s in samples if s["step"] == step) for step in range(1, 7)] == drawn_from


def test_the_next_batch_is_drawn_while_this_one_is_learnt_from(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, 1, "trainer.steps=3", *delays(0.02, 0.02))
    _, backend = ran(ready, tmp_path)
    assert backend.log[0] == "draws from 0"
    log = backend.log
    ends = [log.index(f"publishes {version}") for version in (1, 2, 3)]
    # Between two publications both are at work, in whatever order they begin.
    assert sorted(log[1 : ends[0]]) == ["draws from 0", "learns"]
    assert sorted(log[ends[0] + 1 : ends[1]]) == ["draws from 1", "learns"]
    assert log[ends[1] + 1 :] == ["learns", "publishes 3"]


@pytest.mark.parametrize(
    ("most", "assignments"),
    [(1, ()), (3, ("algorithm.filter_groups=true", "data.curriculum.enabled=true")), (2, STEERED)],
)
def test_what_takes_how_long_changes_no_number(
    tiny_llama: Path, data: Path, tmp_path: Path, most: int, assignments: tuple[str, ...]
) -> None:
    for name, seconds in {"even": (0.0, 0.0), "slow_sampler": (0.02, 0.0), "slow_trainer": (0.0, 0.02)}.items():
        ran(prepared(tiny_llama, data, most, "trainer.save_freq=0", *assignments, *delays(*seconds)), tmp_path / name)
    assert same_files(tmp_path / "even", tmp_path / "slow_sampler")
    assert same_files(tmp_path / "even", tmp_path / "slow_trainer")
    assert theta(tmp_path / "even", 6) == theta(tmp_path / "slow_sampler", 6) == theta(tmp_path / "slow_trainer", 6)


def test_without_staleness_a_backend_of_two_sides_gives_the_run_of_one(
    tiny_llama: Path, data: Path, tmp_path: Path
) -> None:
    ran(prepared(tiny_llama, data, 0, "trainer.save_freq=0"), tmp_path / "two")
    run(runs.prepared(tiny_llama, data, "trainer.eval_freq=0", "trainer.save_freq=0"), tmp_path / "one")
    assert same_files(tmp_path / "one", tmp_path / "two")
    assert theta(tmp_path / "one", 6) == theta(tmp_path / "two", 6)


@pytest.mark.parametrize("most", [1, 3])
def test_evaluations_are_of_the_policy_of_their_step_and_change_no_later_one(
    tiny_llama: Path, data: Path, tmp_path: Path, most: int
) -> None:
    _, backend = ran(
        prepared(tiny_llama, data, most, "trainer.eval_freq=1", "trainer.save_freq=0"), tmp_path / "evaluated"
    )
    ran(prepared(tiny_llama, data, most, "trainer.save_freq=0"), tmp_path / "plain")
    assert theta(tmp_path / "evaluated", 6) == theta(tmp_path / "plain", 6)
    evaluations = [
        i for i, record in enumerate(lines(tmp_path / "evaluated/metrics.jsonl")) if "timing_s/testing" in record
    ]
    assert len(evaluations) == 7
    # After step 0..6, each once by the policy of that very step; the others are batches.
    own = list(backend.drawn_from)
    for version in range(7):
        own.remove(version)


@pytest.mark.parametrize(
    ("most", "kill_at", "save_freq", "assignments"),
    [
        (1, 3, 2, ()),
        (1, 4, 1, ("algorithm.filter_groups=true", "data.curriculum.enabled=true")),
        (3, 3, 2, ("algorithm.filter_groups=true", "data.curriculum.enabled=true")),
        (3, 5, 4, ()),
        (1, 3, 2, STEERED),
        (3, 5, 4, STEERED),
    ],
)
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    tiny_llama: Path, data: Path, tmp_path: Path, most: int, kill_at: int, save_freq: int, assignments: tuple[str, ...]
) -> None:
    ready = prepared(tiny_llama, data, most, f"trainer.save_freq={save_freq}", *assignments, *delays(0.002, 0.001))
    ran(ready, tmp_path / "straight")
    with pytest.raises(Killed):
        ran(ready, tmp_path / "killed", killed_after(kill_at))
    ran(ready, tmp_path / "killed")
    assert same_files(tmp_path / "straight", tmp_path / "killed")
    assert theta(tmp_path / "straight", 6) == theta(tmp_path / "killed", 6)


@pytest.mark.parametrize("most", [1, 2])
def test_ctrl_c_finishes_the_step_saves_what_is_ahead_and_the_run_goes_on_from_there(
    tiny_llama: Path, data: Path, tmp_path: Path, most: int
) -> None:
    ready = prepared(tiny_llama, data, most, "trainer.save_freq=0", *delays(0.005, 0.005))
    ran(ready, tmp_path / "straight")
    outcome, _ = ran(
        ready, tmp_path / "stopped", Recorder(lambda step: signal.raise_signal(signal.SIGINT) if step == 2 else None)
    )
    assert outcome.exit_code == 130
    assert saved(tmp_path / "stopped") == ["step_000003"]
    held = ahead.read(tmp_path / "stopped/checkpoints/step_000003")
    assert [drawn.sampled.step for drawn in held] == {1: [4], 2: [4, 5]}[most]
    ran(ready, tmp_path / "stopped")
    assert same_files(tmp_path / "straight", tmp_path / "stopped")
    assert theta(tmp_path / "straight", 6) == theta(tmp_path / "stopped", 6)


class Stuck(TwoSidedBackend):
    """Its `at`-th forward_backward takes a minute, and sends the signals in its midst."""

    def __init__(self, ready: Prepared, *, at: int, numbers: tuple[int, ...]) -> None:
        template = loop.backend_for(ready)
        super().__init__(template.settings, template.job)
        self.at, self.numbers, self.seen = at, numbers, 0

    async def forward_backward(self, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        self.seen += 1
        if self.seen == self.at:
            with self.at_work("train"):
                await asyncio.sleep(0.05)  # while the sampler draws
                for number in self.numbers:
                    signal.raise_signal(number)
                await asyncio.sleep(60)
        return await super().forward_backward(rows, loss=loss, loss_denominator=loss_denominator)

    def abandon(self) -> bool:
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_step_that_is_given_up_before_its_update_is_computed_again_from_the_same_samples(
    tiny_llama: Path, data: Path, tmp_path: Path, number: int
) -> None:
    ready = prepared(tiny_llama, data, 1, "run.stop_grace_s=0.1", "trainer.save_freq=0")
    ran(ready, tmp_path / "straight")
    outcome, _ = run(ready, tmp_path / "run", backend=Stuck(ready, at=3, numbers=(number,)))
    if number == signal.SIGTERM:
        assert (outcome.exit_code, saved(tmp_path / "run")) == (143, ["step_000002"])
        ran(ready, tmp_path / "run")
    assert same_files(tmp_path / "straight", tmp_path / "run")
    assert theta(tmp_path / "straight", 6) == theta(tmp_path / "run", 6)


def test_what_is_ahead_and_too_stale_for_a_run_that_goes_on_is_drawn_anew(
    tiny_llama: Path, data: Path, tmp_path: Path
) -> None:
    first = prepared(tiny_llama, data, 3, "trainer.steps=3")
    ran(first, tmp_path / "run")
    again = prepared(tiny_llama, data, 0)
    recorder = Recorder()
    ran(again, tmp_path / "run", recorder)
    assert any("max_off_policy_steps: 3 -> 0: changes the trajectory" in note for note in recorder.notes)
    samples = lines(tmp_path / "run/samples.jsonl")
    assert {s["step"]: s["policy_version"] for s in samples if s["step"] > 3} == {4: 3, 5: 4, 6: 5}
    ran(prepared(tiny_llama, data, 0), tmp_path / "straight")
    problems = [[s["problem"] for s in lines(tmp_path / name / "samples.jsonl")] for name in ("run", "straight")]
    assert problems[0] == problems[1]


@pytest.mark.parametrize("most", [1, 3])
def test_a_sampler_that_fails_ends_the_update_beside_it(
    tiny_llama: Path, data: Path, tmp_path: Path, most: int
) -> None:
    # The second batch fails while the first is learnt from, for a minute.
    ready = prepared(tiny_llama, data, most, "remote_backend.two_sided.fail_at_generate=2", *delays(0.01, 60.0))
    used = loop.backend_for(ready)
    assert isinstance(used, TwoSidedBackend)
    with pytest.raises(BackendError, match="the sampler is gone"):
        run(ready, tmp_path, backend=used)
    assert used.log[-1] == "train cut off"
    assert used.running == []


def test_a_trainer_that_fails_ends_the_sampling_beside_it(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, 1, "remote_backend.two_sided.fail_at_update=1", *delays(0.0, 0.01))
    used = loop.backend_for(ready)
    assert isinstance(used, TwoSidedBackend)
    with pytest.raises(BackendError, match="the trainer is gone"):
        run(ready, tmp_path, backend=used)
    assert used.running == []
    assert used.closed


def test_both_waits_have_names(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    class Looking(Recorder):
        waits: Callable[[], Sequence[tuple[str, float]]]
        seen: set[frozenset[str]]

        def follow(self, waits: Callable[[], Sequence[tuple[str, float]]]) -> None:
            self.waits, self.seen = waits, set()

    looking = Looking()
    ready = prepared(tiny_llama, data, 1, "trainer.steps=2", *delays(0.05, 0.05))

    class Watching(TwoSidedBackend):
        async def forward_backward(
            self, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float
        ) -> LossStats:
            await asyncio.sleep(0.01)
            looking.seen.add(frozenset(name.split("(")[-1] for name, _ in looking.waits()))
            return await super().forward_backward(rows, loss=loss, loss_denominator=loss_denominator)

    template = loop.backend_for(ready)
    run(ready, tmp_path, looking, backend=Watching(template.settings, template.job))
    assert frozenset({"generate)", "forward_backward)"}) in looking.seen


def test_a_rollback_drops_what_the_lost_policy_drew(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(
        tiny_llama, data, 1, "trainer.on_non_finite=rollback", "trainer.max_skipped_updates=1",
        "remote_backend.two_sided.nan_at_update=3", "trainer.lr=0.5",
    )  # fmt: skip
    outcome, _ = ran(ready, tmp_path / "run")
    assert [metrics["training/global_step"] for metrics in outcome.metrics] == [1, 2, 3, 4, 5, 6]
    # Step 3 was refused; step 4 begins with nothing ahead, on the weights that step 2 had left.
    assert staleness(outcome) == [0, 1, 1, 0, 1, 1]
    straight = prepared(tiny_llama, data, 1)
    ran(straight, tmp_path / "straight")
    problems = [[s["problem"] for s in lines(tmp_path / name / "samples.jsonl")] for name in ("run", "straight")]
    assert problems[0] == problems[1]


def test_a_backend_that_takes_turns_is_refused_before_it_starts(tiny_llama: Path, data: Path) -> None:
    ready = runs.prepared(tiny_llama, data, "trainer.max_off_policy_steps=2")
    with pytest.raises(ConfigError, match=r"max_off_policy_steps = 2 .* backend fake cannot: .* take turns"):
        loop.backend_for(ready)


def test_a_clock_tells_what_both_sides_did_at_once() -> None:
    times = iter([0.0, 1.0, 3.0, 7.0, 8.0, 10.0])
    clock = Clock(now=lambda: next(times))
    clock.begin()
    with clock.at_work("sampling"), clock.at_work("training"):  # 1 to 8, and 3 to 7 in it
        pass
    overlap = clock.lap()
    assert (overlap.seconds, overlap.sampling, overlap.training, overlap.both) == (10.0, 7.0, 4.0, 4.0)
    assert overlap.share == 1.0


def test_metrics_tell_age_waits_and_overlap(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    outcome, _ = ran(prepared(tiny_llama, data, 1, *delays(0.05, 0.01)), tmp_path)
    for metrics in outcome.metrics[1:-1]:
        assert metrics["training/staleness_mean"] == 1
        assert metrics["timing_s/wait_for_samples"] > 0.02
        assert 0 < metrics["perf/overlap"] <= 1
