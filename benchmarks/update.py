"""The update phase (forward and backward) against a naive padded one, and against what the machine can multiply.

    python benchmarks/update.py [--prompts 4 --n 8 --prompt 100 --response 128]

The naive side pads every row to prompt + response, runs the plain transformers model (SDPA) and takes the gradient
through whole logits, in micro-batches of 8 rows: what a straightforward trainer does. MFU counts only FLOPs that the
shared-prefix engine executes, against the best of several bfloat16 products of 2048 x 2048 on the same threads.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import common
import numpy as np
import torch

from rlctl.types import TrainRow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("prompts", 4), ("n", 8), ("prompt", 100), ("response", 128), ("repetitions", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", type=int, default=4608, help="budget of rlctl's micro-batches")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--warmups", type=int, default=1, help="0 where one repetition takes minutes")
    parser.add_argument("--model", default=common.SMOLLM)
    parser.add_argument("--side", choices=("rlctl", "naive"))
    args = parser.parse_args()
    if args.side == "rlctl":
        rlctl_side(args)
    elif args.side == "naive":
        naive_side(args)
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = str(common.exported(args.model, Path(folder)))
        given = [*sys.argv[1:], "--model", model]
        rlctl, naive = common.Side("rlctl", given), common.Side("naive", given)
        common.interleaved([rlctl, naive], repetitions=args.repetitions, warmups=args.warmups)
    flops = rlctl.median("flops") / rlctl.median("seconds")
    common.report(
        "update",
        ratio=naive.median("seconds") / rlctl.median("seconds"),
        mfu=flops / rlctl.median("peak_flops"),
        gflops=flops / 1e9,
        peak_gflops=rlctl.median("peak_flops") / 1e9,
        rlctl_seconds=rlctl.median("seconds"),
        naive_seconds=naive.median("seconds"),
        rlctl_peak_gib=rlctl.median("peak_gib"),
        naive_peak_gib=naive.median("peak_gib"),
        work=f"{args.prompts} x {args.n} x {args.response}, prompts of {args.prompt}, bfloat16",
    )


def rows_of(args: argparse.Namespace, vocab: int) -> list[TrainRow]:
    draw = np.random.default_rng(0)
    prompts = common.random_prompts(args.prompts, args.prompt, vocab=vocab)
    return [
        TrainRow(
            prompt.token_ids, draw.integers(0, vocab, args.response, dtype=np.int32), float(draw.normal()),
            np.zeros(args.response, np.float32),
        )
        for prompt in prompts
        for _ in range(args.n)
    ]  # fmt: skip


def rlctl_side(args: argparse.Namespace) -> None:
    backend = common.local_backend(
        args.model, prompt=args.prompt, response=args.response, tokens=args.tokens, compile=args.compile
    )
    info = asyncio.run(backend.start())
    rows = rows_of(args, info.vocab_size)

    def update() -> dict[str, float]:
        work = backend.forward_backward(rows, loss=common.LOSS, loss_denominator=float(len(rows) * args.response))
        stats = asyncio.run(work)
        return {"flops": stats.flops, "peak_flops": info.peak_flops or float("nan")}

    common.serve(update)


def naive_side(args: argparse.Namespace) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).eval()
    rows = rows_of(args, model.config.vocab_size)
    tokens = len(rows) * args.response

    def update() -> dict[str, float]:
        model.zero_grad()
        for start in range(0, len(rows), 8):
            part = rows[start : start + 8]
            ids = torch.stack(
                [torch.from_numpy(np.concatenate([row.prompt_ids, row.completion_ids])).long() for row in part]
            )
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=args.response + 1).logits[:, :-1].float()
            logp = logits.log_softmax(-1).gather(2, ids[:, args.prompt :, None])[..., 0]
            advantages = torch.tensor([row.advantage for row in part])[:, None]
            (-((logp - logp.detach()).exp() * advantages).sum() / tokens).backward()
        return {}

    common.serve(update)


if __name__ == "__main__":
    main()
