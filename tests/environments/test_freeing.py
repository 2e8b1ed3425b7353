"""What a rollout holds is freed however it ends: `finish` is called once for every state that `reset` made."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rlctl.environments.base import Action, Start, Step
from rlctl.errors import BackendError, RewardError
from rlctl.types import Problem
from tests.environments.test_playing import PROBLEMS, Scripted, groups, sampler_of

PATIENCE_S = 20.0


class Renting:
    """Rents something in `reset`, and gives it back in `finish`; misbehaves at problem a, in the way it is told."""

    def __init__(self, how: str = "") -> None:
        self.how = how
        self.open: list[str] = []
        self.endings: list[tuple[str, str]] = []
        self.go_on = threading.Event()
        self.entered = threading.Event()
        self.freed = {"a": threading.Event(), "b": threading.Event()}

    def reset(self, problem: Problem) -> Any:
        bad = problem.id == "a"
        if bad and self.how == "reset raises":
            raise LookupError("no such level")
        if bad and self.how == "reset is late":
            self.entered.set()
            self.go_on.wait(PATIENCE_S)
        self.open.append(problem.id)
        words = ("nobody", 1) if bad and self.how == "reset says nonsense" else ("user", problem.question)
        return Start(problem.id, (words,))  # type: ignore[arg-type]  # on purpose

    def step(self, state: str, action: Action) -> Any:
        if state == "a" and self.how == "step raises":
            raise ZeroDivisionError("boom")
        if state == "a" and self.how == "step hangs":
            self.entered.set()
            self.go_on.wait(PATIENCE_S)
        return "nonsense" if state == "a" and self.how == "step says nonsense" else Step(reward=1.0, done=True)

    def finish(self, state: str, ending: str) -> float:
        self.open.remove(state)
        self.endings.append((state, ending))
        self.freed[state].set()
        if state == "a" and self.how == "finish raises":
            raise RuntimeError("no")
        return 0.0


class AsyncRenting(Renting):
    """The same, as a coroutine."""

    async def finish(self, state: str, ending: str) -> float:  # type: ignore[override]
        await asyncio.sleep(0)
        return Renting.finish(self, state, ending)


@pytest.mark.parametrize("kind", [Renting, AsyncRenting])
@pytest.mark.parametrize(
    ("how", "endings"),
    [
        ("", {("a", "done"), ("b", "done")}),
        ("reset raises", {("b", "done")}),
        ("reset says nonsense", {("a", "failed"), ("b", "done")}),
        ("step raises", {("a", "failed"), ("b", "done")}),
        ("step says nonsense", {("a", "failed"), ("b", "done")}),
        ("finish raises", {("a", "done"), ("b", "done")}),
    ],
)
def test_finish_is_called_once_for_every_state(kind: type[Renting], how: str, endings: set[tuple[str, str]]) -> None:
    game = kind(how)
    failed, fine = groups(game, Scripted("hi$"), problems=PROBLEMS)
    assert set(game.endings) == endings
    assert len(game.endings) == len(endings)
    assert game.open == []
    assert fine[0].reward == 1.0
    if how:
        assert failed[0].reward is None
        assert how.split()[0] in failed[0].note  # the first failure, and not what became of finish


def test_a_rollout_whose_step_hangs_is_freed_while_it_hangs() -> None:
    game = Renting("step hangs")
    try:
        groups(game, Scripted("hi$"), problems=PROBLEMS, timeout_s=1.0)
        assert sorted(game.endings) == [("a", "failed"), ("b", "done")]
    finally:
        game.go_on.set()


@pytest.mark.parametrize("kind", [Renting, AsyncRenting])
def test_what_a_late_reset_makes_is_freed_when_it_comes(kind: type[Renting]) -> None:
    game = kind("reset is late")

    async def generate(*_: Any, **__: Any) -> Any:
        game.go_on.set()  # the rollout of a has failed by now
        assert await asyncio.to_thread(game.freed["a"].wait, PATIENCE_S)
        return await Scripted("hi$").generate(*_, **__)

    backend = Scripted("hi$")
    backend.generate = generate  # type: ignore[method-assign]
    groups(game, backend, problems=PROBLEMS, timeout_s=1.0)
    assert sorted(game.endings) == [("a", "failed"), ("b", "done")]
    assert game.open == []


def test_all_are_freed_where_every_rollout_fails() -> None:
    game = Renting("step raises")
    with pytest.raises(RewardError, match="failed in all 2 rollouts"):
        groups(game, Scripted("hi$"), n=2)
    assert game.endings == [("a", "failed")] * 2


def test_all_are_freed_when_sampling_fails() -> None:
    class Broken(Scripted):
        async def generate(self, *_: Any, **__: Any) -> Any:
            raise BackendError("gone.", hint="")

    game = Renting()
    with pytest.raises(BackendError):
        groups(game, Broken(), problems=PROBLEMS)
    assert sorted(game.endings) == [("a", "abandoned"), ("b", "abandoned")]


@pytest.mark.parametrize("where", ["reset", "sampling", "step"])
def test_all_are_freed_when_the_batch_is_given_up(where: str) -> None:
    game = Renting({"reset": "reset is late", "step": "step hangs"}.get(where, ""))

    class Waiting(Scripted):
        async def generate(self, *_: Any, **__: Any) -> Any:
            if where == "sampling":
                game.entered.set()
                await asyncio.sleep(PATIENCE_S)
            return await super().generate(*_, **__)

    async def given_up() -> None:
        work = asyncio.create_task(sampler_of(game, Waiting("hi$")).groups(PROBLEMS, 1))
        assert await asyncio.to_thread(game.entered.wait, PATIENCE_S)
        work.cancel()
        await asyncio.wait({work})
        assert work.cancelled()
        if where == "reset":
            game.go_on.set()
            for freed in game.freed.values():  # either may have been late
                assert await asyncio.to_thread(freed.wait, PATIENCE_S)

    try:
        asyncio.run(given_up())
    finally:
        game.go_on.set()
    endings = dict(game.endings)
    assert endings["a"] == "abandoned"
    assert endings["b"] in ("abandoned", "done")
    assert len(game.endings) == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_being_freed_when_the_batch_is_given_up_is_freed_once(is_async: bool) -> None:
    class Slow(Renting):
        def finish(self, state: str, ending: str) -> float:
            self.entered.set()
            self.go_on.wait(PATIENCE_S)
            return super().finish(state, ending)

    class AsyncSlow(Renting):
        async def finish(self, state: str, ending: str) -> float:  # type: ignore[override]
            self.entered.set()
            while not self.go_on.is_set():
                await asyncio.sleep(0.01)
            return Renting.finish(self, state, ending)

    game = AsyncSlow() if is_async else Slow()

    async def given_up() -> None:
        work = asyncio.create_task(sampler_of(game, Scripted("hi$")).groups(PROBLEMS[:1], 1))
        assert await asyncio.to_thread(game.entered.wait, PATIENCE_S)
        work.cancel()
        await asyncio.sleep(0)
        game.go_on.set()
        await asyncio.wait({work})
        assert work.cancelled()

    asyncio.run(given_up())
    assert game.endings == [("a", "done")]


def test_one_that_does_not_let_go_holds_nobody_up() -> None:
    class Clinging(Renting):
        def finish(self, state: str, ending: str) -> float:
            self.go_on.wait(PATIENCE_S)
            self.freed[state].set()
            return 0.0

    class Broken(Scripted):
        async def generate(self, *_: Any, **__: Any) -> Any:
            raise BackendError("gone.", hint="")

    game = Clinging()
    try:
        with pytest.raises(BackendError):
            groups(game, Broken(), n=200, timeout_s=0.3)  # more than run at once
        assert not game.freed["a"].is_set()  # nobody has waited for it
    finally:
        game.go_on.set()
