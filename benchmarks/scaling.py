"""How time and memory of sampling and update grow with samples, prompt, response and vocabulary.

    pip install -r benchmarks/requirements.txt
    python benchmarks/scaling.py [--out benchmarks/out]

One axis at a time around 8 samples of 128 tokens after prompts of 256 and a vocabulary of 32k (n is swept at prompts
of 1024), two prompts, on a small Qwen3 with random weights in bfloat16; each point in a process of its own, the median
of its repetitions. Writes scaling.csv and scaling.png. The ratio is the cost of a sample at n = 2 over that at n = 32.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import tempfile
from collections.abc import Iterator
from pathlib import Path

import common
import numpy as np
import torch

from rlctl.types import TrainRow

BASE = {"n": 8, "prompt": 256, "response": 128, "vocab": 32768}
AXES: dict[str, tuple[list[int], dict[str, int]]] = {
    "n": ([2, 4, 8, 16, 32], {"prompt": 1024}),
    "prompt": ([64, 256, 1024, 2048], {}),
    "response": ([64, 256, 1024], {}),
    "vocab": ([8192, 32768, 49152, 151936], {}),
}
PROMPTS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--point", type=int, nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        point_side(dict(zip(BASE, args.point, strict=True)))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    rows = list(measured(args.repetitions))
    with (args.out / "scaling.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    plot(rows, args.out / "scaling.png")
    per_sample = {row["n"]: (row["sample_s"] + row["update_s"]) / row["n"] for row in rows if row["axis"] == "n"}
    common.report(
        "scaling",
        ratio=per_sample[2] / per_sample[32],
        work=f"{PROMPTS} prompts of 1024, cost of a sample of 128 tokens at n = 2 over n = 32, bfloat16",
    )


def measured(repetitions: int) -> Iterator[dict[str, float]]:
    for axis, (values, others) in AXES.items():
        for value in values:
            point = {**BASE, **others, axis: value}
            side = common.Side(f"{axis} {value}", ["--point", *map(str, point.values())])
            common.interleaved([side], repetitions=repetitions)
            figures = {key: side.median(key) for key in ("sample_s", "update_s", "peak_gib")}
            yield {"axis": axis, **point, **figures}  # type: ignore[dict-item]


def point_side(point: dict[str, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        small_model(point["vocab"]).save_pretrained(folder)
        backend = common.local_backend(folder, prompt=point["prompt"], response=point["response"], tokens=4096)
        asyncio.run(backend.start())
    prompts = common.random_prompts(PROMPTS, point["prompt"], vocab=point["vocab"])

    async def step() -> dict[str, float]:
        sampled = await _timed(backend.generate(prompts, n=point["n"], sampling=common.sampling(point["response"])))
        rows = [
            TrainRow(prompt.token_ids, c.token_ids, float((-1) ** i), c.logprobs)
            for prompt, group in zip(prompts, sampled[1], strict=True)
            for i, c in enumerate(group)
        ]
        tokens = float(sum(len(row.completion_ids) for row in rows))
        updated = await _timed(backend.forward_backward(rows, loss=common.LOSS, loss_denominator=tokens))
        return {"sample_s": sampled[0], "update_s": updated[0]}

    common.serve(lambda: asyncio.run(step()))


async def _timed(work):  # type: ignore[no-untyped-def]
    start = asyncio.get_running_loop().time()
    result = await work
    return asyncio.get_running_loop().time() - start, result


def small_model(vocab: int):  # type: ignore[no-untyped-def]
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen3", hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, vocab_size=vocab, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config)


def plot(rows: list[dict[str, float]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, len(AXES), figsize=(4 * len(AXES), 6.5), constrained_layout=True)
    for column, axis in enumerate(AXES):
        points = [row for row in rows if row["axis"] == axis]
        x = np.array([row[axis] for row in points])
        samples = np.array([row["n"] * PROMPTS for row in points])
        above, below = panels[:, column]
        for key, label in (("sample_s", "sampling"), ("update_s", "update")):
            above.plot(x, 1000 * np.array([row[key] for row in points]) / samples, marker="o", label=label)
        below.plot(x, [row["peak_gib"] for row in points], marker="o", color="black")
        above.set_ylabel("ms a sample")
        below.set_ylabel("peak memory of the process, GiB")
        below.set_xlabel({"n": "samples a prompt (prompts of 1024)", "vocab": "vocabulary"}.get(axis, f"{axis} tokens"))
        for panel in (above, below):
            panel.set_xscale("log", base=2)
            panel.set_xticks(x, [f"{value:,}" for value in x])
            panel.set_ylim(bottom=0)
        above.legend()
    figure.suptitle(common.machine(), fontsize=9)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
