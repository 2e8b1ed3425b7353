"""Peak memory of real sampling and updates on a CPU against `rlctl plan`, each setting in a process of its own.

    python benchmarks/plan_memory.py --model DIR             a table, and a ratio line last

Measured is resident memory above that of the process before the model is loaded: `VmHWM` of /proc/self/status, set
back before each phase by /proc/self/clear_refs. Completions have their full length, as the plan counts them, and two
updates are made, so that AdamW's moments are there. With MALLOC_MMAP_THRESHOLD_ glibc gives freed blocks back at once;
without, it keeps some: `--allocator plain` shows how much.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MARK = "@@ "

SETTINGS: dict[str, list[str]] = {
    "base": [],
    "few tokens": ["trainer.max_tokens_per_device=1024"],
    "checkpointing": ["local.gradient_checkpointing=true"],
    "lora": ["model.lora.rank=16"],
    "float32": ["local.dtype=float32", "trainer.max_tokens_per_device=2048"],
    "small tile": ["local.logits_tile_tokens=128"],
}
"""What is laid over the common settings, by name."""

COMMON = [
    "data.max_prompt_length=128",
    "rollout.max_response_length=128",
    "rollout.n=8",
    "trainer.train_batch_size=8",
    "trainer.max_tokens_per_device=4096",
    "trainer.eval_freq=0",
    "local.dtype=bfloat16",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:tiny")
    parser.add_argument("--only", action="append", choices=list(SETTINGS))
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    parser.add_argument("--allocator", choices=("returning", "plain"), default="returning")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side is not None:
        print(MARK + json.dumps(measured(json.loads(arguments.side))))
        return
    rows = {}
    for name in arguments.only or SETTINGS:
        sets = [*COMMON, f"model.path={arguments.model}", *SETTINGS[name], *arguments.assignments]
        rows[name] = in_a_process(sets, allocator=arguments.allocator)
        print_row(name, rows[name])
    worst = max(max(r["whole"]["ratio"], 1 / r["whole"]["ratio"]) for r in rows.values())
    print(json.dumps({"benchmark": "plan_memory", "model": Path(arguments.model).name, "worst_ratio": round(worst, 3)}))


def print_row(name: str, row: dict[str, Any]) -> None:
    print(f"{name}:")
    for phase, cell in row.items():
        planned, seen = (cell[key] / 2**20 for key in ("planned", "measured"))
        print(
            f"  {phase:8} planned {planned:8.0f} MiB, measured {seen:8.0f} MiB, measured / planned {cell['ratio']:.3f}"
        )


def in_a_process(assignments: list[str], *, allocator: str) -> dict[str, Any]:
    told = {"HF_HUB_OFFLINE": "1", "GOMP_SPINCOUNT": "10000", "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    if allocator == "returning":
        told |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, "--side", json.dumps(assignments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **told}, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        raise SystemExit(f"the measuring process ended with {done.returncode}:\n{done.stderr}")
    row: dict[str, Any] = json.loads(lines[0].removeprefix(MARK))
    return row


def measured(assignments: list[str]) -> dict[str, Any]:
    """Peak bytes by phase, planned and measured."""
    from rlctl.config import load
    from rlctl.planning.device import Wanted
    from rlctl.planning.plan import plan_of

    settings = load(assignments=assignments).settings
    plan = plan_of(settings, Wanted(device="cpu"))
    (place,) = plan.places
    seen = asyncio.run(run_phases(settings))
    # A checkpoint's copy would lie beside every phase; none is written here.
    planned = {phase: sum(r.num_bytes or 0 for r in place.roles if phase in r.phases and "checkpoint" not in r.name)
               for phase in seen}  # fmt: skip
    rows = {phase: {"planned": planned[phase], "measured": seen[phase]} for phase in seen}
    rows["whole"] = {key: max(row[key] for row in rows.values()) for key in ("planned", "measured")}
    return {phase: {**row, "ratio": row["measured"] / row["planned"]} for phase, row in rows.items()}


async def run_phases(settings: Any) -> dict[str, float]:
    import numpy as np

    from rlctl.backends.local.backend import LocalBackend
    from rlctl.types import Prompt, TrainRow

    backend = LocalBackend(settings.local, settings.job(model=settings.model.path, end_token_ids=()))
    import_everything(settings)
    base, peaks = resident("VmRSS"), {}
    with peak(peaks, "start", base):
        info = await backend.start()
    draw = np.random.default_rng(0)
    lengths, n = settings.data.max_prompt_length, settings.rollout.n
    prompts = [
        Prompt(draw.integers(0, info.vocab_size, lengths, dtype=np.int32), i)
        for i in range(settings.trainer.train_batch_size)
    ]
    for _ in range(2):
        with peak(peaks, "sample", base):
            groups = await backend.generate(prompts, n=n, sampling=settings.rollout.sampling())
        rows = [
            TrainRow(p.token_ids, c.token_ids, float(i % 2) - 0.5, c.logprobs)
            for p, group in zip(prompts, groups, strict=True)
            for i, c in enumerate(group)
        ]
        with peak(peaks, "score", base):
            await backend.log_probs(rows)
        with peak(peaks, "update", base):
            await backend.forward_backward(rows, loss=settings.loss(), loss_denominator=1000.0)
        with peak(peaks, "step", base):
            await backend.optim_step(1e-6)
    await backend.close()
    return peaks


def import_everything(settings: Any) -> None:
    """What a run imports lazily is no memory of the model's."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    from rlctl.engine import attention_tiles, flash_amx, flash_torch, kernels  # noqa: F401
    from rlctl.engine.meta import on_meta, read_config

    on_meta(read_config(settings.model.path))
    if settings.model.lora.rank:
        import peft  # noqa: F401
    # The first products make the pools of threads and oneDNN's own tables.
    for dtype in (torch.float32, torch.bfloat16):
        torch.ones(64, 64, dtype=dtype) @ torch.ones(64, 64, dtype=dtype)


@contextmanager
def peak(peaks: dict[str, float], phase: str, base: float) -> Iterator[None]:
    Path("/proc/self/clear_refs").write_text("5")
    yield
    peaks[phase] = max(peaks.get(phase, 0.0), resident("VmHWM") - base)


def resident(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return float(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {key}")


if __name__ == "__main__":
    main()
