"""What `trainer.max_off_policy_steps` brings: seconds a step over http, and what it costs: the score at the end.

    python benchmarks/async_rollouts.py [--sample 1.0 --update 0.8 --steps 12 --most 1 --seeds 5]

Time: a `rlctl serve` on this machine hosts a fake backend of two sides, whose sampler takes `--sample` seconds a batch
and whose trainer `--update`; `rlctl train` runs on it with the setting at 0 and at `--most`. Score: the same fake in
this process and without delays, over seeds. The last line has `ratio`, the seconds of an overlapped step over the
longer of its sampling and its training as measured taking turns: 1 is all that overlapping can do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import common

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the fake backend and its problems are those of the tests

from rlctl import loop  # noqa: E402
from rlctl.outcome import Outcome, Reporter  # noqa: E402
from tests import runs  # noqa: E402
from tests.tiny import save_tiny_llama  # noqa: E402

PLUGIN = "tests.two_sided_plugin"
CORRECTED = ("algorithm.rollout_is=token", "trainer.eval_freq=0", "trainer.save_freq=0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sample", type=float, default=1.0, help="seconds of a batch")
    parser.add_argument("--update", type=float, default=0.8, help="seconds of an update")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--most", type=int, default=1, help="trainer.max_off_policy_steps")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--score-steps", type=int, default=80)
    args = parser.parse_args()
    os.environ["RLCTL_PLUGINS"] = PLUGIN
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        save_tiny_llama(model)
        data = runs.write_problems(Path(folder))
        figures = times(model, data, args)
        scores = {most: final_scores(model, data, most, args) for most in (0, args.most)}
    for most, values in scores.items():
        print(f"score at most {most} steps old: {' '.join(f'{value:.3f}' for value in values)}")
        figures[f"score_{most}"] = fmean(values)
        figures[f"score_{most}_sd"] = stdev(values) if len(values) > 1 else 0.0
    common.report(
        "async_rollouts", **figures, most=args.most, work=f"{args.sample} s and {args.update} s, {args.steps}"
    )


def times(model: Path, data: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of a step, without the first, in which nothing can overlap, and the last, nor there."""
    with served(model, args) as (url, token):
        over_http = ("backend=http", f"remote_backend.http.url={url}", f"remote_backend.http.token={token}")
        kept = {most: steady(trained(model, data, args.steps, most, *over_http)) for most in (0, args.most)}
    turns, overlapped = kept[0], kept[args.most]
    sampling = seconds(turns, "gen", "reward")
    training = seconds(turns, "old_log_prob", "update_actor")
    step = seconds(overlapped, "step")
    print(f"taking turns: {seconds(turns, 'step'):.3f} s a step, sampling {sampling:.3f}, training {training:.3f}")
    print(f"overlapped:   {step:.3f} s a step, {median(each['perf/overlap'] for each in overlapped):.2f} hidden")
    return {
        "ratio": step / max(sampling, training),
        "overlapped_s": step,
        "turns_s": seconds(turns, "step"),
        "sampling_s": sampling,
        "training_s": training,
        "staleness_max": max(each["training/staleness_max"] for each in overlapped),
    }


def steady(outcome: Outcome) -> Sequence[dict[str, Any]]:
    return outcome.metrics[1:-1]


def seconds(metrics: Sequence[dict[str, Any]], *phases: str) -> float:
    return float(median(sum(each[f"timing_s/{phase}"] for phase in phases) for each in metrics))


def final_scores(model: Path, data: Path, most: int, args: argparse.Namespace) -> list[float]:
    """Mean score of the last five steps, for each seed."""
    found = []
    for seed in range(args.seeds):
        own = ("backend=two_sided", f"seed={seed}", "trainer.lr=3.0", "rollout.n=8")
        outcome = trained(model, data, args.score_steps, most, *own)
        found.append(fmean(each["score/mean"] for each in outcome.metrics[-5:]))
    return found


def trained(model: Path, data: Path, steps: int, most: int, *assignments: str) -> Outcome:
    own = (f"trainer.max_off_policy_steps={most}", f"trainer.steps={steps}", *CORRECTED, *assignments)
    ready = runs.prepared(model, data, *own)
    work = loop.run(ready, backend=loop.backend_for(ready), reporter=Reporter(), files=None, evaluate=False)
    return asyncio.run(work)


@contextmanager
def served(model: Path, args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """(address, token) of a server that hosts the fake."""
    token, said = secrets.token_hex(16), model.parent / "serve.log"
    table = "remote_backend.two_sided"
    settings = [
        "backend=two_sided", f"{table}.sample_s={args.sample}", f"{table}.update_s={args.update}",
        f'serve.models=["{model}"]',
    ]  # fmt: skip
    command = [sys.executable, "-m", "rlctl", "serve", "--port", "0"]
    command += [word for setting in settings for word in ("--set", setting)]
    environ = {**os.environ, "RLCTL_SERVE__TOKEN": token, "PYTHONPATH": str(ROOT)}
    with said.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environ) as server:
        try:
            while "listening on " not in said.read_text():
                if server.poll() is not None:
                    raise SystemExit(said.read_text())
                time.sleep(0.1)
            yield said.read_text().partition("listening on ")[2].split()[0], token
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
