"""Small environments, as their users write them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from rlctl.environments.base import Action, Start, Step
from rlctl.types import Problem


class Echo:
    """Answers each turn with a message that repeats it, three times; each turn is worth 1, the end 10."""

    def reset(self, problem: Problem) -> list[Action]:
        return []

    def step(self, state: list[Action], action: Action) -> Step:
        state.append(action)
        done = len(state) == 3
        return Step(messages=[("user", f"you said {len(action.text)}")], reward=1.0, done=done, metrics={"seen": 1})

    def finish(self, state: list[Action], ending: str) -> float:
        return 10.0 if ending == "done" else 0.0


class AsyncEcho(Echo):
    """The same, as coroutines that wait for something."""

    async def reset(self, problem: Problem) -> list[Action]:  # type: ignore[override]
        await asyncio.sleep(0)
        return []

    async def step(self, state: list[Action], action: Action) -> Step:  # type: ignore[override]
        await asyncio.sleep(0)
        return Echo.step(self, state, action)


class OwnWords(Echo):
    """Begins with a conversation of its own."""

    def reset(self, problem: Problem) -> Start:  # type: ignore[override]
        return Start([], (("system", "Play."), ("user", f"{problem.question} go")))


class Faulty(Echo):
    """Fails in the way and at the problems that it is told."""

    def __init__(self, how: str, only: str = "") -> None:
        self.how, self.only = how, only
        self.release = threading.Event()

    def reset(self, problem: Problem) -> Any:
        if problem.id == self.only or not self.only:
            if self.how == "reset":
                raise LookupError("no such level")
            return [problem]
        return []

    def step(self, state: list[Any], action: Action) -> Any:
        if not state or not isinstance(state[0], Problem):
            return Step(reward=1.0, done=True)
        if self.how == "raises":
            raise ZeroDivisionError("boom")
        if self.how == "exits":
            raise SystemExit(3)
        if self.how == "interrupts":
            raise KeyboardInterrupt
        if self.how == "hangs":
            self.release.wait(20)
        answers: dict[str, Any] = {
            "none": None,
            "nan": Step(reward=float("nan")),
            "words": Step(reward="much"),  # type: ignore[arg-type]
            "both": Step(text="a", messages=[("user", "b")]),
            "shape": Step(messages=["hello"]),  # type: ignore[list-item]
            "count": Step(tool_calls=-1),
            "half": Step(messages=[("user", "\ud800")]),
            "digits": Step(token_ids="12"),  # type: ignore[arg-type]
            "behind": Step(text="more"),
        }
        return answers.get(self.how)

    def finish(self, state: Any, ending: str) -> float:
        return 0.0

    def close(self) -> None:
        self.release.set()


class Silent:
    """Grades, and never gives a reward."""

    def reset(self, problem: Problem) -> None: ...

    def step(self, state: None, action: Action) -> Step:
        return Step(done=True)


class Slow:
    """Takes its time, so that calls at once can be told from calls one after the other."""

    SECONDS = 0.2

    def reset(self, problem: Problem) -> None:
        time.sleep(self.SECONDS)

    def step(self, state: None, action: Action) -> Step:
        return Step(reward=1.0, done=True)


class NotQuite:
    """Has no step, and says things of a wrong form."""

    grades = "yes"
    stop = "="

    def reset(self, problem: Problem) -> None: ...


class Tooled(Slow):
    """Has a tool, which chat templates list in every prompt."""

    tools = ({"type": "function", "function": {"name": "a_tool_with_a_long_name"}},)
