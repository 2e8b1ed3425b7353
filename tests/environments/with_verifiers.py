"""Environments of the real verifiers package: run by test_verifiers.py in a process whose path begins with it.

The package pins datasets below what TRL takes, so it cannot be among the development dependencies.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlctl import config
from rlctl.data import load_problems
from rlctl.environments import registry
from rlctl.environments.between import between_of
from rlctl.environments.episode import Bounds
from rlctl.environments.grading import with_own_graders
from rlctl.environments.playing import Player
from rlctl.environments.setting_up import must_be_played, with_environment
from rlctl.errors import ConfigError, DataError, RewardError
from rlctl.rewards import load_rewards, score
from rlctl.rollouts import Sampler
from rlctl.settings import DataSettings
from rlctl.settings.environment import EnvironmentSettings
from rlctl.tokenizer import ChatTokenizer
from rlctl.types import Problem, Rollout
from tests import defaults
from tests.environments.test_playing import Scripted
from tests.tiny import END, byte_tokenizer


def problems(name: str = "vf-adder", split: str = "train", **changes: object) -> list[Problem]:
    spec = DataSettings(source=f"verifiers:{name}", **changes)
    return list(load_problems(spec, split=split, seed=0))  # type: ignore[arg-type]


def test_the_environments_conversation_is_the_prompt() -> None:
    found = problems()
    assert sorted(p.question for p in found) == [f"{i} + 1?" for i in range(6)]
    assert found[0].messages == (("system", "Add."), ("user", found[0].question))
    assert {p.source for p in found} == {"verifiers:vf-adder"}
    assert len(problems(options={"size": 3})) == 3


def test_the_environments_rubric_is_the_reward() -> None:
    settings = config.load(assignments=["data.source=verifiers:vf-adder"], environ={}).settings
    rewards, _ = with_own_graders(load_rewards(["gsm8k"]), settings)
    own = next(p for p in problems() if p.question == "3 + 1?")
    scored = asyncio.run(score(rewards, [(own, "4"), (own, " 4 and more"), (own, "5")]))
    assert [one.reward for one in scored] == [1.25, 0.0, 0.25]
    assert scored[0].note.startswith("exact 1, short 1")


def test_an_environment_that_is_no_sequence_of_turns_is_refused() -> None:
    with pytest.raises(DataError, match=r"is a EnvGroup, which is no MultiTurnEnv|rewards that compare a group"):
        problems(options={"kind": "group"})


def play(kind: str, *draws: str) -> Rollout:
    """One rollout of the problem `3 + 1?` whose turns are those texts, each with the end of its message."""
    options = {"kind": kind}
    spec = EnvironmentSettings(name="verifiers")
    environment = registry.load(spec, sources=[("verifiers:vf-adder", options)])
    assert environment is not None
    tokenizer = ChatTokenizer(byte_tokenizer(), tools=environment.tools)
    between = between_of(tokenizer, end_token_ids=(END,), stop=(), roles=environment.roles)
    own = next(p for p in problems(options=options) if p.question == "3 + 1?")
    player = Player(environment, between, Bounds(8, None, 2000, 200))
    rewards, _ = with_environment(load_rewards(["gsm8k"]), player, own_grader=True)
    sampler = Sampler(
        Scripted(*[f"{text}$" for text in draws]),  # type: ignore[arg-type]
        tokenizer,
        lambda items: score(rewards, items),
        n=1,
        sampling=defaults.sampling(max_new_tokens=600),
        seed=0,
        player=player,
    )
    ((rollout,),) = asyncio.run(sampler.groups([own], 1))
    return rollout


def test_an_environment_of_several_turns_answers_until_its_own_stop_condition() -> None:
    rollout = play("guessing", "2", "9", "4", "5")
    assert rollout.episode is not None
    assert rollout.episode.parts == (
        ("policy", "2"), ("environment", "higher"), ("policy", "9"), ("environment", "lower"), ("policy", "4"),
    )  # fmt: skip
    assert (rollout.reward, rollout.scores, rollout.episode.ending) == (1.25, {"environment": 1.25}, "done")
    assert rollout.episode.metrics == {"exact": 1.0, "short": 1.0, "num_turns": 3.0}


def test_what_an_environment_raises_is_a_failure_of_the_rollout() -> None:
    with pytest.raises(RewardError, match=r"environment verifiers failed in all 1 rollouts.*invalid literal for int"):
        play("guessing", "many")


def test_tools_are_called_from_the_policys_text_and_listed_in_the_prompt() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 1}}\n</tool_call>'
    rollout = play("tools", f"Let me see.{call}", "4")
    assert rollout.episode is not None
    assert rollout.episode.parts[1] == ("environment", "4")
    assert (rollout.reward, rollout.episode.num_turns, rollout.episode.tool_calls) == (1.25, 2, 1)
    assert rollout.episode.metrics["total_tool_calls"] == 1.0
    template = "{% if tools %}{{ tools[0].function.name }}: {{ tools[0].function.description }}{% endif %}"
    tokenizer = ChatTokenizer(byte_tokenizer(template), tools=_add_tool())
    assert tokenizer.decode(tokenizer.encode(Problem("x", "q", ""))) == "add: Add two numbers."


def _add_tool() -> Any:
    environment = registry.load(
        EnvironmentSettings(name="verifiers"), sources=[("verifiers:vf-adder", {"kind": "tools"})]
    )
    assert environment is not None
    return environment.tools


def test_a_call_that_cannot_be_read_is_an_error_and_no_call() -> None:
    rollout = play("tools", '<tool_call>{"name": add}</tool_call>')
    assert rollout.episode is not None
    assert (rollout.episode.tool_calls, rollout.episode.tool_errors, rollout.episode.ending) == (1, 1, "done")


def test_several_turns_need_somebody_to_play_them() -> None:
    found = problems(options={"kind": "guessing"})
    with pytest.raises(DataError, match=r"verifiers:vf-adder take several turns, and environment\.name is not set"):
        must_be_played(None, found)
    must_be_played(None, problems())
    with pytest.raises(ConfigError, match=r"plays problems of verifiers:NAME, and data.source is 'openai/gsm8k'"):
        registry.load(EnvironmentSettings(name="verifiers"), sources=[("openai/gsm8k", {})])


def test_an_environment_that_is_not_there_is_told() -> None:
    with pytest.raises(DataError, match="verifiers:no-such-env cannot be loaded"):
        problems("no-such-env")
