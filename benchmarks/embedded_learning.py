"""Does GRPO lift the embedded model, over several seeds? Prints each run and, last, one ratio line.

    python benchmarks/embedded_learning.py [--seeds 5]

Each run is `rlctl train --preset gsm8k-grpo --variant embedded --seed S` in a process of its own. Score is the share
of sampled answers that are right at temperature 1: held-out problems before and after, and fresh training problems in
the first and last five steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    runs = [run(seed) for seed in range(parser.parse_args().seeds)]
    worst_lift = min(r["after"] - r["before"] for r in runs)
    slowest = max(r["seconds"] for r in runs)
    print(f"{len(runs)} seeds, slowest {slowest:.0f} s")
    gain = fmean(r["after"] for r in runs) / fmean(r["before"] for r in runs)
    print(f"after/before: {gain:.2f} (worst lift {worst_lift:+.3f})")


def run(seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [sys.executable, "-m", "rlctl", "train", "--preset", "gsm8k-grpo", "--variant", "embedded"]
        options = ["--seed", str(seed), "--name", "run", "--set", f"run.dir={folder}"]
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        metrics = [json.loads(line) for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
    held_out = [acc for acc in map(accuracy, metrics) if acc is not None]
    scores = [m["score/mean"] for m in metrics if "score/mean" in m]
    result = {
        "before": held_out[0], "after": held_out[-1], "seconds": seconds,
        "first": fmean(scores[:5]), "last": fmean(scores[-5:]),
    }  # fmt: skip
    print(f"seed {seed}: " + ", ".join(f"{key} {value:.3f}" for key, value in result.items()), flush=True)
    return result


def accuracy(metrics: dict[str, Any]) -> float | None:
    return next((v for key, v in metrics.items() if key.startswith("val-core/") and "/acc/" in key), None)


if __name__ == "__main__":
    main()
