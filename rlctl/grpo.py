"""Chapter 1: one step of GRPO, top to bottom.

Sample n completions for each of P problems, score them (`rollouts.py`), compare each with its siblings
(`algorithms/comparing.py`), and move the policy towards the better ones. No tensor appears here: the backend owns the
model, and the loss is in `engine/loss.py`. The same code runs on every backend, and for every algorithm.

Source: DeepSeekMath, https://arxiv.org/abs/2402.03300, section 4.1. Leaving out groups without signal: DAPO,
https://arxiv.org/abs/2503.14476, section 3.2. docs/algorithms.md has the others.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlctl.algorithms.comparing import AdvantageSpec, comparable, plain_rows, with_advantages
from rlctl.algorithms.correction import CorrectionSpec, corrected
from rlctl.algorithms.covariance import SelectionSpec, with_selection
from rlctl.backends.base import AnyBackend
from rlctl.environments.playing import Player
from rlctl.perf import Stopwatch
from rlctl.rewards.shaping import ShapingSpec
from rlctl.rollouts import Batch, More, Sampler, Score, batch_of_groups, counted, has_signal
from rlctl.step_report import Refused, StepReport
from rlctl.tokenizer import Tokenizer
from rlctl.types import GenerateStats, LossSpec, LossStats, OptimStats, Problem, Sampling, TrainRow


@dataclass(frozen=True, slots=True)
class GrpoConfig:
    """What a step needs to know of the settings; `mini_batch_size` counts problems."""

    n: int
    sampling: Sampling
    advantage: AdvantageSpec
    loss: LossSpec
    mini_batch_size: int
    ppo_epochs: int
    always_score_before_update: bool
    seed: int
    max_refills: int = 0
    shaping: ShapingSpec | None = None
    correction: CorrectionSpec | None = None
    selection: SelectionSpec | None = None

    @property
    def scores_before_update(self) -> bool:
        """Whether the trainer's log-probs before the first update are needed, even for one update."""
        wanted = self.correction is not None or self.selection is not None or self.advantage.kl_coef > 0
        return self.always_score_before_update or wanted

    @property
    def needs_reference(self) -> bool:
        return self.loss.kl_coef > 0 or self.advantage.kl_coef > 0


async def grpo_step(
    step: int,
    problems: Sequence[Problem],
    *,
    backend: AnyBackend,
    tokenizer: Tokenizer,
    score: Score,
    config: GrpoConfig,
    lr: float,
    player: Player | None = None,
    more: More | None = None,
    refused: Callable[[Refused], Awaitable[None]] | None = None,
    watch: Stopwatch | None = None,
) -> StepReport:
    """Sample and score, compare and update, publish: one step on P problems. `pipeline.py` does the same by halves.

    With `player`, an environment answers the policy, turn by turn. With `more`, groups without signal are replaced by
    groups of the further problems it gives. `refused` is told of each update that was not taken, before the next one.
    """
    watch = watch or Stopwatch()
    sampler = sampler_of(
        config,
        backend=backend,
        tokenizer=tokenizer,
        score=score,
        watch=watch,
        player=player,
        policy_version=step - 1,
    )
    sampled = await sample(step, problems, sampler=sampler, more=more, max_refills=config.max_refills)
    learnt = await learn(sampled, backend=backend, config=config, lr=lr, refused=refused, watch=watch)
    return await publish(learnt, backend=backend, watch=watch)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The scored groups of a step, of which nothing is learnt yet."""

    step: int
    batch: Batch
    generation: GenerateStats
    seconds: Mapping[str, float]


async def sample(
    step: int, problems: Sequence[Problem], *, sampler: Sampler, more: More | None = None, max_refills: int = 0
) -> Sampled:
    """Sample and score the groups of one step; with `more`, until enough have signal."""
    batch = await batch_of_groups(sampler, problems, step=step, more=more, max_refills=max_refills)  # [P][n]
    return Sampled(step, batch, sampler.stats, dict(sampler.watch.seconds))


async def learn(
    sampled: Sampled,
    *,
    backend: AnyBackend,
    config: GrpoConfig,
    lr: float,
    refused: Callable[[Refused], Awaitable[None]] | None = None,
    watch: Stopwatch,
) -> StepReport:
    """Compare the groups and update the trainer's policy; the sampler's stays as it is."""
    step, batch_of_step = sampled.step, sampled.batch
    groups = [comparable(group, config.advantage) for group in batch_of_step.chosen]  # [P][<= n]
    batches = list(minibatches([plain_rows(group) for group in groups], config.mini_batch_size))
    num_updates = config.ppo_epochs * sum(map(bool, batches))

    if num_updates > 1 or config.scores_before_update:
        async with watch("old_log_prob"):
            batches = [with_old(batch, await backend.log_probs(batch)) for batch in batches]

    if config.needs_reference:
        async with watch("ref"):
            batches = [with_reference(batch, await backend.log_probs(batch, reference=True)) for batch in batches]

    compared = with_advantages(batches, groups, config.advantage)
    weighed, correction = corrected(compared.batches, config.correction)
    updated = [pair for pair in zip(compared.batches, weighed, strict=True) if pair[0]]

    losses: list[LossStats] = []
    updates: list[OptimStats] = []
    async with watch("update_actor"):
        for number, (plain, batch) in enumerate(updated * config.ppo_epochs):
            batch = await chosen(batch, config, unweighed=plain, backend=backend, step=step, number=number)
            denominator = loss_denominator(batch, config.loss)
            losses.append(await backend.forward_backward(batch, loss=config.loss, loss_denominator=denominator))
            updates.append(await backend.optim_step(lr))
            if not updates[-1].stepped and refused is not None:
                loss = losses[-1].loss
                await refused(Refused(number, batch, denominator, loss, updates[-1].grad_norm))

    rows = [row for batch in weighed for row in batch]
    return StepReport(
        step=step,
        lr=lr,
        groups=batch_of_step.sampled,
        advantages=[row.advantage for row in rows],
        zero_signal_groups=sum(not has_signal(group) for group in batch_of_step.sampled),
        shrunk_groups=sum(len(counted(group)) < 2 for group in batch_of_step.sampled),
        losses=losses,
        updates=updates,
        empty_updates=config.ppo_epochs * sum(not batch for batch in weighed),
        generation=sampled.generation,
        rollout_gap=rollout_gap(rows, losses),
        sync=None,
        seconds={**sampled.seconds, **watch.seconds},
        filled=batch_of_step.filled,
        masked_rows=compared.masked_rows,
        kl_in_reward=compared.kl_in_reward,
        correction=correction,
        staleness=[step - 1 - row.policy_version for row in rows],
    )


async def publish(learnt: StepReport, *, backend: AnyBackend, watch: Stopwatch) -> StepReport:
    """Bring the sampler to the policy that the step has made."""
    async with watch("update_weights"):
        sync = await backend.sync_weights()
    return replace(learnt, sync=sync, seconds={**learnt.seconds, **watch.seconds})


def sampler_of(
    config: GrpoConfig,
    *,
    backend: AnyBackend,
    tokenizer: Tokenizer,
    score: Score,
    watch: Stopwatch,
    player: Player | None = None,
    policy_version: int,
) -> Sampler:
    """What samples and scores the groups of a training step."""
    return Sampler(
        backend,
        tokenizer,
        score,
        n=config.n,
        sampling=config.sampling,
        seed=config.seed,
        watch=watch,
        player=player,
        shaping=config.shaping,
        baselines=config.advantage.estimator.needs_baseline,
        policy_version=policy_version,
    )


async def chosen(
    batch: Sequence[TrainRow],
    config: GrpoConfig,
    *,
    unweighed: Sequence[TrainRow],
    backend: AnyBackend,
    step: int,
    number: int,
) -> list[TrainRow]:
    """The rows of update `number`, with the tokens that the loss treats apart, where there is such a loss."""
    return await with_selection(
        batch,
        unweighed=unweighed,
        number=number,
        step=step,
        backend=backend,
        loss=config.loss,
        spec=config.selection,
        seed=config.seed,
    )


def minibatches(groups: Sequence[Sequence[TrainRow]], size: int) -> Iterator[list[TrainRow]]:
    """The rows of `size` problems at a time, in order; empty where none of them has a row to train on."""
    for start in range(0, len(groups), size):
        yield [row for group in groups[start : start + size] for row in group]


def loss_denominator(rows: Sequence[TrainRow], loss: LossSpec) -> float:
    """What the token losses of one minibatch are divided by, over all its micro-batches and ranks."""
    if loss.loss_agg_mode == "token-mean":
        return float(max(1, sum(row.trained_tokens for row in rows)))
    if loss.loss_agg_mode == "seq-mean-token-sum-norm":
        return float(len(rows) * loss.max_response_length)
    return float(len(rows))


def with_old(rows: Sequence[TrainRow], logprobs: Sequence[np.ndarray]) -> list[TrainRow]:
    return [row.with_old(values) for row, values in zip(rows, logprobs, strict=True)]


def with_reference(rows: Sequence[TrainRow], logprobs: Sequence[np.ndarray]) -> list[TrainRow]:
    return [row.with_reference(values) for row, values in zip(rows, logprobs, strict=True)]


def rollout_gap(rows: Sequence[TrainRow], losses: Sequence[LossStats]) -> tuple[float, float] | None:
    """Mean and maximum of |sampler's - trainer's probability| of the sampled tokens, before the first update."""
    scored = [(row, row.old_logprobs) for row in rows if row.old_logprobs is not None and row.trained_tokens]
    if scored:
        gaps = np.abs(
            np.concatenate(
                [np.exp(row.written(row.rollout_logprobs)) - np.exp(row.written(old)) for row, old in scored]
            )
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
