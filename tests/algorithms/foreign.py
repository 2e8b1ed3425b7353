"""A plugin with an estimator that works, some that do not, and losses; named in RLCTL_PLUGINS by tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlctl.algorithms import estimators, losses
from rlctl.algorithms.advantages import Group


def doubled(groups: Sequence[Group], *, scale: bool) -> list[list[float]]:
    return [[2 * reward for reward in group.rewards] for group in groups]


def too_few(groups: Sequence[Group], *, scale: bool) -> list[list[float]]:
    return [[1.0] for _ in groups]


def by_token(groups: Sequence[Group], *, scale: bool) -> list[list[Any]]:
    """The reward at the last token, nothing before it."""
    return [[np.eye(n)[-1] * r for r, n in zip(group.rewards, group.lengths, strict=True)] for group in groups]


def infinite(groups: Sequence[Group], *, scale: bool) -> list[list[float]]:
    return [[float("inf")] * len(group.rewards) for group in groups]


def plain(tokens: Any, spec: Any) -> Any:
    return -tokens.advantages * tokens.logprobs, tokens.advantages != tokens.advantages


def raising(groups: Sequence[Group], *, scale: bool) -> list[list[float]]:
    raise KeyError("no such column")


def words(groups: Sequence[Group], *, scale: bool) -> Any:
    return [["good"] * len(group.rewards) for group in groups]


def mean(tokens: Any, spec: Any) -> Any:
    return tokens.logprobs.mean(), tokens.advantages > 0


def no_loss(tokens: Any, spec: Any) -> Any:
    return None


def exits(groups: Sequence[Group], *, scale: bool) -> list[list[float]]:
    raise SystemExit(3)


def huge(groups: Sequence[Group], *, scale: bool) -> list[list[float]]:
    return [[1e300] * len(group.rewards) for group in groups]


def detached(tokens: Any, spec: Any) -> Any:
    return -tokens.advantages, tokens.advantages > 0


def leaving(tokens: Any, spec: Any) -> Any:
    raise SystemExit(3)


_HERE = "tests.algorithms.foreign"
estimators.register("doubled", function=f"{_HERE}:doubled", keeps_flat_groups=True)
estimators.register("last_token", function=f"{_HERE}:by_token", by_token="always")
estimators.register("undeclared", function=f"{_HERE}:by_token")
estimators.register("too_few", function=f"{_HERE}:too_few")
estimators.register("infinite", function=f"{_HERE}:infinite")
estimators.register("raising", function=f"{_HERE}:raising")
estimators.register("words", function=f"{_HERE}:words")
estimators.register("exits", function=f"{_HERE}:exits")
estimators.register("huge", function=f"{_HERE}:huge")
losses.register("detached", function=f"{_HERE}:detached")
losses.register("leaving", function=f"{_HERE}:leaving")
losses.register("mean", function=f"{_HERE}:mean")
losses.register("no_loss", function=f"{_HERE}:no_loss")
losses.register("plain", function=f"{_HERE}:plain", clips=False)
losses.register("absent", function=f"{_HERE}:absent")
