"""The contract of a reward, and how a name becomes one.

A reward is a callable `(problem, completion) -> float | bool | RewardResult`, sync or async. `completion` is the
text the model wrote and nothing else: a reward that saw the prompt would find the instructions' own examples.
It is called once for each completion, so it cannot return too few values or too many.

A name is a built-in (`gsm8k`) or `package.module:function`, looked up in the current folder too.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import operator
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.errors import ConfigError
from rlctl.rewards.math import gold_number, grade_gsm8k
from rlctl.types import Problem


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A score with a note for the rollout file. `form` says where the answer was found, for rewards that look."""

    score: float
    note: str = ""
    form: str = ""


Value = float | bool | RewardResult
Reward = Callable[[Problem, str], Value | Awaitable[Value]]


@dataclass(frozen=True, slots=True)
class NamedReward:
    """One reward of a run. `inline` ones are quick and cannot block, so they are called without a thread."""

    name: str
    function: Reward
    weight: float = 1.0
    inline: bool = False


@dataclass(frozen=True, slots=True)
class RewardSet:
    """All rewards of a run; `timeout_s` bounds each call of a custom one."""

    rewards: tuple[NamedReward, ...]
    timeout_s: float

    def gold_complaint(self, problem: Problem) -> str | None:
        """Why a built-in reward could never be earned on this problem; None when it can."""
        if not any(reward.inline and reward.name == "gsm8k" for reward in self.rewards):
            return None
        try:
            gold_number(problem.answer)
        except ValueError as error:
            return str(error)
        return None


def load_rewards(
    names: Sequence[str],
    weights: Sequence[float] | None = None,
    *,
    timeout_s: float = 10.0,
    options: Mapping[str, Mapping[str, bool]] | None = None,
) -> RewardSet:
    """The rewards of those names, each weighed 1 without `weights`.

    `options` are a built-in's own settings, by its name: `{"gsm8k": {"allow_last_number": True}}`.
    Raises ConfigError that lists every name that cannot be used.
    """
    weights = [1.0] * len(names) if weights is None else weights
    complaints = _complaints(names, weights)
    rewards = []
    for name, weight in zip(names, weights, strict=False):
        try:
            rewards.append(_load(name, weight=weight, options=(options or {}).get(name, {})))
        except ConfigError as error:
            complaints.append(" ".join(filter(None, (error.message, error.hint))))
    if complaints:
        raise ConfigError("\n".join(complaints), hint=f"a reward is {_known()} or package.module:function.")
    return RewardSet(tuple(rewards), timeout_s)


def _complaints(names: Sequence[str], weights: Sequence[float]) -> list[str]:
    found = []
    if not names:
        found.append("reward.functions is empty; nothing could be learned.")
    if len(names) != len(weights):
        found.append(f"reward.weights has {len(weights)} values for {len(names)} functions.")
    found += [f"reward {name!r} is named twice; add its weights up." for name in set(names) if names.count(name) > 1]
    found += [f"reward weight {weight} is not a finite number." for weight in weights if not math.isfinite(weight)]
    return found


def _load(name: str, *, weight: float, options: Mapping[str, bool]) -> NamedReward:
    if name in BUILT_IN:
        return NamedReward(name, BUILT_IN[name](**options), weight, inline=True)
    module_name, colon, path = name.partition(":")
    if not (colon and module_name and path):
        nearest = difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.0)
        raise ConfigError(f"reward {name!r} is unknown; the nearest is {nearest[0]!r}.")
    function = _attribute(name, _import(name, module_name), path)
    _check_signature(name, function)
    return NamedReward(name, function, weight)


def _import(name: str, module_name: str) -> object:
    """The module, found where Python finds it or, last so that it shadows nothing, in the current folder."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            message = f"reward {name!r}: there is no module {error.name!r}, neither installed nor in {Path.cwd()}."
            raise ConfigError(message) from error
        raise ConfigError(f"reward {name!r}: {module_name} needs {error.name!r}, which is not installed.") from error
    # Code of the user's runs here, and may raise anything; a script without a main guard may call sys.exit.
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"reward {name!r}: importing {module_name} raised {type(error).__name__}: {error}."
        ) from error


def _attribute(name: str, module: object, path: str) -> Reward:
    try:
        found = operator.attrgetter(path)(module)
    except AttributeError as error:
        nearest = difflib.get_close_matches(path, vars(module), n=1)
        message = f"reward {name!r}: {getattr(module, '__file__', None) or module} has no {path!r}"
        raise ConfigError(f"{message}; the nearest is {nearest[0]!r}." if nearest else f"{message}.") from error
    if inspect.isclass(found) or not callable(found):
        kind = "class" if inspect.isclass(found) else type(found).__name__
        raise ConfigError(f"reward {name!r} is a {kind}, not a function.")
    return found  # type: ignore[no-any-return]  # what it returns is checked at each call


def _check_signature(name: str, function: Reward) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # Some functions written in C have none to look at.
    try:
        signature.bind(None, "")
    except TypeError as error:
        raise ConfigError(
            f"reward {name!r} takes {signature}, but is called with (problem, completion): {error}."
        ) from error


def _known() -> str:
    return " or ".join(sorted(BUILT_IN))


def _gsm8k(*, allow_last_number: bool = False) -> Reward:
    def reward(problem: Problem, completion: str) -> RewardResult:
        grade = grade_gsm8k(completion, problem.answer, allow_last_number=allow_last_number)
        return RewardResult(grade.score, note=grade.reason, form=grade.form or "")

    return reward


BUILT_IN: Mapping[str, Callable[..., Reward]] = {"gsm8k": _gsm8k}
"""Name -> what makes the reward from its options."""
