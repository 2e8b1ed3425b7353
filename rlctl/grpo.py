"""Chapter 1: one step of GRPO, top to bottom.

Sample n completions for each of P problems, score them (`rollouts.py`), compare each with its siblings, and move the
policy towards the better ones. No tensor appears here: the backend owns the model, and the loss is in
`engine/loss.py`. The same code runs on every backend.

Source: DeepSeekMath, https://arxiv.org/abs/2402.03300, section 4.1. Without the division by the standard
deviation: Dr. GRPO, https://arxiv.org/abs/2503.20783. Leaving out groups without signal: DAPO,
https://arxiv.org/abs/2503.14476, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlctl.backends.base import AnyBackend
from rlctl.perf import Stopwatch
from rlctl.rollouts import More, Sampler, Score, batch_of_groups, counted, has_signal
from rlctl.tokenizer import Tokenizer
from rlctl.types import LossSpec, LossStats, OptimStats, Problem, Refused, Rollout, Sampling, StepReport, TrainRow

STD_EPS = 1e-6
"""Added to a group's standard deviation, as in verl."""


@dataclass(frozen=True, slots=True)
class GrpoConfig:
    """What a step needs to know of the settings; `mini_batch_size` counts problems."""

    n: int
    sampling: Sampling
    loss: LossSpec
    mini_batch_size: int
    ppo_epochs: int
    norm_adv_by_std: bool
    drop_zero_signal_groups: bool
    always_score_before_update: bool
    seed: int
    max_refills: int = 0


async def grpo_step(
    step: int,
    problems: Sequence[Problem],
    *,
    backend: AnyBackend,
    tokenizer: Tokenizer,
    score: Score,
    config: GrpoConfig,
    lr: float,
    more: More | None = None,
    refused: Callable[[Refused], Awaitable[None]] | None = None,
    watch: Stopwatch | None = None,
) -> StepReport:
    """Sample, score, compare, update, publish: one step on P problems.

    With `more`, groups without signal are replaced by groups of the further problems it gives. `refused` is told
    of each update that was not taken, before the next one.
    """
    watch = watch or Stopwatch()
    sampler = Sampler(backend, tokenizer, score, n=config.n, sampling=config.sampling, seed=config.seed, watch=watch)
    sampled = await batch_of_groups(sampler, problems, step=step, more=more, max_refills=config.max_refills)  # [P][n]

    groups_of_rows = [train_rows(group, config) for group in sampled.chosen]
    batches = list(minibatches(groups_of_rows, config.mini_batch_size))
    num_updates = config.ppo_epochs * sum(map(bool, batches))

    if num_updates > 1 or config.always_score_before_update:
        async with watch("old_log_prob"):
            batches = [with_old(batch, await backend.log_probs(batch)) for batch in batches]

    if config.loss.kl_coef > 0:
        async with watch("ref"):
            batches = [with_reference(batch, await backend.log_probs(batch, reference=True)) for batch in batches]

    losses: list[LossStats] = []
    updates: list[OptimStats] = []
    async with watch("update_actor"):
        for batch in [batch for _ in range(config.ppo_epochs) for batch in batches if batch]:
            denominator = loss_denominator(batch, config.loss)
            losses.append(await backend.forward_backward(batch, loss=config.loss, loss_denominator=denominator))
            updates.append(await backend.optim_step(lr))
            if not updates[-1].stepped and refused is not None:
                number, loss = len(updates) - 1, losses[-1].loss
                await refused(Refused(number, batch, denominator, loss, updates[-1].grad_norm))

    async with watch("update_weights"):
        sync = await backend.sync_weights()

    rows = [row for batch in batches for row in batch]
    return StepReport(
        step=step,
        lr=lr,
        groups=sampled.sampled,
        advantages=[row.advantage for row in rows],
        zero_signal_groups=sum(not has_signal(group) for group in sampled.sampled),
        shrunk_groups=sum(len(counted(group)) < 2 for group in sampled.sampled),
        losses=losses,
        updates=updates,
        empty_updates=config.ppo_epochs * sum(not batch for batch in batches),
        generation=sampler.stats,
        rollout_gap=rollout_gap(rows, losses),
        sync=sync,
        seconds=watch.seconds,
        filled=sampled.filled,
    )


def train_rows(group: Sequence[Rollout], config: GrpoConfig) -> list[TrainRow]:
    """Rows to train on from one group: none without signal, unless the settings keep such groups (advantage 0)."""
    kept = counted(group)
    if config.drop_zero_signal_groups and not has_signal(group):
        return []
    advantages = group_advantages([r.reward for r in kept if r.reward is not None], scale=config.norm_adv_by_std)
    return [
        TrainRow(r.prompt.token_ids, r.completion.token_ids, advantage, r.completion.logprobs)
        for r, advantage in zip(kept, advantages, strict=True)
    ]


def group_advantages(rewards: Sequence[float], *, scale: bool, eps: float = STD_EPS) -> list[float]:
    """How much better than its siblings each completion did: [n] rewards -> [n] advantages.

    Centred on the group's mean; with `scale`, divided by its sample standard deviation (n - 1) plus `eps`, as in
    verl. Equal rewards, and a group of one, give exactly 0.
    """
    if len(set(rewards)) < 2:
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not scale:
        return centred
    std = math.sqrt(math.fsum(difference**2 for difference in centred) / (len(rewards) - 1))
    return [difference / (std + eps) for difference in centred]


def minibatches(groups: Sequence[Sequence[TrainRow]], size: int) -> Iterator[list[TrainRow]]:
    """The rows of `size` problems at a time, in order; empty where none of them has a row to train on."""
    for start in range(0, len(groups), size):
        yield [row for group in groups[start : start + size] for row in group]


def loss_denominator(rows: Sequence[TrainRow], loss: LossSpec) -> float:
    """What the token losses of one minibatch are divided by, over all its micro-batches and ranks."""
    if loss.loss_agg_mode == "token-mean":
        return float(max(1, sum(len(row.completion_ids) for row in rows)))
    if loss.loss_agg_mode == "seq-mean-token-sum-norm":
        return float(len(rows) * loss.max_response_length)
    return float(len(rows))


def with_old(rows: Sequence[TrainRow], logprobs: Sequence[np.ndarray]) -> list[TrainRow]:
    return [row.with_old(values) for row, values in zip(rows, logprobs, strict=True)]


def with_reference(rows: Sequence[TrainRow], logprobs: Sequence[np.ndarray]) -> list[TrainRow]:
    return [row.with_reference(values) for row, values in zip(rows, logprobs, strict=True)]


def rollout_gap(rows: Sequence[TrainRow], losses: Sequence[LossStats]) -> tuple[float, float] | None:
    """Mean and maximum of |sampler's - trainer's probability| of the sampled tokens, before the first update."""
    scored = [row for row in rows if row.old_logprobs is not None and len(row.completion_ids)]
    if scored:
        gaps = np.abs(
            np.concatenate([np.exp(row.rollout_logprobs) - np.exp(row.old_logprobs) for row in scored])  # type: ignore[arg-type]
        )
        return float(gaps.mean()), float(gaps.max())
    if losses and losses[0].tokens:
        return losses[0].rollout_probs_diff_sum / losses[0].tokens, losses[0].rollout_probs_diff_max
    return None


def learning_rate(step: int, *, peak: float, schedule: str, warmup_ratio: float, total_steps: int) -> float:
    """The learning rate of step 1..total_steps.

    Rises to `peak` over the first W = ceil(warmup_ratio * total_steps) steps as step/W, so that the first step is
    not wasted on 0; cosine and linear then fall to 0, reached one step after the last.
    """
    warmup = math.ceil(warmup_ratio * total_steps)
    if step <= warmup:
        return peak * step / warmup
    progress = (step - 1 - warmup) / (total_steps - warmup)
    if schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * progress))
    if schedule == "linear":
        return peak * (1 - progress)
    return peak
