"""Clients of every shape a method can have: real classes, for calling and for check-backend.

`Shapes` is the table of field fault 111. Each of its methods answers a call with 3 by {"n": 3}.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol


async def _answer(n: int) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"n": n}


def retried(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as libraries write it: sync, named like what it wraps."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def nameless(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same without functools.wraps."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class AsyncCallable:
    async def __call__(self, n: int) -> dict[str, int]:
        return await _answer(n)


class Shapes:
    async def plain(self, n: int) -> dict[str, int]:
        return await _answer(n)

    part = functools.partial(_answer)

    @staticmethod
    async def static(n: int) -> dict[str, int]:
        return await _answer(n)

    @classmethod
    async def of_class(cls, n: int) -> dict[str, int]:
        return await _answer(n)

    @retried
    async def wrapped(self, n: int) -> dict[str, int]:
        return await _answer(n)

    @nameless
    async def wrapped_namelessly(self, n: int) -> dict[str, int]:
        return await _answer(n)

    callable_object = AsyncCallable()
    part_of_callable_object = functools.partial(AsyncCallable())
    expression = staticmethod(lambda n: _answer(n))

    @functools.lru_cache  # noqa: B019  # the shape under test
    async def cached(self, n: int) -> dict[str, int]:
        return await _answer(n)

    async def streamed(self, n: int) -> AsyncIterator[dict[str, int]]:
        yield await _answer(n)


class SyncClient:
    """Blocks its thread, as clients over `requests` do."""

    def generate(self, n: int) -> dict[str, int]:
        return {"n": n}

    @retried
    def decorated(self, n: int) -> dict[str, int]:
        return {"n": n}

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def promise(self, n: int) -> Awaitable[dict[str, int]]:
        # Needs the running loop at the call, so it cannot be made in a thread.
        return asyncio.ensure_future(_answer(n))

    def coroutine(self, n: int):
        return _answer(n)

    def chunks(self, n: int) -> Iterator[int]:
        yield from range(n)

    def exhausted(self) -> int:
        return next(iter(()))

    def fails(self) -> None:
        raise ValueError("no such job")

    constant = 3


class Reference:
    """What a Ray actor's method hands back: awaitable, and nothing else."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Iterator[Any]:
        yield from asyncio.sleep(0).__await__()
        return self._value


class ActorMethod:
    """As Ray's: `.remote(...)` submits, calling it directly is refused."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def remote(self, *args: Any, **kwargs: Any) -> Reference:
        return Reference(self._function(*args, **kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("Actor methods cannot be called directly.")


class ActorHandle:
    def __init__(self) -> None:
        self.generate = ActorMethod(lambda n: {"n": n})


class Contract(Protocol):
    """What a run calls, in the tests of check-backend."""

    async def generate(self, prompts: list[str], *, n: int = 1) -> list[str]: ...

    async def step(self) -> dict[str, float]: ...


class GoodClient:
    async def generate(self, prompts: list[str], *, n: int = 1) -> list[str]:
        return prompts * n

    async def step(self) -> dict[str, float]:
        return {}
