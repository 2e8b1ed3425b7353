"""Records of runs that never ran: the same work in every run, on a machine whose speed is made up."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from rlctl.baselines.file import Baseline
from rlctl.baselines.record import Record, Step

KEY: dict[str, Any] = {
    "backend": "local", "device": "cpu", "devices": 1, "dtype": "float32", "model": "m", "parameters": 10,
    "processor": "p x2", "threads": 1, "peak": "measured", "clock": "own seconds",
    "versions": {"rlctl": "0.1.0", "torch": "2.13.0"},
}  # fmt: skip
RECIPE: dict[str, Any] = {"trainer.lr": 1e-3, "trainer.betas": [0.9, 0.95], "problems of data": "9 abc"}


def run(
    seed: int,
    *,
    steps: int = 10,
    update: float = 1.0,
    sampling: float = 1.0,
    noise: float = 0.04,
    whole: float = 0.02,
    waited: float = 0.0,
    **figures: Any,
) -> Record:
    """Phases that take `update` and `sampling` times what they should, on a machine that drifts by half and jitters.

    Each step's seconds, and each reading of the reference, are `noise` off, in logarithms; one in twenty of all
    meets a neighbour and takes half as long again. Of each phase, the run as a whole is `whole` off. For each of its
    own seconds it waited `waited` more for a processor, which made it 0.07 of that slower, in logarithms.
    """
    draw = random.Random(seed)
    drift = draw.uniform(-0.2, 0.2)
    cold = (1 + waited) ** 0.07
    slower = cold * update * math.exp(draw.gauss(0, whole)), cold * sampling * math.exp(draw.gauss(0, whole))
    made = [_step(n, draw, drift, slower, noise, figures) for n in range(1, steps + 1)]
    wall = [{name: (1 + waited) * own for name, own in step.seconds.items()} for step in made]
    return Record(KEY, RECIPE, tuple(replace(step, wall=of) for step, of in zip(made, wall, strict=True)))


def several(seed: int, *, runs: int = 10, **options: Any) -> list[Record]:
    return [run(seed + number, **options) for number in range(runs)]


def _step(
    number: int, draw: random.Random, drift: float, slower: tuple[float, float], noise: float, figures: dict[str, Any]
) -> Step:
    speed = math.exp(drift + 0.3 * math.sin(number / 5 + drift))

    def seconds(of: float) -> float:
        neighbour = 1.5 if draw.random() < 0.05 else 1.0
        return of * speed * neighbour * math.exp(draw.gauss(0, noise))

    mine = {"update": seconds(0.2 * slower[0]), "sampling": seconds(0.1 * slower[1])}
    own = {
        "update": mine["update"] * (1 + number % 3),
        "sampling": mine["sampling"],
        "step": mine["update"] + mine["sampling"],
    }
    values: dict[str, Any] = {
        "step": number, "flops_update": 1e9 * (1 + number % 3), "flops_sampling": 2e8, "prompt_tokens": 80,
        "sampled_tokens": 100 + number, "score": 0.5, "loss": 0.01 * number, "grad_norm": 0.1, "mfu": 0.3,
        "tflops": 0.1, "tokens_per_s": 1000.0,
        "seconds": own, "wall": own,
        "reference": {phase: (seconds(0.01), seconds(0.01)) for phase in mine},
        "scores": {f"q{i}": float((number + i) % 2) for i in range(4)},
    }  # fmt: skip
    return Step(**{**values, **{name: value(number) for name, value in figures.items()}})


def baseline(*, runs: int = 20, first_seed: int = 0, **options: Any) -> Baseline:
    return Baseline(tuple(several(first_seed, runs=runs, **options)))
