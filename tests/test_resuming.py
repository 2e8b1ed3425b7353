"""A run that was stopped anywhere and goes on is the run that was not: with the fake backend, in every way to stop."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlctl import resuming, runlock
from rlctl.errors import CheckpointError, ConfigError
from rlctl.prepare import feed_of
from rlctl.types import Prompt, Sampling
from tests import runs
from tests.fakes import FakeBackend, FakeSettings
from tests.runs import Recorder, prepared, run, saved, without_times

pytestmark = pytest.mark.usefixtures("fake_backend")


class Killed(BaseException):
    """What a kill is to the code below it: nothing is cleared up, nothing is saved."""


def killed_after(step: int) -> Recorder:
    def maybe(done: int) -> None:
        if done == step:
            raise Killed

    return Recorder(maybe)


def same_files(one: Path, other: Path) -> bool:
    return without_times(one / "metrics.jsonl") == without_times(other / "metrics.jsonl") and (
        (one / "samples.jsonl").read_bytes() == (other / "samples.jsonl").read_bytes()
    )


def theta(folder: Path, step: int) -> list[float]:
    values: list[float] = np.load(folder / f"checkpoints/step_{step:06d}/fake.npz")["theta"].tolist()
    return values


@pytest.mark.parametrize(("kill_at", "save_freq"), [(1, 1), (3, 1), (3, 2), (6, 2)])
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    tiny_llama: Path, data: Path, tmp_path: Path, kill_at: int, save_freq: int
) -> None:
    ready = prepared(tiny_llama, data, f"trainer.save_freq={save_freq}", "trainer.lr_schedule=cosine")
    run(ready, tmp_path / "straight")
    with pytest.raises(Killed):
        run(ready, tmp_path / "killed", killed_after(kill_at))
    recorder = Recorder()
    outcome, backend = run(ready, tmp_path / "killed", recorder)
    assert same_files(tmp_path / "straight", tmp_path / "killed")
    assert theta(tmp_path / "straight", 6) == theta(tmp_path / "killed", 6)
    assert backend.version == 6
    assert [m["training/global_step"] for m in outcome.metrics] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in outcome.evaluations] == [0, 3, 6]


def test_dynamic_sampling_and_a_curriculum_go_on_where_they_were(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    settings = ("data.curriculum.enabled=true", "algorithm.filter_groups=true", "trainer.steps=14", "trainer.lr=0.1")
    ready = prepared(tiny_llama, data, *settings)
    run(ready, tmp_path / "straight")
    for kill_at in (3, 9, 11):
        with pytest.raises(Killed):
            run(ready, tmp_path / "killed", killed_after(kill_at))
    run(ready, tmp_path / "killed")
    assert same_files(tmp_path / "straight", tmp_path / "killed")
    assert any(m["data/curriculum/passed_over"] for m in without_times(tmp_path / "killed/metrics.jsonl")[1:])


STEERED = (
    "algorithm.use_kl_in_reward=true", "algorithm.kl_coef=0.1", "algorithm.kl_target=1e-4", "algorithm.kl_horizon=100",
    "algorithm.kl_penalty=k3",
)  # fmt: skip


def weights(outcome: Any) -> list[float]:
    return [metrics["actor/reward_kl_penalty_coeff"] for metrics in outcome.metrics]


def test_a_steered_weight_of_kl_goes_on_where_it_was(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, *STEERED)
    straight, _ = run(ready, tmp_path / "straight")
    with pytest.raises(Killed):
        run(ready, tmp_path / "killed", killed_after(4))
    killed, _ = run(ready, tmp_path / "killed")
    assert same_files(tmp_path / "straight", tmp_path / "killed")
    assert theta(tmp_path / "straight", 6) == theta(tmp_path / "killed", 6)
    assert weights(straight) == weights(killed)
    # As the formula has it, by the groups of a step that were compared; at first policy and reference are one.
    assert weights(straight)[0] == 0.1
    for before, after in pairwise(straight.metrics):
        completions = 16 * (1 - before["reward/frac_zero_signal"])
        error = min(max(before["actor/reward_kl_penalty"] / 1e-4 - 1, -0.2), 0.2)
        expected = before["actor/reward_kl_penalty_coeff"] * (1 + error * completions / 100)
        assert after["actor/reward_kl_penalty_coeff"] == pytest.approx(expected)
    assert min(weights(straight)) < 0.1 < max(weights(straight))


def test_a_weight_of_kl_that_is_set_anew_is_taken_and_one_that_is_not_goes_on(
    tiny_llama: Path, data: Path, tmp_path: Path
) -> None:
    def goes_on(*assignments: str) -> float:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        run(prepared(tiny_llama, data, *STEERED, "trainer.steps=4"), folder)
        ready = prepared(tiny_llama, data, *STEERED, "trainer.steps=6", *assignments)
        return weights(run(ready, folder)[0])[-2]

    straight = weights(run(prepared(tiny_llama, data, *STEERED), tmp_path / "straight")[0])
    assert goes_on() == goes_on("algorithm.kl_target=0.5") == straight[4]
    assert goes_on("algorithm.kl_coef=0.7") == 0.7
    assert goes_on("algorithm.kl_target=null") == 0.1


class Gambling(FakeBackend):
    """Draws from the global generators, as a backend or a reward of others may."""

    async def generate(self, prompts: Any, *, n: int, sampling: Sampling) -> Any:
        import torch

        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        moved = [Prompt(p.token_ids, int(noise * 2**40) ^ p.seed) for p in prompts]
        return await super().generate(moved, n=n, sampling=sampling)


def test_the_global_generators_go_on_too(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    # Field fault 121: six steps against three, a resume, and three.
    ready = prepared(tiny_llama, data)
    job = ready.settings.job(model="", end_token_ids=ready.end_token_ids)

    def gambling() -> FakeBackend:
        return Gambling(FakeSettings(), job)

    run(ready, tmp_path / "straight", backend=gambling())
    with pytest.raises(Killed):
        run(ready, tmp_path / "killed", killed_after(4), backend=gambling())
    random.seed(99)
    np.random.seed(99)
    run(ready, tmp_path / "killed", backend=gambling())
    assert same_files(tmp_path / "straight", tmp_path / "killed")


@pytest.mark.parametrize(("first", "second"), [((2, 3), (2, 2)), ((2, 3), (4, 1))])
def test_every_problem_comes_once_whatever_the_batch_after_a_resume(
    tiny_llama: Path, tmp_path: Path, first: tuple[int, int], second: tuple[int, int]
) -> None:
    # Field fault 120: ten problems, batches of 2, stopped after step 3; then batches of 2, or of 4.
    few = runs.write_problems(tmp_path, 11)

    def feed(batch: int) -> Any:
        return feed_of(prepared(tiny_llama, few, f"trainer.train_batch_size={batch}", "data.eval_size=1"))

    before, after = feed(first[0]), feed(second[0])
    assert sum(len(pool.problems) for pool in before.pools) == 10
    seen = [p.id for step in range(1, first[1] + 1) for p in before.batch(step)]
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    seen += [p.id for step in range(first[1] + 1, first[1] + 1 + second[1]) for p in after.batch(step)]
    uninterrupted = feed(2)
    order = [p.id for step in range(1, 6) for p in uninterrupted.batch(step)]
    assert len(set(order)) == 10
    assert seen == order


def test_a_run_killed_before_its_first_checkpoint_begins_again(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, "trainer.save_freq=0")
    run(ready, tmp_path / "straight")
    with pytest.raises(Killed):
        run(ready, tmp_path / "killed", killed_after(2))
    recorder = Recorder()
    run(ready, tmp_path / "killed", recorder)
    assert same_files(tmp_path / "straight", tmp_path / "killed")
    assert any("begins again" in note for note in recorder.notes)


def test_a_complete_run_has_nothing_left_to_do(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data)
    run(ready, tmp_path / "run")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    outcome, backend = run(ready, tmp_path / "run")
    assert "optim_step" not in backend.calls
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before
    assert outcome.exit_code == 0
    assert outcome.checkpoint == tmp_path / "run/checkpoints/step_000006"


def test_more_steps_can_be_asked_of_a_run(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    run(prepared(tiny_llama, data, "trainer.steps=4"), tmp_path / "run")
    recorder = Recorder()
    run(prepared(tiny_llama, data, "trainer.steps=6"), tmp_path / "run", recorder)
    run(prepared(tiny_llama, data, "trainer.steps=6"), tmp_path / "straight")
    assert theta(tmp_path / "run", 6) == theta(tmp_path / "straight", 6)
    assert "changed since then: steps of the run: 4 -> 6: safe" in recorder.notes


def test_a_log_that_lost_the_end_of_a_line_is_mended(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    # The kill fell into the line of a step that no checkpoint holds.
    ready = prepared(tiny_llama, data, "trainer.save_freq=2")
    run(ready, tmp_path / "straight")
    with pytest.raises(Killed):
        run(ready, tmp_path / "killed", killed_after(4))
    for name in ("metrics.jsonl", "samples.jsonl"):
        with (tmp_path / "killed" / name).open("a") as log:
            log.write('{"training/global_step": 4, "step": 4, "score/mean": 0.')
    run(ready, tmp_path / "killed")
    assert same_files(tmp_path / "straight", tmp_path / "killed")


def spoil(run_folder: Path, step: int, change: Callable[[Path], None]) -> None:
    change(run_folder / f"checkpoints/step_{step:06d}")


def test_damaged_checkpoints_are_passed_over_and_written_again(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data)
    run(ready, tmp_path / "straight")
    run(ready, tmp_path / "run")
    (tmp_path / "run/checkpoints/step_000006/fake.npz").write_bytes(b"half")
    (tmp_path / "run/checkpoints/step_000005/manifest.json").unlink()
    recorder = Recorder()
    run(ready, tmp_path / "run", recorder)
    assert same_files(tmp_path / "straight", tmp_path / "run")
    assert theta(tmp_path / "straight", 6) == theta(tmp_path / "run", 6)
    assert "resumes after step 4 of 6 from step_000004" in recorder.notes
    assert sum("passed over" in note for note in recorder.notes) == 2
    assert saved(tmp_path / "run") == [f"step_{step:06d}" for step in range(1, 7)]


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_again_in_silence(
    tiny_llama: Path, data: Path, tmp_path: Path
) -> None:
    ready = prepared(tiny_llama, data, "trainer.steps=2")
    run(ready, tmp_path / "run")
    for manifest in (tmp_path / "run/checkpoints").glob("*/manifest.json"):
        manifest.write_text("{}")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is good") as caught:
        run(ready, tmp_path / "run")
    assert caught.value.message.count("damaged") == 2


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ("run.samples_per_step=1", "safe"),
        ("trainer.keep_last=2", "safe"),
        ("eval.temperature=1.0", "safe"),
        ("trainer.lr=0.5", "changes the trajectory"),
        ("rollout.temperature=0.7", "changes the trajectory"),
        ("seed=1", "changes the trajectory"),
        ("trainer.max_tokens_per_device=512", "changes the trajectory (by rounding)"),
    ],
)
def test_changed_settings_are_listed_and_judged(
    tiny_llama: Path, data: Path, tmp_path: Path, change: str, verdict: str
) -> None:
    run(prepared(tiny_llama, data, "trainer.steps=1"), tmp_path / "run")
    recorder = Recorder()
    run(prepared(tiny_llama, data, "trainer.steps=1", change), tmp_path / "run", recorder)
    name = change.partition("=")[0]
    told = [note for note in recorder.notes if note.startswith(f"changed since then: {name}: ")]
    assert len(told) == 1
    assert told[0].endswith(verdict)
    resumes = runs.lines(tmp_path / "run/resumes.jsonl")
    assert [r["from_step"] for r in resumes] == [1]
    assert any(name in line for line in resumes[0]["changes"])


def test_what_makes_a_checkpoint_useless_is_refused(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    run(prepared(tiny_llama, data), tmp_path / "run")
    with pytest.raises(ConfigError, match="step 6 is done already"):
        run(prepared(tiny_llama, data, "trainer.steps=5"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"model\.lora\.rank: 0 -> 4: impossible"):
        run(prepared(tiny_llama, data, "model.lora.rank=4"), tmp_path / "run")
    other = data.with_name("others.jsonl")
    other.write_text(data.read_text())
    with pytest.raises(ConfigError, match="sources of the data"):
        run(prepared(tiny_llama, data, f"data.path={other}"), tmp_path / "run")


def test_another_file_of_the_same_name_is_noticed(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    run(prepared(tiny_llama, data, "trainer.steps=1"), tmp_path / "run")
    data.write_text(data.read_text().replace("#### 7", "#### 8"))
    recorder = Recorder()
    run(prepared(tiny_llama, data, "trainer.steps=1"), tmp_path / "run", recorder)
    assert any("problems of problems" in note and "changes the trajectory" in note for note in recorder.notes)


def test_resume_never_and_must(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint to go on from"):
        run(prepared(tiny_llama, data, "run.resume=must"), tmp_path / "run")
    run(prepared(tiny_llama, data, "trainer.steps=1"), tmp_path / "run")
    with pytest.raises(ConfigError, match="already holds a run"):
        run(prepared(tiny_llama, data, "run.resume=never"), tmp_path / "run")


def test_two_runs_never_write_one_folder(tmp_path: Path) -> None:
    notes: list[str] = []
    with (
        runlock.held(tmp_path / "run", note=notes.append),
        pytest.raises(ConfigError, match="is in use by"),
        runlock.held(tmp_path / "run", note=notes.append),
    ):
        raise AssertionError("both hold it")
    with runlock.held(tmp_path / "run", note=notes.append):
        assert notes == []


def test_every_pattern_of_the_judgement_names_a_setting() -> None:
    import fnmatch

    from rlctl.settings_tree import leaves

    names = [".".join(leaf) for leaf in leaves()]
    patterns = (*resuming.SAFE, *resuming.ROUNDING, *resuming.IMPOSSIBLE)
    assert [p for p in patterns if not any(fnmatch.fnmatch(name, p) for name in names)] == []
