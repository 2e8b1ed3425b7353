"""Does `rlctl smoke --baseline` tell a slower update from a noisy machine: trials with and without 10 % more work.

    python benchmarks/baseline_trials.py [--injected 10 --unchanged 20 --runs 10 --steps 10 --folder trials]

Writes a baseline, then judges trials by it in random order: unchanged ones, and ones whose update does a tenth more
(its thread spins for a tenth of the processor time that the gradient and the optimizer took). A trial is several runs,
each in a process of its own; no run is in two trials. Everything but the spinning is what the command does. With
`--folder` each run is kept there as it ends, and a second call goes on where the first was stopped, or judges all of
them again. The last line says how many of each were called what.

The processes are forked from this one, which has imported everything, since starting takes as long as the steps. They
draw pages of memory anew, and blocks of random size shift what is allocated after, as start addresses do otherwise.
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
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import common

from rlctl.baselines import costs, judging, words
from rlctl.baselines.file import Baseline
from rlctl.baselines.record import Record
from rlctl.config import load
from rlctl.smoke_run import SmokeRun, run_here

RECIPE = (
    "trainer.train_batch_size=2", "rollout.max_response_length=32", "algorithm.drop_zero_signal_groups=false",
    "local.num_threads=1", "trainer.old_log_probs=always", "data.num_generated=2000",
)  # fmt: skip
"""The smoke preset with steps of a fifth of a second, all of which update."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--injected", type=int, default=10)
    parser.add_argument("--unchanged", type=int, default=20)
    parser.add_argument("--baseline-runs", type=int, default=20)
    parser.add_argument("--runs", type=int, default=10, help="of each trial")
    parser.add_argument("--steps", type=int, default=10, help="of each run")
    parser.add_argument("--more", type=float, default=0.1, help="how much more an injected update does, as a fraction")
    parser.add_argument("--set", action="append", default=[], help="settings laid over the recipe")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    import_all()
    with tempfile.TemporaryDirectory() as scratch:
        trials(args, args.folder or Path(scratch))


def import_all() -> None:
    """What a run imports, without a thread, which no fork would have."""
    for name in ("rlctl.backends.local.backend", "rlctl.engine.sampler", "transformers.models.auto.modeling_auto",
                 "transformers.models.qwen3.modeling_qwen3"):  # fmt: skip
        import_module(name)


def trials(args: argparse.Namespace, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    baseline = Baseline(tuple(records(folder, "baseline", args, runs=args.baseline_runs, more=0.0)))
    outcomes, values = Counter[str](), dict[str, list[float]]()
    for kind, name, more in order(args):
        judgement = judging.judge(baseline, records(folder, name, args, runs=args.runs, more=more))
        outcomes[f"{kind}_{judgement.outcome}"] += 1
        for finding in judgement.findings:
            if finding.metric in SHOWN and finding.value is not None:
                values.setdefault(f"{SHOWN[finding.metric]}_{kind}", []).append(finding.value)
        print(f"{name:>12}: {words.comparison_line(judgement, num_runs=args.runs)}", flush=True)
    common.report(
        "baseline_trials",
        ratio=outcomes["injected_regression"] / max(args.injected, 1),
        false_alarms=outcomes["unchanged_regression"] + outcomes["unchanged_changed"],
        **{kind: float(count) for kind, count in sorted(outcomes.items())},
        **{f"{name}_mean": fmean(of) for name, of in values.items()},
        **{f"{name}_sd": stdev(of) for name, of in values.items() if len(of) > 1},
        seconds=time.perf_counter() - started,
        load=os.getloadavg()[2],
        work=f"{args.baseline_runs} baseline runs, {args.runs} a trial, of {args.steps} steps",
    )


SHOWN = {phase.words: name for name, phase in costs.PHASES.items()}


def order(args: argparse.Namespace) -> list[tuple[str, str, float]]:
    """(kind, name, how much more its update does), the same shuffled order in every call."""
    wanted = [("injected", f"injected-{i}", args.more) for i in range(args.injected)]
    wanted += [("unchanged", f"unchanged-{i}", 0.0) for i in range(args.unchanged)]
    random.Random(0).shuffle(wanted)
    return wanted


def records(folder: Path, name: str, args: argparse.Namespace, *, runs: int, more: float) -> list[Record]:
    """Those kept in the folder, each made by a forked process where it is not there yet."""
    return [record(folder / f"{name}-{number}.json", args, more=more) for number in range(1, runs + 1)]


def record(file: Path, args: argparse.Namespace, *, more: float) -> Record:
    if not file.exists():
        child = os.fork()
        if not child:
            os._exit(make(file, args, more=more))
        _, status = os.waitpid(child, 0)
        if status or not file.exists():
            raise SystemExit(f"{file.stem} ended with {os.waitstatus_to_exitcode(status)}")
    return SmokeRun.load(file).record


def make(file: Path, args: argparse.Namespace, *, more: float) -> int:
    """In the forked process: do one run, and give the exit code."""
    try:
        shifting = [bytearray(size) for size in random.Random(os.urandom(8)).choices(range(16, 2**16), k=200)]
        if more:
            do_more(more)
        settings = [*RECIPE, f"trainer.steps={args.steps}", *args.set]
        run = run_here(load(preset="smoke", assignments=settings), measured=True)
        aside = file.with_suffix(".partial")
        run.save(aside)
        aside.replace(file)
        del shifting
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
