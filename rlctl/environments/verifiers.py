"""`verifiers:NAME`: the problems of an environment package, and its rubric where a problem is question and answer.

NAME is what `verifiers.load_environment` takes, `data.options` its arguments. Environments of several turns or with
tools are played by `verifiers_turns.py`; those with rewards that compare a group are refused. A prompt is the
environment's whole conversation, its system message included. The rubric is the environment's own and runs in this
process.

Package: https://github.com/PrimeIntellect-ai/verifiers, releases before 0.2, whose environments are Python objects; the
later ones run theirs as servers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlctl.errors import DataError
from rlctl.rewards.base import RewardResult
from rlctl.types import Problem

if TYPE_CHECKING:  # sources imports this module
    from rlctl.sources import Request

PREFIX = "verifiers:"
SEVERAL_TURNS = "several_turns"
"""Key in `Problem.extra`: whether the environment has to answer the policy, so that `environment.name` is needed."""
INSTALL = "pip install 'rlctl[verifiers]', and the package of the environment itself"


def load(request: Request) -> list[Problem]:
    """The problems of an environment. Raises DataError when it cannot be loaded or is of no kind that can be played."""
    options = json.dumps(dict(request.spec.options), sort_keys=True)
    environment = environment_of(request.name, options)
    if request.split == "train":
        rows = environment.get_dataset(seed=request.seed)
    else:
        rows = environment.get_eval_dataset(n=request.eval_size, seed=request.seed)
    several = not isinstance(environment, _package().SingleTurnEnv)
    found = {"grader": PREFIX, "environment": request.name, "options": options, SEVERAL_TURNS: several}
    return [_problem(request, number, row, found) for number, row in enumerate(rows)]


def _problem(request: Request, number: int, row: Mapping[str, Any], found: Mapping[str, Any]) -> Problem:
    name = f"{PREFIX}{request.name}/{request.split}/{number}"
    messages = tuple((str(m["role"]), m["content"]) for m in row["prompt"])
    if not messages or messages[-1][0] != "user" or not all(isinstance(content, str) for _, content in messages):
        raise DataError(f"{name}: its prompt does not end with a user's message of plain text.")
    return Problem(
        id=name,
        question=messages[-1][1],
        answer=str(row.get("answer") or ""),
        source=request.spec.source,
        extra={**found, "row": dict(row)},
        messages=messages,
    )


async def grade(problem: Problem, completion: str) -> RewardResult:
    """What the environment's rubric gives for the completion: its weighted sum."""
    environment = environment_of(problem.extra["environment"], problem.extra["options"])
    if problem.extra.get(SEVERAL_TURNS):
        raise ValueError("an environment of several turns grades only what it has played: set environment.name")
    state = _state(problem, completion)
    await environment.rubric.score_rollout(state)
    metrics = ", ".join(f"{name} {value:g}" for name, value in (state.get("metrics") or {}).items())
    return RewardResult(float(state["reward"]), note=metrics)


def _state(problem: Problem, completion: str) -> Any:
    """A rollout as the rubric expects it after its only turn."""
    import verifiers

    row = problem.extra["row"]
    state = verifiers.State(input={key: value for key, value in row.items() if value is not None})
    state["completion"] = [{"role": "assistant", "content": completion}]
    state["trajectory"], state["is_completed"], state["is_truncated"] = [], True, False
    return state


@functools.lru_cache(maxsize=8)
def environment_of(name: str, options: str) -> Any:
    """The environment of that name, made with those options, as JSON. Raises DataError."""
    verifiers = _package()
    try:
        environment = verifiers.load_environment(name, **json.loads(options))
    # The code of another package runs here, and verifiers itself wraps whatever it raises.
    except Exception as error:
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        raise DataError(
            f"verifiers:{name} cannot be loaded: {error}{cause}", hint="install the environment's own package."
        ) from error
    if not isinstance(environment, verifiers.MultiTurnEnv):
        raise DataError(
            f"verifiers:{name} is a {type(environment).__name__}, which is no MultiTurnEnv and cannot be played turn "
            "by turn.",
            hint="take one that is a SingleTurnEnv, a MultiTurnEnv or a ToolEnv.",
        )
    if environment.rubric.has_group_rewards:
        raise DataError(f"verifiers:{name} has rewards that compare a group of completions, which rlctl cannot call.")
    return environment


def _package() -> Any:
    try:
        import verifiers
    except ImportError as error:
        raise DataError(f"verifiers needs the package {error.name!r}, which is not installed.", hint=INSTALL) from error
    if not hasattr(verifiers, "load_environment"):
        raise DataError(
            f"verifiers {getattr(verifiers, '__version__', '')} runs its environments as servers, which rlctl cannot "
            "drive yet.",
            hint="pip install 'verifiers<0.2'",
        )
    return verifiers
