"""One whole GRPO step against TRL's GRPOTrainer: sample, score, update, publish.

    pip install -r benchmarks/requirements.txt
    python benchmarks/vs_trl.py [--prompts 4 --n 8 --prompt 100 --response 128]

Same weights, prompts, forced lengths, bfloat16 and threads. TRL runs with what is fastest on a CPU: bfloat16 weights,
no gradient checkpointing, no reference model, no evaluation, and the best of several micro-batches (--trl-micro-batch
takes one). Its weights are updated in bfloat16; rlctl keeps float32 masters, so it does more here.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

from rlctl.types import TrainRow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("prompts", 4), ("n", 8), ("prompt", 100), ("response", 128), ("repetitions", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", type=int, default=4608, help="budget of rlctl's micro-batches")
    parser.add_argument("--trl-micro-batch", type=int, default=8)
    parser.add_argument("--compile", action="store_true", help="local.compile on rlctl's side")
    parser.add_argument("--warmups", type=int, default=1, help="0 where one repetition takes minutes")
    parser.add_argument("--model", default=common.SMOLLM)
    parser.add_argument("--side", choices=("rlctl", "trl"))
    args = parser.parse_args()
    if args.side == "rlctl":
        rlctl_side(args)
    elif args.side == "trl":
        trl_side(args)
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = str(common.exported(args.model, Path(folder)))
        given = [*sys.argv[1:], "--model", model]
        rlctl, trl = common.Side("rlctl", given), common.Side("trl", given)
        common.interleaved([rlctl, trl], repetitions=args.repetitions, warmups=args.warmups)
    common.report(
        "vs_trl",
        ratio=trl.median("seconds") / rlctl.median("seconds"),
        memory_ratio=rlctl.median("peak_gib") / trl.median("peak_gib"),
        rlctl_seconds=rlctl.median("seconds"),
        trl_seconds=trl.median("seconds"),
        rlctl_peak_gib=rlctl.median("peak_gib"),
        trl_peak_gib=trl.median("peak_gib"),
        work=f"{args.prompts} x {args.n} x {args.response}, prompts of {args.prompt}, bfloat16",
    )


def rlctl_side(args: argparse.Namespace) -> None:
    backend = common.local_backend(
        args.model, prompt=args.prompt, response=args.response, compile=args.compile, tokens=args.tokens
    )
    info = asyncio.run(backend.start())
    prompts = common.random_prompts(args.prompts, args.prompt, vocab=info.vocab_size)
    draw = np.random.default_rng(0)

    async def step() -> Mapping[str, float]:
        start = time.perf_counter()
        groups = await backend.generate(prompts, n=args.n, sampling=common.sampling(args.response))
        sampled = time.perf_counter()
        rows = [
            TrainRow(prompt.token_ids, c.token_ids, float(draw.normal()), c.logprobs)
            for prompt, group in zip(prompts, groups, strict=True)
            for c in group
        ]
        tokens = float(sum(len(row.completion_ids) for row in rows))
        await backend.forward_backward(rows, loss=common.LOSS, loss_denominator=tokens)
        await backend.optim_step(1e-6)
        await backend.sync_weights()
        end = time.perf_counter()
        return {"sample": sampled - start, "update": end - sampled}

    common.serve(lambda: asyncio.run(step()))


def trl_side(args: argparse.Namespace) -> None:
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Told(TrainerCallback):  # type: ignore[misc]
        """Runs a step for each line on standard input."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not sys.stdin.readline():
                raise SystemExit(0)
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            common.answer({"seconds": time.perf_counter() - self.start})

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    prompts = common.random_prompts(args.prompts, args.prompt, vocab=len(tokenizer))
    rows = args.prompts * args.n
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=args.trl_micro_batch,
            gradient_accumulation_steps=rows // args.trl_micro_batch,
            num_generations=args.n,
            max_completion_length=args.response,
            generation_kwargs={"min_new_tokens": args.response},
            model_init_kwargs={"dtype": torch.bfloat16},
            bf16=False,
            gradient_checkpointing=False,
            beta=0.0,
            learning_rate=1e-6,
            max_steps=10_000,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_steps=10_000,
        )
        draw = np.random.default_rng(0)
        trainer = GRPOTrainer(
            model=args.model,
            args=config,
            reward_funcs=lambda completions, **_: [float(draw.normal()) for _ in completions],
            train_dataset=Dataset.from_list([{"prompt": tokenizer.decode(p.token_ids)} for p in prompts]),
            processing_class=tokenizer,
            callbacks=[Told()],
        )
        common.answer({})
        trainer.train()


if __name__ == "__main__":
    main()
