"""Tokens and FLOPs of a step: what is sampled, scored and trained on, prompts counted once for all of their samples.

FLOPs are those of `perf.ModelShape`, over the causal pairs that `engine/packing.py` computes: a prompt of p tokens has
p (p + 1) / 2 pairs, each of its completions of c tokens c p + c (c + 1) / 2 more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlctl.evaluation import EVAL_BATCH
from rlctl.perf import ModelShape

if TYPE_CHECKING:  # the settings load pydantic, and only the type is needed here
    from rlctl.settings import Settings


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a prompt and of a completion that the plan counts with, and where the figures are from."""

    prompt: float
    response: float
    source: str


@dataclass(frozen=True, slots=True)
class Work:
    """What a step does, as counts."""

    prompts: int
    samples_per_prompt: int
    prompts_per_update: int
    updates: int
    scored: int
    """Passes that score the samples: before several updates, and under the reference."""
    longest_prompt: int
    longest_response: int
    lengths: Lengths
    evaluated: tuple[int, int] | None = None
    """(problems sampled at once, completions of each) of an evaluation; None where there is none."""

    @property
    def samplings(self) -> list[tuple[int, int]]:
        """(prompts, completions of each) of every kind of call of the sampler."""
        mine = (self.prompts, self.samples_per_prompt)
        return [mine] if self.evaluated is None else [mine, self.evaluated]

    @property
    def largest_group(self) -> int:
        """Most completions of one prompt that are sampled together."""
        return max(n for _, n in self.samplings)

    @property
    def samples(self) -> int:
        return self.prompts * self.samples_per_prompt

    @property
    def passes(self) -> float:
        """How often each sample is trained on in a step."""
        return self.updates * self.prompts_per_update / self.prompts

    @property
    def unique_tokens(self) -> float:
        """Tokens that a pass over all samples computes: each prompt once, every completion."""
        return self.prompts * (self.lengths.prompt + self.samples_per_prompt * self.lengths.response)

    @property
    def response_tokens(self) -> float:
        return self.samples * self.lengths.response

    @property
    def pairs(self) -> float:
        """Causal pairs (query, key) of a pass over all samples."""
        p, c = self.lengths.prompt, self.lengths.response
        return self.prompts * (p * (p + 1) / 2 + self.samples_per_prompt * (c * p + c * (c + 1) / 2))

    def longest_group(self) -> int:
        """Most tokens of a prompt with all of its completions."""
        return self.longest_prompt + self.samples_per_prompt * self.longest_response

    def micro_batch(self, *, max_tokens: int, ranks: int = 1) -> tuple[int, int]:
        """(tokens, predicted ones) of the largest micro-batch: the budget, or what a rank has; at least one row."""
        row = self.longest_prompt + self.longest_response
        groups = -(-self.prompts_per_update // ranks)
        tokens = max(row, min(max_tokens, groups * self.longest_group()))
        prompts = -(-tokens // self.longest_group()) * self.longest_prompt
        return tokens, max(self.longest_response, tokens - prompts)


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs of one step, over all devices."""

    sample: float
    score: float
    update: float

    @property
    def total(self) -> float:
        return self.sample + self.score + self.update


def work_of(settings: Settings, lengths: Lengths | None = None) -> Work:
    """The work of one step; without lengths, every prompt and completion is as long as it may be."""
    trainer, rollout, longest = settings.trainer, settings.rollout, settings.data.max_prompt_length
    at_most = Lengths(longest, rollout.max_response_length, "at most: every prompt and completion at its limit")
    algorithm = settings.algorithm
    by_covariance = algorithm.policy_loss in ("clip_cov", "kl_cov")
    several = trainer.updates_per_step > 1
    wanted = algorithm.rollout_is != "off" or algorithm.use_kl_in_reward or by_covariance
    # Tokens are chosen anew before each update but the first.
    again = trainer.ppo_epochs if by_covariance and several else 0
    first = several or wanted or trainer.old_log_probs == "always"
    return Work(
        prompts=trainer.train_batch_size,
        samples_per_prompt=rollout.n,
        prompts_per_update=trainer.mini_batch_size or trainer.train_batch_size,
        updates=trainer.updates_per_step,
        scored=int(first) + again + int(algorithm.needs_reference),
        longest_prompt=longest,
        longest_response=rollout.max_response_length,
        lengths=lengths or at_most,
        evaluated=(EVAL_BATCH, settings.eval.n) if trainer.eval_freq else None,
    )


def flops_of(work: Work, shape: ModelShape | None) -> Flops | None:
    """None for a model whose FLOPs no formula is known for."""
    if shape is None:
        return None
    tokens, predicted, pairs = work.unique_tokens, work.response_tokens, work.pairs
    # The last token of a completion is drawn, and not computed.
    sampled = tokens - work.samples
    forward = shape.forward_flops(tokens=round(tokens), predicted=round(predicted), pairs=round(pairs))
    return Flops(
        sample=shape.forward_flops(tokens=round(sampled), predicted=round(predicted), pairs=round(pairs)),
        score=work.scored * forward,
        update=work.passes * shape.train_flops(tokens=round(tokens), predicted=round(predicted), pairs=round(pairs)),
    )
