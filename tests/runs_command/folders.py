"""Folders of runs written by hand, for tests of what looks at them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STEP = "training/global_step"


def step(number: int, **metrics: Any) -> dict[str, Any]:
    """A line of metrics; `score_mean=1` stands for `score/mean`."""
    return {STEP: number, **{name.replace("__", "/"): value for name, value in metrics.items()}}


def write_run(
    folder: Path,
    records: Sequence[Mapping[str, Any]] = (),
    *,
    settings: Mapping[str, Any] | None = None,
    origins: Mapping[str, str] | None = None,
    samples: Sequence[Mapping[str, Any]] = (),
    total: int | None = None,
    ended: Mapping[str, Any] | None = None,
    machine: Mapping[str, Any] | None = None,
    algorithm: str | None = None,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "rlctl_version": "0.1.0", "settings": dict(settings or {}), "origins": dict(origins or {})
    }  # fmt: skip
    if algorithm is not None:
        config["algorithm"] = algorithm
    if total is not None:
        config["total_steps"] = total
    (folder / "config.resolved.json").write_text(json.dumps(config))
    write_lines(folder / "metrics.jsonl", records)
    write_lines(folder / "samples.jsonl", samples)
    for name, content in (("ended.json", ended), ("machine.json", machine)):
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return folder


def write_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def sample(step: int, problem: str, *, reward: float | None, completion: str = "text", **more: Any) -> dict[str, Any]:
    return {
        "step": step, "problem": problem, "source": "data", "question": "q?", "answer": "#### 1",
        "completion": completion, "reward": reward, "scores": {} if reward is None else {"gsm8k": reward},
        "failures": ["timeout"] if reward is None else [], "note": "", "finish_reason": "stop", "tokens": 5, **more,
    }  # fmt: skip
