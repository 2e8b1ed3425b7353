"""Rollouts of several turns: all unfinished ones of a batch generate together, then each has its turn answered.

    prompt | turn 1      | answer      | turn 2        | ...        one row: ids, log-probs, and a mask
             1 1 1 1 1 1   0 0 0 0 0     1 1 1 1 1                  that says which ids the policy drew

Every rollout has an episode of its own in the environment. What it draws is a function of (seed, step, problem, sample,
turn) alone. An environment that raises, hangs or answers nonsense costs the rollout, which is counted by name; only
when all of a batch fail does the run end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from rlctl.environments.base import Start
from rlctl.environments.between import Between
from rlctl.environments.episode import Bounds, EpisodeState, Played
from rlctl.environments.loaded import LoadedEnvironment
from rlctl.errors import RewardError
from rlctl.perf import Stopwatch
from rlctl.rewards.outcome import Failure
from rlctl.types import Completion, Problem, Prompt, Sampling

MAX_RUNNING_CALLS = 64
"""Calls of an environment in flight, as of rewards: enough to hide a tool's latency."""

LONGEST_FREEING_S = 5.0
"""Most seconds that the environment has for finishing the rollouts of a batch that is given up; a run that was asked to
end has still to save."""

ABANDONED = "abandoned"
"""The ending, for `finish`, of a rollout that goes no further since its batch does not."""

Generate = Callable[[Sequence[Prompt], int, Sampling], Awaitable[list[list[Completion]]]]
"""(prompts, n, sampling) -> [P][n]"""


@dataclass(frozen=True, slots=True)
class Player:
    """An environment with all that its turns need to know of a run."""

    environment: LoadedEnvironment
    between: Between
    bounds: Bounds


async def play(
    player: Player,
    problems: Sequence[tuple[Problem, Prompt]],
    *,
    n: int,
    sampling: Sampling,
    generate: Generate,
    watch: Stopwatch,
) -> list[list[Played]]:
    """n rollouts of each problem, to their ends: [P] -> [P][n]. Raises RewardError when every one of them failed.

    `sampling.max_new_tokens` bounds a whole rollout, all its turns and answers.
    """
    sampling = replace(sampling, stop_token_ids=player.between.stop_token_ids)
    groups = [[_state(player, problem, prompt, i, sampling) for i in range(n)] for problem, prompt in problems]
    states = [state for group in groups for state in group]
    calls = _Calls(player.environment, watch)
    try:
        await calls.all(calls.reset, states)
        number = 0
        while any(state.ending is None for state in states):
            number += 1
            async with watch("gen"):
                first = number == 1
                await (_first(groups, sampling, generate) if first else _later(states, sampling, generate, number))
            await calls.all(calls.step, [state for state in states if state.ending is None and state.wants_answer])
        await calls.all(calls.finish, states)
    finally:
        await calls.free(states)
    _must_not_all_fail(player.environment.name, states)
    return [[state.played() for state in group] for group in groups]


def _state(player: Player, problem: Problem, prompt: Prompt, sample: int, sampling: Sampling) -> EpisodeState:
    return EpisodeState(
        player.between,
        player.bounds,
        problem=problem,
        prompt=prompt,
        sample=sample,
        max_tokens=sampling.max_new_tokens,
    )


async def _first(groups: Sequence[Sequence[EpisodeState]], sampling: Sampling, generate: Generate) -> None:
    """The first draw: siblings with one prompt in one request, so that it is computed once."""
    shared = [group for group in groups if _is_shared(group)]
    if shared:
        asked = replace(sampling, max_new_tokens=max(group[0].room for group in shared))
        drawn = await generate([group[0].prompt for group in shared], len(shared[0]), asked)
        for group, completions in zip(shared, drawn, strict=True):
            for state, completion in zip(group, completions, strict=True):
                state.take(completion)
    alone = [state for group in groups if not _is_shared(group) for state in group]
    await _later(alone, sampling, generate, number=1)


def _is_shared(group: Sequence[EpisodeState]) -> bool:
    return all(s.ending is None for s in group) and len({s.prompt.token_ids.tobytes() for s in group}) == 1


async def _later(states: Sequence[EpisodeState], sampling: Sampling, generate: Generate, number: int) -> None:
    """A further draw of every rollout that is not over, each from all that it has so far."""
    live = [state for state in states if state.ending is None]
    if not live:
        return
    # One that has less room than the others takes no more than fits: the beginning of a sample is a sample.
    asked = replace(sampling, max_new_tokens=max(state.room for state in live))
    drawn = await generate([state.next_prompt(number) for state in live], 1, asked)
    for state, (completion,) in zip(live, drawn, strict=True):
        state.take(completion)


class _Calls:
    """The calls of one batch, so many at a time."""

    def __init__(self, environment: LoadedEnvironment, watch: Stopwatch) -> None:
        self.environment, self.watch = environment, watch
        self.slots = asyncio.Semaphore(MAX_RUNNING_CALLS)

    async def all(self, one: Callable[[EpisodeState], Awaitable[None]], states: Sequence[EpisodeState]) -> None:
        """All calls to their ends; the first error ends the others."""

        async def limited(state: EpisodeState) -> None:
            async with self.slots:
                await one(state)

        async with self.watch("environment"):
            tasks = [asyncio.ensure_future(limited(state)) for state in states]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def free(self, states: Sequence[EpisodeState]) -> None:
        """Finish those that an error, or the end of the run, has left in their midst, as far as that is done soon."""
        held = [state for state in states if state.held and self.environment.finishes]
        if not held:
            return
        freeing = asyncio.ensure_future(self.all(self.finish, held))
        try:
            await asyncio.wait({freeing}, timeout=min(self.environment.timeout_s, LONGEST_FREEING_S))
        finally:
            tasks = [freeing, *(state.finishing for state in held if state.finishing is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def reset(self, state: EpisodeState) -> None:
        def free(given: object) -> None:
            if not isinstance(given, Failure):
                made = given.state if isinstance(given, Start) else given
                self.environment.free(made, state.ending or ABANDONED)

        state.begin(await self.environment.call("reset", state.problem, unclaimed=free))

    async def step(self, state: EpisodeState) -> None:
        state.answer(await self.environment.call("step", state.state, state.action()))

    async def finish(self, state: EpisodeState) -> None:
        if self.environment.finishes and state.held:
            if state.finishing is None:
                call = self.environment.call("finish", state.state, state.ending or ABANDONED)
                state.finishing = asyncio.ensure_future(call)
            # Shielded: what is being freed goes on being freed when the batch is given up meanwhile.
            state.finish(await asyncio.shield(state.finishing))
            state.held = False
        if self.environment.grades and state.failure is None and state.reward is None:
            state.fail(Failure("exception", "neither step nor finish gave a reward, though it grades"))


def _must_not_all_fail(name: str, states: Sequence[EpisodeState]) -> None:
    failures = [state.failure for state in states if state.failure is not None]
    if failures and len(failures) == len(states):
        raise RewardError(
            f"environment {name} failed in all {len(states)} rollouts; the first, {states[0].problem.id}: "
            f"{failures[0].text}.",
            hint="call its reset and step by hand; raise environment.timeout_s if it is only slow.",
        )
