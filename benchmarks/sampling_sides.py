"""What the two sampling benchmarks share: the arguments, rlctl's side, and the comparison."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import common


def parser(doc: str | None, *, peer: str) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    for name, default in (("prompts", 8), ("n", 8), ("prompt", 100), ("response", 128), ("repetitions", 3)):
        arguments.add_argument(f"--{name}", type=int, default=default)
    arguments.add_argument("--model", default=common.SMOLLM)
    arguments.add_argument("--side", choices=("rlctl", peer))
    return arguments


def run(benchmark: str, args: argparse.Namespace, *, peer: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = str(common.exported(args.model, Path(folder)))
        sides = [common.Side(name, [*sys.argv[1:], "--model", model]) for name in ("rlctl", peer)]
        common.interleaved(sides, repetitions=args.repetitions)
    ours, theirs = (side.median("tokens") / side.median("seconds") for side in sides)
    common.report(
        benchmark,
        ratio=ours / theirs,
        rlctl_tok_s=ours,
        peer_tok_s=theirs,
        work=f"{args.prompts} x {args.n} x {args.response}, prompts of {args.prompt}, bfloat16",
    )


def rlctl_side(args: argparse.Namespace) -> None:
    backend = common.local_backend(args.model, prompt=args.prompt, response=args.response)
    info = asyncio.run(backend.start())
    prompts = common.random_prompts(args.prompts, args.prompt, vocab=info.vocab_size)

    def sample() -> dict[str, float]:
        groups = asyncio.run(backend.generate(prompts, n=args.n, sampling=common.sampling(args.response)))
        return {"tokens": float(sum(len(c.token_ids) for group in groups for c in group))}

    common.serve(sample)
