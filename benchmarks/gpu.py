"""Speed and exactness on one CUDA GPU, without a hub: models of the shape of Qwen3-0.6B and 1.7B with random weights.

    python benchmarks/gpu.py [--shape 0.6B --shape 1.7B] [--compile]
    python benchmarks/gpu.py --shape tiny --prompts 2 --n 2 --prompt 8 --response 6 --tokens 64     (anywhere)

First, on a small model, log-probs and gradients of the engine on this device against plain transformers in float32
on the CPU; then, for each shape, sampling in tokens a second and MFU of the update at 32 x 8 x (256 + 512).
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import common
import numpy as np
import torch

from rlctl.engine import sampler, update
from rlctl.engine.compiling import compile_layers
from rlctl.engine.model import Policy, register_attention, wrap
from rlctl.engine.optimizer import MasterOptimizer
from rlctl.engine.peak import device_peak
from rlctl.types import JobSpec, TrainRow

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 2048},
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "vocab_size": 151936},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "vocab_size": 151936},
}
"""From the models' config.json on the hub; all have 16 heads of width 128 over 8 key heads, tied."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", action="append", choices=SHAPES)
    for name, default in (("prompts", 32), ("n", 8), ("prompt", 256), ("response", 512), ("tokens", 16384)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    register_attention()
    check(device)
    best = {}
    for shape in args.shape or ["0.6B", "1.7B"]:
        best |= {f"{key}_{shape}": value for key, value in measure(shape, device, args).items()}
    common.report("gpu", ratio=next((v for k, v in best.items() if k.startswith("mfu")), float("nan")), **best)


def model(shape: str, device: torch.device, *, heads: int = 16, width: int = 128, layers: int | None = None) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    from rlctl.engine.attention import SHARED_PREFIX

    sizes = {**SHAPES[shape], **({"num_hidden_layers": layers} if layers else {})}
    config = AutoConfig.for_model(
        "qwen3", **sizes, num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=width,
        max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(config, attn_implementation=SHARED_PREFIX).eval()


def rows_of(prompts: int, n: int, prompt: int, response: int, *, vocab: int, ragged: bool = False) -> list[TrainRow]:
    draw = np.random.default_rng(0)
    rows = []
    for g in range(prompts):
        ids = draw.integers(0, vocab, prompt - (g % 3 if ragged else 0), dtype=np.int32)
        for _ in range(n):
            length = int(draw.integers(1, response + 1)) if ragged else response
            own = draw.integers(0, vocab, length, dtype=np.int32)
            rows.append(TrainRow(ids, own, float(draw.normal()), np.zeros(length, np.float32)))
    return rows


def check(device: torch.device) -> None:
    """Bounds of a bfloat16 computation against float32 on the CPU: the rounding of 2 layers, nothing else."""
    reference, rows = (
        model("tiny", torch.device("cpu"), heads=4, width=32),
        rows_of(3, 4, 17, 40, vocab=2048, ragged=True),
    )
    compute = update.Compute(temperature=1.0, max_tokens=300, tile_tokens=64)
    expected = update.log_probs(wrap(reference), rows, compute=compute)
    expected_grad = _gradient(wrap(reference), rows, compute)
    for dtype in (torch.float32, torch.bfloat16):
        ours = model("tiny", torch.device("cpu"), heads=4, width=32)
        ours.load_state_dict(reference.state_dict())
        policy = wrap(ours.to(device, dtype))
        worst = max(
            float(np.abs(a - b).max())
            for a, b in zip(update.log_probs(policy, rows, compute=compute), expected, strict=True)
        )
        grad = _gradient(policy, rows, compute)
        error = float((grad - expected_grad).norm() / expected_grad.norm())
        print(f"exactness on {device}, {dtype}: log-probs {worst:.2g} nats, gradient {error:.2g} relative", flush=True)
        assert worst < (1e-3 if dtype == torch.float32 else 0.05), "log-probs are off"
        assert error < (1e-2 if dtype == torch.float32 else 0.05), "the gradient is off"


def _gradient(policy: Policy, rows: list[TrainRow], compute: update.Compute) -> torch.Tensor:
    update.forward_backward(policy, rows, loss=common.LOSS, loss_denominator=100.0, compute=compute)
    grads = [p.grad.float().cpu().flatten() for p in policy.causal_lm.parameters() if p.grad is not None]
    policy.causal_lm.zero_grad()
    return torch.cat(grads)


def measure(shape: str, device: torch.device, args: argparse.Namespace) -> dict[str, float]:
    causal_lm = model(shape, device)
    policy = wrap(causal_lm)
    job = JobSpec("", 1.0, (), False, args.tokens, args.prompt, args.response, 0.0, (0.9, 0.95), 1.0)
    optimizer = MasterOptimizer(causal_lm, dtype=torch.bfloat16, job=job)
    if args.compile:
        compile_layers(policy)
    peak, source = device_peak(device, torch.bfloat16)
    prompts = common.random_prompts(args.prompts, args.prompt, vocab=policy.vocab_size)
    rows = rows_of(args.prompts, args.n, args.prompt, args.response, vocab=policy.vocab_size)
    compute = update.Compute(temperature=1.0, max_tokens=args.tokens, tile_tokens=4096)

    def sample() -> float:
        _, stats = sampler.generate(
            policy, prompts, n=args.n, sampling=common.sampling(args.response), end_token_ids=(),
            limits=sampler.Limits(64 * 2**30, 1024),
        )  # fmt: skip
        return stats.tokens / stats.seconds

    def train() -> tuple[float, float]:
        start = _now(device)
        stats = update.forward_backward(
            policy,
            rows,
            loss=common.LOSS,
            loss_denominator=float(args.prompts * args.n * args.response),
            compute=compute,
        )
        middle = _now(device)
        optimizer.step(1e-6)
        print(f"  update {middle - start:.3g} s, optimizer {_now(device) - middle:.3g} s", flush=True)
        return stats.flops, middle - start

    start = _now(device)
    sample()
    train()
    print(f"{shape}: first sampling and update {_now(device) - start:.3g} s", flush=True)
    speeds, trained = [], []
    for _ in range(args.repetitions):
        speeds.append(sample())
        trained.append(train())
        print(f"  sampling {speeds[-1]:,.0f} tok/s", flush=True)
    flops = median(flops / seconds for flops, seconds in trained)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
    figures = {
        "tok_s": median(speeds),
        "tflops": flops / 1e12,
        "mfu": flops / peak if peak else float("nan"),
        "update_s": median(seconds for _, seconds in trained),
        "peak_gib": memory,
    }
    print(f"{shape} ({source}): " + ", ".join(f"{k} {v:.4g}" for k, v in figures.items()), flush=True)
    return figures


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
