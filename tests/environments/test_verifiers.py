"""verifiers: an environment of the real package where it is installed, and what is told where it is not."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl import config
from rlctl.data import load_problems
from rlctl.environments.grading import with_own_graders
from rlctl.errors import DataError
from rlctl.rewards import load_rewards, score
from rlctl.settings import DataSettings
from rlctl.types import Problem


@pytest.fixture
def verifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    # It pins datasets below what TRL takes and brings forty packages, so it is not among the development dependencies.
    if importlib.util.find_spec("verifiers") is None:
        pytest.skip("needs rlctl[verifiers]")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def problems(name: str = "vf-adder", split: str = "train", **changes: object) -> list[Problem]:
    spec = DataSettings(source=f"verifiers:{name}", **changes)  # type: ignore[arg-type]
    return list(load_problems(spec, split=split, seed=0))  # type: ignore[arg-type]


@pytest.mark.usefixtures("verifiers")
def test_the_environments_conversation_is_the_prompt() -> None:
    found = problems()
    assert sorted(p.question for p in found) == [f"{i} + 1?" for i in range(6)]
    assert found[0].messages == (("system", "Add."), ("user", found[0].question))
    assert {p.source for p in found} == {"verifiers:vf-adder"}
    assert len(problems(options={"size": 3})) == 3


@pytest.mark.usefixtures("verifiers")
def test_the_environments_rubric_is_the_reward() -> None:
    settings = config.load(assignments=["data.source=verifiers:vf-adder"], environ={}).settings
    rewards, _ = with_own_graders(load_rewards(["gsm8k"]), settings)
    own = next(p for p in problems() if p.question == "3 + 1?")
    scored = asyncio.run(score(rewards, [(own, "4"), (own, " 4 and more"), (own, "5")]))
    assert [one.reward for one in scored] == [1.25, 0.0, 0.25]
    assert scored[0].note.startswith("exact 1, short 1")


@pytest.mark.usefixtures("verifiers")
def test_an_environment_with_tools_is_refused() -> None:
    with pytest.raises(DataError, match="is a ToolEnv: environments of several turns or with tools cannot be trained"):
        problems(options={"kind": "tools"})


@pytest.mark.usefixtures("verifiers")
def test_an_environment_that_is_not_there_is_told() -> None:
    with pytest.raises(DataError, match="verifiers:no-such-env cannot be loaded"):
        problems("no-such-env")


@pytest.mark.parametrize(
    ("package", "told"),
    [
        ("sys.modules['verifiers'] = None", "pip install 'rlctl[verifiers]'"),
        ("sys.modules['verifiers'] = types.SimpleNamespace(__version__='0.4.0')", "pip install 'verifiers<0.2'"),
    ],
)
def test_without_a_usable_package_the_install_line_is_told(package: str, told: str) -> None:
    code = f"""
import sys, types
{package}
from rlctl.data import load_problems
from rlctl.errors import DataError
from rlctl.settings import DataSettings
try:
    load_problems(DataSettings(source="verifiers:x"), split="train", seed=0)
except DataError as error:
    print(error.message, error.hint)
"""
    assert told in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
