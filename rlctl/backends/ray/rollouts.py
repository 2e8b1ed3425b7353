"""What the driver does around sampling, and the joining of ranks' statistics: plain functions without actors."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace

from rlctl.backends.ray.actors import answer
from rlctl.backends.ray.waiting import Died
from rlctl.errors import BackendError
from rlctl.perf import ModelShape
from rlctl.types import Completion, OptimStats, Prompt, Sampling


def must_be_unfiltered(sampling: Sampling) -> None:
    """Raises BackendError for filters under which vLLM tells log-probs of the filtered distribution only."""
    if sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k != -1 or sampling.min_p > 0):
        raise BackendError(
            "with top_p, top_k or min_p the samplers' log-probs are not those of the full vocabulary.",
            hint="leave rollout.top_p, top_k and min_p at 1.0, -1 and 0.0, or use the local backend.",
        )


def spread(positions: Sequence[int], samplers: Sequence[str]) -> dict[int, str]:
    """Which sampler draws which prompt, in turn."""
    return {position: samplers[i % len(samplers)] for i, position in enumerate(positions)}


async def completions_or_death(name: str, reference: Awaitable[list[Completion]]) -> list[Completion] | Died:
    """A prompt's completions, or that its sampler is dead; other errors go through."""
    try:
        return await answer(name, reference)
    except Died as death:
        return death


def flops(shape: ModelShape | None, prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]]) -> float:
    """Forward FLOPs of sampling, each prompt once; the last token of a completion is never an input."""
    if shape is None:
        return float("nan")
    tokens = predicted = pairs = 0
    for prompt, group in zip(prompts, groups, strict=True):
        length = len(prompt.token_ids)
        tokens += length
        pairs += length * (length + 1) // 2
        for completion in group:
            fed = len(completion.token_ids) - 1
            tokens += fed
            predicted += fed + 1
            pairs += fed * length + fed * (fed + 1) // 2
    return shape.forward_flops(tokens=tokens, predicted=predicted, pairs=pairs)


def joined(stats: Sequence[OptimStats]) -> OptimStats:
    """One update as all ranks saw it: the norm is the same on each, the memory that of the fullest."""
    return replace(stats[0], max_memory_bytes=max(s.max_memory_bytes or 0 for s in stats))
