"""Environments of the real verifiers package: run by test_verifiers.py in a process whose path begins with it.

The package pins datasets below what TRL takes, so it cannot be among the development dependencies.
"""

from __future__ import annotations

import asyncio

import pytest

from rlctl import config
from rlctl.data import load_problems
from rlctl.environments.grading import with_own_graders
from rlctl.errors import DataError
from rlctl.rewards import load_rewards, score
from rlctl.settings import DataSettings
from rlctl.types import Problem


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


def test_an_environment_with_tools_is_refused() -> None:
    with pytest.raises(DataError, match="is a ToolEnv: environments of several turns or with tools cannot be trained"):
        problems(options={"kind": "tools"})


def test_an_environment_that_is_not_there_is_told() -> None:
    with pytest.raises(DataError, match="verifiers:no-such-env cannot be loaded"):
        problems("no-such-env")
