"""Run custom rewards in this process: sync ones in daemon threads, async ones on an event loop of their own.

Time-outs use no signal: they work in any thread and in any event loop. A thread that is stuck cannot be ended and must
not keep the process from ending; `workers.py` has processes, which can.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable

from rlctl.errors import RewardError
from rlctl.rewards.base import Reward

MAX_STUCK_THREADS = 64
"""Threads that outlived their time-out. Each holds memory, and perhaps a core, until the process ends."""


def is_async(function: Reward) -> bool:
    """Whether calling it only makes a coroutine. A False is no promise: the result decides, after the call."""
    call = getattr(function, "__call__", None)  # noqa: B004  # not whether it can be called, but how
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def on_reward_loop(make: Callable[[], object]) -> object:
    """What the awaitable that `make` makes gives, awaited on a loop of the rewards' own.

    All async rewards share that loop, so a client one of them keeps stays usable. It runs in a daemon thread: a
    coroutine that blocks, or swallows its cancellation, holds up neither the run nor the process at its end.
    """

    async def awaited() -> _Answer:
        try:
            made = make()
            return (await made if inspect.isawaitable(made) else made), None
        # Carried over to `_guarded`, as in `_run`: SystemExit would end the loop of all the others.
        except BaseException as error:
            return None, error

    value, error = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awaited(), _reward_loop()))
    if error is not None:
        raise error
    return value


@functools.cache
def _reward_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rlctl-rewards", daemon=True).start()
    return loop


_Answer = tuple[object, BaseException | None]

_stuck: set[threading.Thread] = set()


async def in_thread(
    name: str, work: Callable[[], object], *, unclaimed: Callable[[object], None] = lambda value: None
) -> object:
    """What `work` gives, in a thread of that name; when cancelled, it is counted as stuck for as long as it runs.

    `unclaimed` is called, on this loop, with what it gives when nobody waits for it any more.
    """
    _refuse_too_many_stuck(name)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Answer] = loop.create_future()

    def do() -> None:
        outcome = _run(work)
        # A closed loop raises: nobody waits for the answer any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_deliver, answer, outcome, unclaimed)

    thread = threading.Thread(target=do, name=name, daemon=True)
    thread.start()
    try:
        value, error = await answer
    except asyncio.CancelledError:
        _stuck.add(thread)
        if answer.done() and not answer.cancelled():
            _give_away(answer.result(), unclaimed)
        raise
    if error is not None:
        raise error
    return value


def _run(work: Callable[[], object]) -> _Answer:
    try:
        return work(), None
    # Not handled here, only carried to the event loop, where the caller decides.
    except BaseException as error:
        return None, error


def _deliver(answer: asyncio.Future[_Answer], outcome: _Answer, unclaimed: Callable[[object], None]) -> None:
    if answer.done():
        _give_away(outcome, unclaimed)
    else:
        answer.set_result(outcome)


def _give_away(outcome: _Answer, unclaimed: Callable[[object], None]) -> None:
    value, error = outcome
    if error is None:
        unclaimed(value)


def _refuse_too_many_stuck(name: str) -> None:
    _stuck.difference_update([thread for thread in _stuck if not thread.is_alive()])
    if len(_stuck) > MAX_STUCK_THREADS:
        raise RewardError(
            f"{name}: {len(_stuck)} calls still run after their time-out.",
            hint="a thread cannot be ended from outside; give the function a time limit of its own.",
        )
