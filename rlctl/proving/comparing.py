"""Whether two runs did the same: every metric but times, every sample, every byte of the last checkpoint's weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.checkpoints import shelf
from rlctl.errors import CheckpointError
from rlctl.runfiles import STEP

MEASURED = ("timing_s/", "perf/")
"""Metrics that a clock or the machine has a part in."""
COUNTED = ("perf/flops/", "perf/dedup_factor", "perf/num_devices")
"""Those among them that are counts."""
WEIGHTS = (".safetensors", ".pt")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two runs; `distance` is the largest |difference| of two weights, None when none differs."""

    steps: int
    metrics: int
    samples: int
    updates: int
    weight_bytes: int
    differences: list[str]
    distance: float | None

    @property
    def same(self) -> bool:
        return not self.differences and self.distance is None


def compare(one: Path, other: Path) -> Comparison:
    """Compare two finished runs by their folders. Raises CheckpointError when one has no good checkpoint."""
    records, others = _lines(one / "metrics.jsonl"), _lines(other / "metrics.jsonl")
    differences = list(_steps_that_differ(records, others))
    samples, other_samples = ((run / "samples.jsonl").read_bytes() for run in (one, other))
    if samples != other_samples:
        differences.append("samples.jsonl is not the same file")
    weight_bytes, distance = _distance(one, other)
    return Comparison(
        steps=sum(record[STEP] > 0 for record in records),
        metrics=len(_compared(records[-1])) if records else 0,
        samples=samples.count(b"\n"),
        updates=sum(record.get("actor/updates", 0) for record in records),
        weight_bytes=weight_bytes,
        differences=differences,
        distance=distance,
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _compared(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in record.items()
        if not key.startswith(MEASURED) or (key.startswith(COUNTED) and not key.endswith("/reason"))
    }


def _steps_that_differ(records: list[dict[str, Any]], others: list[dict[str, Any]]) -> Iterator[str]:
    steps, other_steps = ([record[STEP] for record in each] for each in (records, others))
    if steps != other_steps:
        yield f"metrics.jsonl has the steps {steps} in one and {other_steps} in the other"
        return
    for record, other in zip(records, others, strict=True):
        mine, theirs = _compared(record), _compared(other)
        for key in sorted({**mine, **theirs}):
            if mine.get(key) != theirs.get(key):
                yield f"step {record[STEP]}: {key} is {mine.get(key)!r} in one and {theirs.get(key)!r} in the other"


def _distance(one: Path, other: Path) -> tuple[int, float | None]:
    """(bytes of weights and optimizer compared, largest difference of two weights; None when no byte differs)."""
    held = [_last(run) for run in (one, other)]
    marks = [{n: m for n, m in each.manifest.files.items() if n.endswith(WEIGHTS)} for each in held]
    size = sum(num_bytes for num_bytes, _ in marks[0].values())
    if marks[0] == marks[1]:
        return size, None
    return size, max((_largest(held[0].folder / n, held[1].folder / n) for n in marks[0]), default=math.inf)


def _last(run: Path) -> shelf.Held:
    found = shelf.latest(run / "checkpoints")
    if found.held is None:
        raise CheckpointError(f"{run} has no good checkpoint: {' '.join(found.complaints)}")
    return found.held


def _largest(one: Path, other: Path) -> float:
    import torch

    if not other.is_file():
        return math.inf
    if one.suffix != ".safetensors":
        mine, theirs = (torch.load(path, weights_only=True)["masters"] for path in (one, other))
    else:
        from safetensors.torch import load_file

        mine, theirs = load_file(one), load_file(other)
    if mine.keys() != theirs.keys():
        return math.inf
    return max(float((mine[name].float() - theirs[name].float()).abs().max()) for name in mine)
