"""The contract of a reward, the table of the built-in ones, and how a name becomes a reward.

A reward is a callable `(problem, completion) -> float | bool | RewardResult`, sync or async. `completion` is the
text the model wrote and nothing else: a reward that saw the prompt would find the instructions' own examples.
It is called once for each completion, so it cannot return too few values or too many.

A name is a built-in (`gsm8k`) or `package.module:function`, looked up in the current folder too. What a built-in
must say of itself (`BuiltIn`), a custom reward may say, as attributes of the function or object.
"""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rlctl.errors import ConfigError, RewardError
from rlctl.rewards.custom import import_function, is_custom
from rlctl.types import Problem

if TYPE_CHECKING:  # the pool makes rewards by this module
    from rlctl.rewards.workers import WorkerPool

BUILT_IN: Mapping[str, str] = {
    "gsm8k": "rlctl.rewards.math:Gsm8k",
    "math_verify": "rlctl.rewards.symbolic:MathVerify",
    "sql": "rlctl.rewards.sql.reward:sql",
}
"""Name -> class or function that makes the reward from the settings of `[reward.NAME]`, given as keywords. Strings, so
that listing imports nothing."""


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A score with a note for the rollout file.

    `form` says where the answer was found, `parsed` whether one could be read there; rewards that read no answer
    leave them out.
    """

    score: float
    note: str = ""
    form: str = ""
    parsed: bool | None = None
    extra: Mapping[str, float] = field(default_factory=dict)
    """Values beside the score, by name: measured and shown like scores, without weight."""


Value = float | bool | RewardResult
Reward = Callable[[Problem, str], Value | Awaitable[Value]]

Place = Literal["inline", "thread", "process", "workers"]
"""Where calls run: on the event loop (microseconds, never blocks), in a thread of this process (it has workers of its
own), in a worker process, or in whichever of these two `reward.workers` says."""


class BuiltIn(Protocol):
    """What the class of a built-in reward has."""

    runs: Place

    def __call__(self, problem: Problem, completion: str, /) -> RewardResult: ...

    def gold_complaint(self, problem: Problem) -> str | None:
        """Why this problem's reward could never be earned; None when it can. Asked of every problem at load."""

    def gold_completion(self, problem: Problem) -> str | None:
        """A completion that must get 1.0; None where there is none to be made of the gold answer."""


@dataclass(frozen=True, slots=True)
class NamedReward:
    """One reward of a run. `options` are the settings it was made with: with its name, what a worker makes it from."""

    name: str
    function: Reward
    weight: float = 1.0
    runs: Place = "thread"
    options: Mapping[str, Any] = field(default_factory=dict)
    ours: bool = False
    """Whether rlctl made it, and so may close it."""

    @property
    def inline(self) -> bool:
        return self.runs == "inline"

    @property
    def keeps_time(self) -> bool:
        """Whether each call ends by itself, so that waiting for a turn must not count against `timeout_s`."""
        return getattr(self.function, "keeps_time", False) is True

    @property
    def gold_complaint(self) -> Callable[[Problem], str | None] | None:
        return getattr(self.function, "gold_complaint", None)

    @property
    def gold_findings(self) -> Callable[[Sequence[Problem]], Sequence[Any]] | None:
        """What is wrong with gold answers beyond `gold_complaint`, where telling takes work: found on all at once."""
        return getattr(self.function, "gold_findings", None)

    @property
    def gold_completion(self) -> Callable[[Problem], str | None] | None:
        return getattr(self.function, "gold_completion", None)


@dataclass(frozen=True, slots=True)
class RewardSet:
    """All rewards of a run; `timeout_s` bounds each call that is not inline."""

    rewards: tuple[NamedReward, ...]
    timeout_s: float
    pool: WorkerPool | None = None
    """Worker processes for calls that are to run in one; without it they run in threads."""

    def gold_complaint(self, problem: Problem) -> str | None:
        """Why a reward could never be earned on this problem; None when all can."""
        for reward in self.rewards:
            if complaint := _complaint_of(reward, problem):
                return complaint
        return None

    def close(self) -> None:
        """End what the rewards have running. A later call starts it anew."""
        if self.pool is not None:
            self.pool.close()
        for reward in self.rewards:
            close = getattr(reward.function, "close", None)
            if close is not None and reward.ours:
                close()


def _complaint_of(reward: NamedReward, problem: Problem) -> str | None:
    if reward.gold_complaint is None:
        return None
    try:
        return reward.gold_complaint(problem)
    # A custom reward's may raise anything; a fault of its own is told as one, with the problem it met.
    except Exception as error:
        raise RewardError(
            f"reward {reward.name}: gold_complaint of {problem.id} raised {type(error).__name__}: {error}."
        ) from error


def load_rewards(
    names: Sequence[str],
    weights: Sequence[float] | None = None,
    *,
    timeout_s: float = 10.0,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    workers: Literal["thread", "process"] = "thread",
    pool: WorkerPool | None = None,
) -> RewardSet:
    """The rewards of those names, each weighed 1 without `weights`.

    `options` are a built-in's own settings, by its name: `{"gsm8k": {"allow_last_number": True}}`; `workers` is where
    rewards run that have no place of their own.
    Raises ConfigError that lists every name that cannot be used.
    """
    weights = [1.0] * len(names) if weights is None else weights
    complaints = _complaints(names, weights)
    rewards = []
    for name, weight in zip(names, weights, strict=False):
        try:
            reward = load_reward(name, weight=weight, options=(options or {}).get(name, {}))
            rewards.append(replace(reward, runs=workers) if reward.runs == "workers" else reward)
        except ConfigError as error:
            complaints.append(" ".join(filter(None, (error.message, error.hint))))
    if complaints:
        raise ConfigError("\n".join(complaints), hint=f"a reward is {_known()} or package.module:function.")
    return RewardSet(tuple(rewards), timeout_s, pool)


def load_reward(name: str, *, weight: float = 1.0, options: Mapping[str, Any]) -> NamedReward:
    """The reward of that name. Raises ConfigError when there is none, or it cannot be made here."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        built_in: BuiltIn = getattr(importlib.import_module(module), attribute)(**options)
        return NamedReward(name, built_in, weight, built_in.runs, options, ours=True)
    if not is_custom(name):
        nearest = difflib.get_close_matches(name, sorted(BUILT_IN), n=1, cutoff=0.5)
        raise ConfigError(f"reward {name!r} is unknown" + (f"; the nearest is {nearest[0]!r}." if nearest else "."))
    return NamedReward(name, import_function(name), weight, "workers")


def _complaints(names: Sequence[str], weights: Sequence[float]) -> list[str]:
    found = []
    if not names:
        found.append("reward.functions is empty; nothing could be learned.")
    if len(names) != len(weights):
        found.append(f"reward.weights has {len(weights)} values for {len(names)} functions.")
    found += [f"reward {name!r} is named twice; add its weights up." for name in set(names) if names.count(name) > 1]
    found += [f"reward weight {weight} is not a finite number." for weight in weights if not math.isfinite(weight)]
    return found


def _known() -> str:
    return " or ".join(sorted(BUILT_IN))
