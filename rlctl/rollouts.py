"""From problems to scored groups of completions: the sampling and grading that steps and evaluations share.

A group is the n completions of one problem; where an environment answers, a completion is all turns of a rollout
(`environments/playing.py`). With dynamic sampling, groups whose rewards are all equal are replaced by
groups of further problems until the batch is full or a bound is reached; everything sampled is kept for the record.

Source of dynamic sampling: DAPO, https://arxiv.org/abs/2503.14476, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from rlctl.backends.base import AnyBackend
from rlctl.environments.episode import Played
from rlctl.environments.playing import Player, play
from rlctl.perf import Stopwatch
from rlctl.rewards.scoring import Scored
from rlctl.rewards.shaping import ShapingSpec, shaped
from rlctl.seeds import prompt_seed
from rlctl.step_report import Filled
from rlctl.tokenizer import Tokenizer
from rlctl.types import Completion, GenerateStats, Problem, Prompt, Rollout, Sampling

Score = Callable[[Sequence[tuple[Problem, str]]], Awaitable[list[Scored]]]
"""What every completion is worth: (problem, text of the completion alone) -> Scored."""

More = Callable[[int], Sequence[Problem]]
"""Up to so many problems that the step has not had yet."""

Groups = list[list[Rollout]]

LEAST_SIGNAL = 1 / 8
"""Share of groups with signal that is counted on at least when sizing a refill: fewer would ask for ever more."""


@dataclass
class Sampler:
    """Samples and scores groups; adds up what that cost."""

    backend: AnyBackend
    tokenizer: Tokenizer
    score: Score
    n: int
    sampling: Sampling
    seed: int
    watch: Stopwatch = field(default_factory=Stopwatch)
    player: Player | None = None
    """The environment that answers each turn; without one a completion is one turn."""
    stats: GenerateStats = field(default_factory=GenerateStats)
    shaping: ShapingSpec | None = None
    """What is done to the rewards of a group; None, as in evaluations, leaves them as they are."""
    baselines: bool = False
    """Sample the likeliest completion of each prompt too, for its reward."""
    policy_version: int = 0
    """Steps that the policy it samples from has been trained for."""

    async def groups(self, problems: Sequence[Problem], purpose: int | str) -> Groups:
        """[P] problems -> [P][n] rollouts. `purpose`, a step or a word, decides the random numbers with the seed."""
        prompts = [Prompt(self.tokenizer.encode(p), prompt_seed(self.seed, purpose, p.id)) for p in problems]
        groups = await self._sampled(problems, prompts, n=self.n, sampling=self.sampling)
        if self.shaping is not None:
            groups = [shaped(group, self.shaping) for group in groups]
        groups = [[replace(r, policy_version=self.policy_version) for r in group] for group in groups]
        return await self._with_baselines(groups) if self.baselines else groups

    async def _sampled(
        self, problems: Sequence[Problem], prompts: Sequence[Prompt], *, n: int, sampling: Sampling
    ) -> Groups:
        if self.player is not None:
            return await self._played(self.player, problems, prompts, n=n, sampling=sampling)
        async with self.watch("gen"):
            completions = await self._generate(prompts, n, sampling)
        async with self.watch("reward"):
            return await self._scored(problems, prompts, completions)

    async def _generate(self, prompts: Sequence[Prompt], n: int, sampling: Sampling) -> list[list[Completion]]:
        completions = await self.backend.generate(prompts, n=n, sampling=sampling)
        self.stats = self.stats + self.backend.generate_stats
        return completions

    async def _played(
        self, player: Player, problems: Sequence[Problem], prompts: Sequence[Prompt], *, n: int, sampling: Sampling
    ) -> Groups:
        """Rollouts with an environment, each scored unless the environment failed in it."""
        pairs = list(zip(problems, prompts, strict=True))
        played = await play(player, pairs, n=n, sampling=sampling, generate=self._generate, watch=self.watch)
        whole = [one for group in played for one in group if one.failure is None]
        async with self.watch("reward"):
            scored = iter(await self.score([(one.problem, one.text) for one in whole]))
        name = player.environment.name
        return [
            [_of_played(problem, one, None if one.failure else next(scored), name) for one in group]
            for problem, group in zip(problems, played, strict=True)
        ]

    async def _with_baselines(self, groups: Groups) -> Groups:
        """Each rollout with the reward of its prompt's likeliest completion; None where that failed."""
        likeliest = Sampling(0.0, 1.0, -1, 0.0, self.sampling.max_new_tokens)
        problems, prompts = zip(*((group[0].problem, group[0].prompt) for group in groups), strict=True)
        greedy = await self._sampled(problems, prompts, n=1, sampling=likeliest)
        if self.shaping is not None:
            greedy = [shaped(group, self.shaping) for group in greedy]
        return [
            [replace(rollout, baseline=own.reward) for rollout in group]
            for group, (own,) in zip(groups, greedy, strict=True)
        ]

    async def _scored(
        self, problems: Sequence[Problem], prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]]
    ) -> Groups:
        """Every completion with its text and its rewards. The prompt's text is not part of what is scored."""
        texts = [[self.tokenizer.decode(completion.token_ids) for completion in group] for group in completions]
        scored = iter(await self.score([(p, text) for p, group in zip(problems, texts, strict=True) for text in group]))
        return [
            [
                _rollout(problem, prompt, completion, text, next(scored))
                for completion, text in zip(group, group_texts, strict=True)
            ]
            for problem, prompt, group, group_texts in zip(problems, prompts, completions, texts, strict=True)
        ]


def _rollout(problem: Problem, prompt: Prompt, completion: Completion, text: str, scored: Scored) -> Rollout:
    note = scored.failure or scored.note
    return Rollout(
        problem, prompt, completion, text, scored.reward, scored.scores, note, scored.failures, parts=scored.parts
    )


def _of_played(problem: Problem, one: Played, scored: Scored | None, environment: str) -> Rollout:
    if scored is None:
        assert one.failure is not None
        note = f"environment {environment} on {problem.id}: {one.failure.text}"
        scored = Scored(None, {}, note, note, (one.failure.kind,))
    rollout = _rollout(problem, one.prompt, one.completion, one.text, scored)
    return replace(rollout, episode=one.episode)


def counted(group: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts whose reward did not fail."""
    return [rollout for rollout in group if rollout.reward is not None]


def has_signal(group: Sequence[Rollout]) -> bool:
    """Whether the group can teach anything: at least two different rewards."""
    # Compare rewards, not advantages: the mean of three 0.1s is not 0.1 in floating point.
    return len({rollout.reward for rollout in counted(group)}) > 1


def is_settled(group: Sequence[Rollout]) -> bool:
    """Whether dynamic sampling replaces the group: its rewards are all equal before anything is added for length.

    DAPO asks for right and wrong answers, so a group that is only long and short does not count as one of both.
    """
    return len({_unshaped(rollout) for rollout in counted(group)}) < 2


def _unshaped(rollout: Rollout) -> float | None:
    return sum(weight * score for weight, score in rollout.parts) if rollout.parts else rollout.reward


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step sampled, and the groups among it that it trains on; `filled` where groups were replaced."""

    sampled: Groups
    chosen: Groups
    filled: Filled | None = None


async def batch_of_groups(
    sampler: Sampler, problems: Sequence[Problem], *, step: int, more: More | None, max_refills: int
) -> Batch:
    """The groups of P problems; with `more`, P groups with signal if `max_refills` further samplings find them."""
    groups = await sampler.groups(problems, step)
    if more is None:
        return Batch(groups, groups)
    refills = 0
    while refills < max_refills and (size := _refill_size(groups, wanted=len(problems))):
        further = more(size)
        if not further:
            break
        groups += await sampler.groups(further, step)
        refills += 1
    useful = [group for group in groups if not is_settled(group)]
    missing = len(problems) - len(useful)
    filled = Filled(refills, max(0, missing), max(0, -missing), len(groups) - len(useful))
    return Batch(groups, useful[: len(problems)], filled)


def _refill_size(groups: Groups, *, wanted: int) -> int:
    """How many problems should bring the groups that are missing, going by the share with signal so far."""
    found = sum(not is_settled(group) for group in groups)
    share = max(found / len(groups), LEAST_SIGNAL)
    return min(wanted, math.ceil(max(0, wanted - found) / share))
