"""Does `rlctl smoke --baseline` tell a slower update from a noisy machine: trials with and without 10 % more work.

    python benchmarks/baseline_trials.py [--injected 10 --unchanged 20 --steps 64 --folder trials]

Writes a baseline of three runs, then judges single runs by it in random order, each in a process of its own: unchanged
ones, and ones whose update does a tenth more (its thread spins for a tenth of the processor time that the gradient and
the optimizer took). Everything but the spinning is what the command does. With `--folder` each run is kept there as it
ends, and a second call goes on where the first was stopped. The last line says how many of each were called what.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import common

from rlctl.baselines import judging, words
from rlctl.baselines.file import Baseline
from rlctl.config import load
from rlctl.smoke_run import SmokeRun, run_here

RECIPE = (
    "trainer.train_batch_size=2", "rollout.max_response_length=32", "algorithm.drop_zero_signal_groups=false",
    "local.num_threads=1", "trainer.old_log_probs=always",
)  # fmt: skip
"""The smoke preset with steps of a fifth of a second, all of which update."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--injected", type=int, default=10)
    parser.add_argument("--unchanged", type=int, default=20)
    parser.add_argument("--baseline-runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--more", type=float, default=0.1, help="how much more an injected update does, as a fraction")
    parser.add_argument("--set", action="append", default=[], help="settings laid over the recipe")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        trials(args, args.folder or Path(scratch))


def trials(args: argparse.Namespace, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    runs = [run_in(folder / f"baseline-{i}.json", args, more=0.0) for i in range(args.baseline_runs)]
    baseline = Baseline(tuple(run.record for run in runs))
    wanted = [(f"injected-{i}", args.more) for i in range(args.injected)]
    wanted += [(f"unchanged-{i}", 0.0) for i in range(args.unchanged)]
    random.Random(0).shuffle(wanted)
    outcomes, updates, started = Counter[str](), dict[str, list[float]](), time.perf_counter()
    for name, more in wanted:
        run = run_in(folder / f"{name}.json", args, more=more)
        judgement = judging.judge(baseline, [run.record])
        kind = name.split("-")[0]
        outcomes[f"{kind}_{judgement.outcome}"] += 1
        updates.setdefault(kind, []).extend(
            f.value for f in judgement.findings if f.metric.startswith("update") and f.value
        )
        print(f"{name:>12}: {words.comparison_line(judgement, num_runs=1)}", flush=True)
    common.report(
        "baseline_trials",
        ratio=outcomes["injected_regression"] / max(args.injected, 1),
        false_alarms=outcomes["unchanged_regression"] + outcomes["unchanged_changed"],
        **{kind: float(count) for kind, count in sorted(outcomes.items())},
        **{f"update_{kind}_mean": fmean(values) for kind, values in updates.items()},
        **{f"update_{kind}_sd": stdev(values) for kind, values in updates.items() if len(values) > 1},
        seconds=time.perf_counter() - started,
        load=os.getloadavg()[2],
        work=f"{args.steps} steps, {args.baseline_runs} baseline runs",
    )


def run_in(file: Path, args: argparse.Namespace, *, more: float) -> SmokeRun:
    """The run kept in that file, made by a forked process where it is not there yet."""
    if not file.exists():
        child = os.fork()
        if not child:
            os._exit(_child(file, args, more))
        _, status = os.waitpid(child, 0)
        if status or not file.exists():
            raise SystemExit(f"{file.stem} ended with {os.waitstatus_to_exitcode(status)}")
    return SmokeRun.load(file)


def _child(file: Path, args: argparse.Namespace, more: float) -> int:
    try:
        if more:
            do_more(more)
        settings = [*RECIPE, f"trainer.steps={args.steps}", *args.set]
        run = run_here(load(preset="smoke", assignments=settings), measured=True)
        aside = file.with_suffix(".partial")
        run.save(aside)
        aside.replace(file)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def do_more(share: float) -> None:
    """Make the gradient and the optimizer spin for that share of what they took, in the thread they ran in."""
    from rlctl.engine import update
    from rlctl.engine.optimizer import MasterOptimizer

    update.forward_backward = spinning(update.forward_backward, share)
    MasterOptimizer.step = spinning(MasterOptimizer.step, share)  # type: ignore[method-assign]


def spinning(work: Callable[..., Any], share: float) -> Callable[..., Any]:
    @wraps(work)
    def longer(*arguments: Any, **options: Any) -> Any:
        start = time.thread_time()
        result = work(*arguments, **options)
        end = time.thread_time() + share * (time.thread_time() - start)
        while time.thread_time() < end:
            pass
        return result

    return longer


if __name__ == "__main__":
    main()
