"""Sampling n completions a prompt against transformers' generate.

    python benchmarks/vs_hf_generate.py [--prompts 8 --n 8 --prompt 100 --response 128]

Same weights, prompts, forced lengths, bfloat16 and threads; plain sampling at temperature 1. rlctl also returns the
log-prob of every token; generate is not asked for them.
"""

from __future__ import annotations

import common
import torch
from sampling_sides import parser, rlctl_side, run


def main() -> None:
    args = parser(__doc__, peer="transformers").parse_args()
    if args.side == "transformers":
        transformers_side(args)
    elif args.side == "rlctl":
        rlctl_side(args)
    else:
        run("vs_hf_generate", args, peer="transformers")


def transformers_side(args) -> None:  # type: ignore[no-untyped-def]
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).eval()
    prompts = common.random_prompts(args.prompts, args.prompt, vocab=model.config.vocab_size)
    ids = torch.stack([torch.from_numpy(prompt.token_ids).long() for prompt in prompts])

    @torch.inference_mode()
    def sample() -> dict[str, float]:
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            num_return_sequences=args.n, min_new_tokens=args.response, max_new_tokens=args.response, pad_token_id=0,
        )  # fmt: skip
        return {"tokens": float(out.shape[0] * (out.shape[1] - args.prompt))}

    common.serve(sample)


if __name__ == "__main__":
    main()
