"""The metrics of a real training, computed again from samples.jsonl by another hand: nothing of report.py is used."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from rlctl.commands.train import train
from rlctl.runs.reading import read_run

N, PROMPTS, STEPS = 4, 8, 3

Record = dict[str, Any]


def shaped(problem: Any, completion: str) -> float:
    """A second reward, which fails on about a third of the completions."""
    if len(completion) % 3 == 0:
        raise ValueError("not this one")
    return min(1.0, len(completion) / 200)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the embedded model on two sources with two rewards, with every completion kept."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [
        {"question": f"Ann has {i} cards and gets 2 more. How many has she?", "answer": f"#### {i + 2}"}
        for i in range(9)
    ]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "config.toml").write_text(
        '[[data.sources]]\nname = "words"\nsource = "generated:word-problems"\nweight = 1\n'
        f'[[data.sources]]\nname = "sums"\npath = "{folder}/sums.jsonl"\nweight = 1\n'
    )
    assignments = [
        f"rollout.n={N}", f"trainer.train_batch_size={PROMPTS}", f"run.samples_per_step={N * PROMPTS}",
        "trainer.eval_freq=0",
        f"run.dir={folder}", "reward.functions=gsm8k,tests.runs_command.test_recomputation:shaped",
        "reward.weights=1.0,0.5",
        "reward.check=false", "rollout.max_response_length=40", "trainer.lr=1e-4", "reward.workers=thread",
    ]  # fmt: skip
    with pytest.raises(typer.Exit) as end:
        train(
            preset="gsm8k-grpo", variant="embedded", config=str(folder / "config.toml"), backend=None, steps=STEPS,
            seed=1, name="run", assignments=assignments, dry_run=False,
        )  # fmt: skip
    assert end.value.exit_code == 0
    return folder / "run"


def lines(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def steps(trained: Path) -> list[tuple[Record, list[list[Record]]]]:
    """[(metrics, [group of samples])] of every step."""
    samples = lines(trained / "samples.jsonl")
    found = []
    for metrics in lines(trained / "metrics.jsonl"):
        own = [each for each in samples if each["step"] == metrics["training/global_step"]]
        found.append((metrics, [own[i : i + N] for i in range(0, len(own), N)]))
    assert len(found) == STEPS
    return found


def average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def test_the_run_has_what_the_metrics_are_to_tell(steps: list[tuple[Record, list[list[Record]]]]) -> None:
    """Both sources, failures, and groups with and without signal are there to be counted."""
    samples = [each for _, groups in steps for group in groups for each in group]
    assert len(samples) == STEPS * PROMPTS * N
    assert {each["source"] for each in samples} == {"words", "sums"}
    assert {kind for each in samples for kind in each["failures"]} == {"exception"}
    assert all(len({each["problem"] for each in group}) == 1 for _, groups in steps for group in groups)


def test_scores_and_rewards(steps: list[tuple[Record, list[list[Record]]]]) -> None:
    for metrics, groups in steps:
        samples = [each for group in groups for each in group]
        rewards = [each["reward"] for each in samples if each["reward"] is not None]
        scores = [each["scores"]["gsm8k"] for each in samples if "gsm8k" in each["scores"]]
        (second,) = {name for each in samples for name in each["scores"]} - {"gsm8k"}
        lengths = [each["scores"][second] for each in samples if second in each["scores"]]
        assert metrics["score/mean"] == metrics["reward/gsm8k/mean"] == pytest.approx(average(scores))
        assert metrics["reward/mean"] == pytest.approx(average(rewards))
        assert metrics[f"reward/{second}/mean"] == pytest.approx(average(lengths))
        assert metrics["reward/failed"] == len(samples) - len(rewards) > 0
        for kind in ("timeout", "exception", "crash", "not_finite"):
            assert metrics[f"reward/failures/{kind}"] == sum(each["failures"].count(kind) for each in samples)
        for each in samples:
            if each["reward"] is not None:
                assert each["reward"] == pytest.approx(each["scores"]["gsm8k"] + 0.5 * each["scores"][second])


def test_groups(steps: list[tuple[Record, list[list[Record]]]]) -> None:
    for metrics, groups in steps:
        solved = [sum(each["scores"].get("gsm8k", 0) == 1 for each in group) for group in groups]
        rewards = [[each["reward"] for each in group if each["reward"] is not None] for group in groups]
        assert metrics["reward/solved_none"] == solved.count(0) / PROMPTS
        assert metrics["reward/solved_all"] == solved.count(N) / PROMPTS
        assert metrics["reward/solved_some"] == sum(0 < count < N for count in solved) / PROMPTS
        assert metrics["reward/frac_zero_signal"] == sum(len(set(group)) < 2 for group in rewards) / PROMPTS
        assert metrics["reward/shrunk_groups"] == sum(len(group) < 2 for group in rewards)
        texts = [{each["completion"] for each in group} for group in groups]
        assert metrics["reward/identical_groups"] == sum(len(some) == 1 for some in texts)


def test_advantages_and_rows(steps: list[tuple[Record, list[list[Record]]]]) -> None:
    """(reward - mean) / (sample deviation + 1e-6) over the group, for the groups whose rewards differ."""
    for metrics, groups in steps:
        found = []
        for group in groups:
            rewards = [each["reward"] for each in group if each["reward"] is not None]
            if len(set(rewards)) > 1:
                deviation = statistics.stdev(rewards) + 1e-6
                found += [(reward - statistics.fmean(rewards)) / deviation for reward in rewards]
        assert metrics["advantages/min"] == pytest.approx(min(found))
        assert metrics["advantages/max"] == pytest.approx(max(found))
        assert metrics["advantages/mean"] == pytest.approx(average(found), abs=1e-9)
        assert metrics["actor/train_rows"] == len(found)


def test_lengths_and_tokens(steps: list[tuple[Record, list[list[Record]]]]) -> None:
    for metrics, groups in steps:
        samples = [each for group in groups for each in group]
        lengths = [each["tokens"] for each in samples]
        assert metrics["response_length/mean"] == pytest.approx(average(lengths))
        assert (metrics["response_length/min"], metrics["response_length/max"]) == (min(lengths), max(lengths))
        assert metrics["response_length/clip_ratio"] == average([each["finish_reason"] == "length" for each in samples])
        assert metrics["prompt_length/mean"] == average([group[0]["prompt_tokens"] for group in groups])
        tokens = sum(each["tokens"] + each["prompt_tokens"] for each in samples)
        assert metrics["perf/tokens_per_s"] * metrics["timing_s/step"] == pytest.approx(tokens)
        assert metrics["perf/sampled_tokens_per_s"] * metrics["timing_s/gen"] == pytest.approx(sum(lengths))


def test_each_source(steps: list[tuple[Record, list[list[Record]]]]) -> None:
    for metrics, groups in steps:
        for source in ("words", "sums"):
            own = [group for group in groups if group[0]["source"] == source]
            samples = [each for group in own for each in group]
            rewards = [[each["reward"] for each in group if each["reward"] is not None] for group in own]
            known = [reward for group in rewards for reward in group]
            assert metrics[f"data/{source}/groups"] == len(own) == PROMPTS / 2
            assert metrics[f"data/{source}/reward/mean"] == pytest.approx(average(known))
            scores = [each["scores"]["gsm8k"] for each in samples if "gsm8k" in each["scores"]]
            assert metrics[f"data/{source}/score/mean"] == pytest.approx(average(scores))
            lengths = [each["tokens"] for each in samples]
            assert metrics[f"data/{source}/response_length/mean"] == pytest.approx(average(lengths))
            equal = [len(set(group)) < 2 for group in rewards]
            assert metrics[f"data/{source}/frac_zero_signal"] == pytest.approx(average(equal))


def test_the_run_tells_that_it_is_finished_and_what_it_ran_on(trained: Path) -> None:
    run = read_run(trained)
    assert (run.state.kind, run.done, run.total_steps, run.complaints) == ("finished", STEPS, STEPS, ())
    assert set(run.config["versions"]) >= {"rlctl", "python", "torch"}
    assert run.origins["trainer.lr"] == "--set trainer.lr"
