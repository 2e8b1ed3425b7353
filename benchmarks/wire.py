"""What HTTP costs: the bytes of a step on the wire, and steps over a server against the same steps in this process.

    python benchmarks/wire.py [--model M --prompts 4 --n 8 --response 256 --repetitions 5]
    python benchmarks/wire.py --repetitions 0          # the bytes alone, of 32 x 8 completions of about 300 tokens

`local` computes in its own process, `http` asks a `rlctl serve` on this machine, in turns. A step samples, takes a
gradient, updates and syncs. The last line has `ratio`, http's seconds a step over local's, and `cpu_ratio`, that of the
processor seconds of all processes of a side, which hardly depends on who else computes on the machine.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import common
import msgspec
import numpy as np

from rlctl.backends.base import AnyBackend
from rlctl.backends.http import codec, frames, messages
from rlctl.backends.http.backend import HttpBackend
from rlctl.backends.http.settings import HttpSettings
from rlctl.types import Completion, GenerateStats, Prompt, TrainRow

VOCABULARY = 49_152
GSM8K = {"problems": 32, "n": 8, "tokens": 300, "prompt": 100}
"""A step of the preset: completions of GSM8K are about 300 tokens long, prompts with their template about 100."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=common.SMOLLM)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--response", type=int, default=256)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--side", choices=["local", "http"])
    args = parser.parse_args()
    if args.side:
        run_side(args)
        return
    sent = bytes_of_a_step(**GSM8K)
    figures: dict[str, float | str] = {}
    if args.repetitions:
        local, http = (common.Side(name, sys.argv[1:]) for name in ("local", "http"))
        common.interleaved([local, http], repetitions=args.repetitions)
        figures["ratio"] = http.median("seconds") / local.median("seconds")
        figures["cpu_ratio"] = http.median("cpu_s") / local.median("cpu_s")
        figures |= {f"{side.name}_s": side.median("seconds") for side in (local, http)}
        figures["sent_mb"] = http.median("sent_mb")
        figures["received_mb"] = http.median("received_mb")
        figures["work"] = f"{args.prompts} x {args.n} x {args.response}, prompts of {args.prompt}, bfloat16"
    common.report("wire", **figures, gsm8k_step_bytes=float(sent))


def bytes_of_a_step(*, problems: int, n: int, tokens: int, prompt: int) -> int:
    """Print what each message of a step weighs, plain and packed; their sum, packed."""
    draw = np.random.default_rng(0)
    prompts = [Prompt(ids(draw, prompt), seed) for seed in range(problems)]
    groups = [[completion(draw, tokens) for _ in range(n)] for _ in prompts]
    rows = [row for asked, group in zip(prompts, groups, strict=True) for row in rows_of(asked, group)]
    replied = [messages.Group(i, group) for i, group in enumerate(groups)]
    weights = [
        weighed("generate, asked", [messages.Generate(prompts, n, common.sampling(tokens))]),
        weighed("generate, replied", [*replied, messages.Generated(problems, GenerateStats())]),
        weighed("forward_backward, asked", [messages.ForwardBackward(rows, common.LOSS, 1.0)]),
    ]
    total = sum(weights)
    num_tokens = sum(len(row.completion_ids) for row in rows)
    print(f"a step of {problems} x {n} x {tokens} tokens: {total:,} bytes, {total / num_tokens:.2f} a sampled token")
    return total


def weighed(name: str, parts: Sequence[msgspec.Struct]) -> int:
    plain = [codec.encode(part) for part in parts]
    start = time.perf_counter()
    packed = sum(len(frames.Frame(frames.PART, each).bytes()) for each in plain)
    seconds = time.perf_counter() - start
    print(f"  {name:24} {sum(map(len, plain)):>10,} bytes, packed {packed:>10,} in {1000 * seconds:.1f} ms")
    return packed


def ids(draw: np.random.Generator, length: int) -> Any:
    """Token ids as unevenly used as those of a text (Zipf)."""
    return np.minimum(draw.zipf(1.2, length), VOCABULARY - 1).astype(np.int32)


def completion(draw: np.random.Generator, tokens: int) -> Completion:
    length = int(draw.integers(tokens // 2, tokens * 3 // 2))
    return Completion(ids(draw, length), -draw.exponential(0.3, length).astype(np.float32), "stop")


def rows_of(prompt: Prompt, group: Sequence[Completion]) -> list[TrainRow]:
    """Rows with alternating advantages."""
    return [
        TrainRow(prompt.token_ids, each.token_ids, 1.0 if i % 2 else -1.0, each.logprobs)
        for i, each in enumerate(group)
    ]


def run_side(args: argparse.Namespace) -> None:
    """Serve repetitions; the server of `http` lives as long."""
    local = common.local_backend(args.model, prompt=args.prompt, response=args.response)
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory() as folder:
        server, backend = (None, local) if args.side == "local" else served(args.model, local, Path(folder))
        try:
            info = runner.run(backend.start())
            repetitions = iter(range(10**9))

            def repetition() -> Mapping[str, float]:
                before = processor_seconds(server)
                moved = runner.run(step(backend, args, next(repetitions), vocab=info.vocab_size))
                return {**moved, "cpu_s": processor_seconds(server) - before}

            common.serve(repetition)
        finally:
            runner.run(backend.close())
            if server is not None:
                server.terminate()
                server.wait()


def processor_seconds(server: subprocess.Popen[str] | None) -> float:
    """Of this process, and of the server (`man 5 proc`, fields 14 and 15)."""
    own = time.process_time()
    if server is None:
        return own
    user, system = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return own + (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def served(model: str, local: AnyBackend, folder: Path) -> tuple[subprocess.Popen[str], AnyBackend]:
    """A server of the same backend, and its client."""
    token = secrets.token_hex(16)
    # To a file: a full pipe would stop it.
    said = folder / "serve.log"
    settings = (f'serve.models=["{model}"]', "local.dtype=bfloat16")
    command = [sys.executable, "-m", "rlctl", "serve", "--port", "0", *(x for s in settings for x in ("--set", s))]
    with said.open("w") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=out, text=True, env={**os.environ, "RLCTL_SERVE__TOKEN": token}
        )
    while "listening on " not in said.read_text():
        if server.poll() is not None:
            raise SystemExit(said.read_text())
        time.sleep(0.1)
    url = said.read_text().partition("listening on ")[2].split()[0]
    return server, HttpBackend(HttpSettings.model_validate({"url": url, "token": token}), local.job)


async def step(backend: AnyBackend, args: argparse.Namespace, number: int, *, vocab: int) -> Mapping[str, float]:
    prompts = common.random_prompts(args.prompts, args.prompt, vocab=vocab, seed=number)
    groups = await backend.generate(prompts, n=args.n, sampling=common.sampling(args.response))
    rows = [row for asked, group in zip(prompts, groups, strict=True) for row in rows_of(asked, group)]
    await backend.forward_backward(rows, loss=common.LOSS, loss_denominator=float(len(rows) * args.response))
    await backend.optim_step(1e-6)
    await backend.sync_weights()
    return traffic(backend)


_before: dict[str, int] = {"sent": 0, "received": 0}


def traffic(backend: AnyBackend) -> Mapping[str, float]:
    """MB since the last call."""
    if not isinstance(backend, HttpBackend):
        return {}
    now = {"sent": backend.sent_bytes, "received": backend.received_bytes}
    since = {f"{name}_mb": (now[name] - _before[name]) / 1e6 for name in now}
    _before.update(now)
    return since


if __name__ == "__main__":
    main()
