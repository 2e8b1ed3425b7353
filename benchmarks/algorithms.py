"""Does every algorithm learn? The embedded preset by each, over several seeds; prints a table, a ratio line last.

    python benchmarks/algorithms.py [--seeds 3] [--runs N] [--only NAME ...] [--least STEPS] [--plot FILE.png]

Each run is `rlctl train --preset gsm8k-grpo --variant embedded --seed S` with the settings of its algorithm, in a
process of its own. What it finds is kept in benchmarks/algorithms.json at once, so that it may be stopped and begun
again; --runs bounds how many runs are made this time, 0 only prints and plots. An algorithm has learned at the first
step at which the score, over that step and the four before it, is 0.8; it passes within twice the default's steps. A
run ends where it has learned, but not before --least steps; one that is kept with fewer is made again.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

RESULTS = Path(__file__).with_suffix(".json")
GOAL, WINDOW = 0.8, 5
STEPS = 40
"""Of the preset, where a run has not learned before."""
LATER = slice(15, 20)
"""The steps that a run is also shown by, where it has them."""
TWO_UPDATES = {"trainer.mini_batch_size": "16"}
"""With one update a step every ratio is 1, and the losses of ratios are all alike."""
DEFAULT = "grpo"
ALGORITHMS: Mapping[str, Mapping[str, str]] = {
    DEFAULT: {},
    "dr_grpo": {"algorithm.norm_adv_by_std": "false", "algorithm.loss_agg_mode": "seq-mean-token-sum-norm"},
    "rloo": {"algorithm.adv_estimator": "rloo"},
    "reinforce_plus_plus": {"algorithm.adv_estimator": "reinforce_plus_plus"},
    "reinforce_plus_plus_baseline": {"algorithm.adv_estimator": "reinforce_plus_plus_baseline"},
    "remax": {"algorithm.adv_estimator": "remax"},
    "opo": {"algorithm.adv_estimator": "opo"},
    "gpg": {"algorithm.adv_estimator": "gpg", "algorithm.policy_loss": "gpg"},
    "grpo_passk": {"algorithm.adv_estimator": "grpo_passk"},
    "dapo": {
        "algorithm.clip_ratio_high": "0.28",
        "algorithm.filter_groups": "true",
        "reward.overlong_buffer_len": "16",
        **TWO_UPDATES,
    },
    "gspo": {
        "algorithm.policy_loss": "gspo",
        "algorithm.clip_ratio_low": "3e-4",
        "algorithm.clip_ratio_high": "4e-4",
        **TWO_UPDATES,
    },
    **{
        name: {"algorithm.policy_loss": name, **TWO_UPDATES} for name in ("cispo", "gmpo", "sapo", "clip_cov", "kl_cov")
    },
    "kl_in_reward": {"algorithm.use_kl_in_reward": "true", "algorithm.kl_coef": "0.001"},
    "rollout_is": {"algorithm.rollout_is": "token"},
    "gdpo": {"algorithm.adv_estimator": "gdpo", "reward.length_penalty": "0.1"},
}

Curves = dict[str, dict[str, list[float]]]
"""Score of each step, by algorithm and seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=10**9)
    parser.add_argument("--only", nargs="*", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--least", type=int, default=0)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    curves: Curves = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    # All algorithms once, before any of them twice.
    todo = [(name, str(s)) for s in range(asked.seeds) for name in asked.only]
    todo = [(name, s) for name, s in todo if not is_over(curves.get(name, {}).get(s, []), least=asked.least)]
    for name, seed in todo[: asked.runs]:
        curves.setdefault(name, {})[seed] = scores(name, seed, least=asked.least)
        keep(curves)
        print(f"{name}, seed {seed}: 0.8 at step {learned(curves[name][seed])}", flush=True)
    report(curves)
    if asked.plot is not None:
        plot(curves, asked.plot)


def is_over(values: Sequence[float], *, least: int) -> bool:
    """Whether more steps would tell nothing that is asked."""
    return len(values) >= STEPS or (learned(values) is not None and len(values) >= least)


def scores(name: str, seed: str, *, least: int) -> list[float]:
    """The score of each step of one run, to its end or until it has learned."""
    settings = {"trainer.eval_freq": "0", "trainer.save_freq": "0", **ALGORITHMS[name]}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rlctl", "train", "--preset", "gsm8k-grpo", "--variant", "embedded"]
        command += ["--seed", seed, "--name", "run", "--set", f"run.dir={folder}"]
        command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        file = Path(folder) / "run/metrics.jsonl"
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            while run.poll() is None:
                time.sleep(0.5)
                if is_over(read(file), least=least):
                    run.kill()
            if run.returncode not in (0, -signal.SIGKILL):
                raise SystemExit(f"{name}, seed {seed}: rlctl train ended with exit code {run.returncode}")
        return read(file)


def read(file: Path) -> list[float]:
    """The scores in a metrics file that may still be growing."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [metrics["score/mean"] for metrics in map(json.loads, lines) if "score/mean" in metrics]


def keep(curves: Curves) -> None:
    written = RESULTS.with_suffix(".tmp")
    rounded = {n: {s: [round(v, 4) for v in values] for s, values in runs.items()} for n, runs in curves.items()}
    lines = [
        f'"{n}": {{\n' + ",\n".join(f'  "{s}": {v}' for s, v in runs.items()) + "\n}" for n, runs in rounded.items()
    ]
    written.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    written.replace(RESULTS)


def learned(values: Sequence[float]) -> int | None:
    """The first step at which the mean of the last steps reaches the goal."""
    means = enumerate((fmean(values[i - WINDOW : i]) for i in range(WINDOW, len(values) + 1)), start=WINDOW)
    return next((step for step, mean in means if mean >= GOAL), None)


def report(curves: Curves) -> None:
    """A table as documents have it, and the ratio line."""
    steps = {name: [learned(values) for values in runs.values()] for name, runs in curves.items()}
    known = [step for step in steps.get(DEFAULT, []) if step is not None]
    limit = 2 * fmean(known) if known else float("nan")
    print(f"| algorithm | 0.8 at step, by seed | score, steps {LATER.start + 1} to {LATER.stop} |\n|---|---|---:|")
    passed = 0
    for name, found in steps.items():
        later = [fmean(values[LATER]) for values in curves[name].values() if len(values) >= LATER.stop]
        good = all(step is not None and step <= limit for step in found)
        passed += good
        at = ", ".join("never" if step is None else str(step) for step in found)
        print(f"| `{name}` | {at} | {f'{fmean(later):.3f}' if later else 'n/a'} |")
    print(f"learned within {limit:.0f} steps, twice the default's: {passed}/{len(steps)}")


def plot(curves: Curves, path: Path) -> None:
    """A small picture for each algorithm: its seeds, and the default's mean behind them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 5
    rows = -(-len(curves) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(2.6 * columns, 2 * rows), sharex=True, sharey=True, squeeze=False
    )
    longest = max((len(values) for values in curves.get(DEFAULT, {}).values()), default=0)
    default = [fmean(v[i] for v in curves[DEFAULT].values() if len(v) > i) for i in range(longest)]
    for axis in axes.flat[len(curves) :]:
        axis.axis("off")
    for axis, (name, runs) in zip(axes.flat, curves.items(), strict=False):
        axis.plot(range(1, len(default) + 1), default, color="0.75", linewidth=2)
        for values in runs.values():
            axis.plot(range(1, len(values) + 1), values, linewidth=1)
        axis.axhline(GOAL, color="0.6", linewidth=0.6, linestyle="--")
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("score", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
