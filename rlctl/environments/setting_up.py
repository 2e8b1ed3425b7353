"""From the settings of `[environment]` to what plays a run's rollouts, and the reward that stands for what it gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlctl.environments import registry, verifiers
from rlctl.environments.between import between_of
from rlctl.environments.episode import Bounds
from rlctl.environments.grading import NAME
from rlctl.environments.playing import Player
from rlctl.errors import DataError
from rlctl.rewards import RewardSet
from rlctl.rewards.base import NamedReward, RewardResult
from rlctl.tokenizer import ChatTokenizer
from rlctl.types import Problem

if TYPE_CHECKING:  # settings load pydantic, and only their values are needed here
    from rlctl.settings import Settings


def player_of(settings: Settings, tokenizer: ChatTokenizer, *, end_token_ids: tuple[int, ...]) -> Player | None:
    """What plays the rollouts; None where no environment answers. Raises ConfigError.

    The tokenizer is told of the environment's tools, so that its template lists them in every prompt.
    """
    sources = [(table.source, table.options) for table in settings.data.tables() if not table.path]
    environment = registry.load(settings.environment, sources=sources)
    if environment is None:
        return None
    tokenizer.tools = list(environment.tools) or None
    between = between_of(tokenizer, end_token_ids=end_token_ids, stop=environment.stop, roles=environment.roles)
    own = settings.environment
    bounds = Bounds(own.max_turns, own.max_turn_length, own.max_answer_chars, settings.data.max_prompt_length)
    return Player(environment, between, bounds)


def must_be_played(player: Player | None, problems: Sequence[Problem]) -> None:
    """Raises DataError when the first problem is one of several turns, and nothing plays them."""
    first = problems[0] if len(problems) else None
    if first is None or not first.extra.get(verifiers.SEVERAL_TURNS) or player is not None:
        return
    raise DataError(
        f"the problems of {first.source} take several turns, and environment.name is not set.",
        hint="--set environment.name=verifiers lets the environment answer them.",
    )


@dataclass(frozen=True, slots=True)
class OfEpisode:
    """The reward that the environment gave over a rollout, which `playing` leaves with the problem."""

    def __call__(self, problem: Problem, completion: str) -> RewardResult:
        episode = problem.extra["episode"]
        turns = episode["num_turns"]
        return RewardResult(
            float(episode["reward"]), note=f"{turns} turn{'' if turns == 1 else 's'}, {episode['ending']}"
        )


def with_environment(rewards: RewardSet, player: Player | None, *, own_grader: bool) -> tuple[RewardSet, list[str]]:
    """The rewards with the environment's own in the first one's place, where it grades, and what to tell of it."""
    if player is None or not player.environment.grades or not own_grader:
        return rewards, []
    environment, first = player.environment, rewards.rewards[0]
    reward = NamedReward(NAME, OfEpisode(), first.weight, runs="inline", ours=first.ours)
    told = f"environment {environment.name} grades, as reward {NAME!r}, in place of {first.name!r}"
    return replace(rewards, rewards=(reward, *rewards.rewards[1:])), [f"{told}; reward.own_grader = false keeps that"]
