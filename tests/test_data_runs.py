"""Whole runs whose data is mixed, passed over by difficulty, or refilled: what is written, and decided by the seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlctl.feed import Feed
from rlctl.prepare import batch_of, feed_of
from tests.test_loop import lines, prepared, run

pytestmark = pytest.mark.usefixtures("fake_backend")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"What is {i}?", "answer": "#### 1"}) for i in range(40)))
    return path


REWARD = "reward.functions=tests.scores:half_solved"


def test_a_mixture_reports_each_source_and_evaluates_each(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps({"question": f"other {i}", "answer": "1"}) for i in range(40)))
    tables = [{"path": str(data), "weight": 3, "name": "main"}, {"path": str(other), "weight": 1}]
    ready = prepared(tiny_llama, data, "data.path=null", f"data.sources={json.dumps(tables)}")
    assert len(ready.problems) == 72
    run(ready, tmp_path / "run")
    metrics = lines(tmp_path / "run/metrics.jsonl")
    assert {"val-core/main/acc/mean@1", "val-core/other/acc/mean@1"} <= set(metrics[0])
    assert [(m["data/main/groups"], m["data/other/groups"]) for m in metrics[1:]] == [(3, 1)] * 6
    assert {"data/main/score/mean", "data/other/frac_zero_signal"} <= set(metrics[1])
    assert [p.id for p in batch_of(ready, 4)[0]] == [p.id for p in batch_of(ready, 4)[0]]


def test_a_curriculum_is_counted_and_saved_with_each_checkpoint(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(
        tiny_llama, data, "data.curriculum.enabled=true", REWARD, "trainer.steps=20", "trainer.train_batch_size=8"
    )
    run(ready, tmp_path / "run")
    metrics = lines(tmp_path / "run/metrics.jsonl")[1:]
    solved = [m["reward/solved_all"] for m in metrics]
    # All 36 have been seen by step 5; from then on few of the solved half come up.
    assert sum(solved[:4]) / 4 > 0.4
    assert sum(solved[10:]) / 10 < 0.35
    assert metrics[-1]["data/curriculum/seen"] == 36
    assert metrics[-1]["data/curriculum/resting_all"] >= 16
    assert sum(m["data/curriculum/passed_over"] for m in metrics) > 0
    assert sum(m["data/curriculum/revisited"] for m in metrics) > 0
    states = [json.loads(p.read_text()) for p in sorted((tmp_path / "run/checkpoints").glob("*/run_state.json"))]
    data_states = [state["data"] for state in states]
    assert [state["step"] for state in states] == list(range(2, 21, 2))
    later: Feed = feed_of(ready)
    later.load_state_dict(data_states[-1])
    assert later.state_dict() == data_states[-1]


def test_runs_with_refills_and_a_curriculum_are_the_same_again(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    settings = ("data.curriculum.enabled=true", "algorithm.filter_groups=true", REWARD, "trainer.lr=0.1")
    samples = []
    for name in ("a", "b"):
        run(prepared(tiny_llama, data, *settings), tmp_path / name)
        samples.append((tmp_path / name / "samples.jsonl").read_text())
    assert samples[0] == samples[1]
    metrics = lines(tmp_path / "a/metrics.jsonl")[1:]
    assert any(m["rollout/refills"] for m in metrics)
    assert all(m["rollout/sampled_groups"] >= 4 for m in metrics)
    assert any(m["rollout/missing_groups"] == 0 and m["rollout/replaced_groups"] > 0 for m in metrics)


def test_without_either_the_saved_cursor_is_that_of_the_step(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data)
    run(ready, tmp_path / "run")
    state = json.loads((tmp_path / "run/checkpoints/step_000004/run_state.json").read_text())["data"]
    assert state == {"cursors": {"problems": 16}, "curriculum": None}
    feed = feed_of(ready)
    feed.seek(5)
    assert feed.cursors == [16]
