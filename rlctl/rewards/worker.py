"""A worker process of the rewards: makes one reward, then answers calls on a socket until the other end is closed.

Started by `workers.py` as a fresh interpreter, so it holds nothing of the run: no torch, no model, no main module.
Calls come as pickles, answers go back as JSON: what runs here may be hostile, and must not reach the run by its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import inspect
import json
import os
import pickle
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from rlctl.errors import ConfigError, RewardError
from rlctl.rewards.base import NamedReward, load_reward
from rlctl.rewards.outcome import as_result, describe

MAX_NOTE_CHARS = 2000
"""Of a result's note: an answer fits into a socket's buffer, so it is never sent by halves."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(*, fd: int, parent: int) -> None:
    """Serve the process of that id over the socket `fd`."""
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Results of the run go to stdout, and what a reward prints is none.
    os.dup2(2, 1)
    socket = Connection(fd)
    with contextlib.suppress(EOFError, OSError):  # The run has closed its end.
        _serve(socket)


def _die_with(parent: int) -> None:
    """Be killed when the parent ends, even while a call holds the interpreter; where the kernel cannot, look."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


def _serve(socket: Connection) -> None:
    name, options, memory_bytes = pickle.loads(socket.recv_bytes())
    _limit_memory(memory_bytes)
    try:
        reward = load_reward(name, options=options)
        warm_up = getattr(reward.function, "warm_up", None)
        if warm_up is not None:
            warm_up()  # Before the first call's deadline begins.
    except ConfigError as error:
        _answer(socket, {"failed": error.message})
        return
    _answer(socket, {"ready": True})
    while True:
        number, problem, completion = pickle.loads(socket.recv_bytes())
        answer = _call(reward, problem, completion)
        _answer(socket, {"call": number, **answer})
        if answer.get("memory"):
            return  # Whatever filled the memory may still be referred to; the next call begins afresh.


def _limit_memory(num_bytes: int | None) -> None:
    """RLIMIT_DATA and not RLIMIT_AS: address space that is only reserved, as CUDA does, costs nothing."""
    if num_bytes is None:
        return
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))


def _call(reward: NamedReward, problem: Any, completion: str) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        value: object = reward.function(problem, completion)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        result = as_result(reward.name, value)
    except RewardError as error:
        return {"broken": [error.message, error.hint]}
    # Code of the user's, which may raise anything, KeyboardInterrupt too.
    except BaseException as error:
        seconds = time.perf_counter() - start
        if isinstance(error, MemoryError):
            gc.collect()
        return {"error": describe(error), "memory": isinstance(error, MemoryError), "seconds": seconds}
    seconds = time.perf_counter() - start
    values = [result.score, result.note[:MAX_NOTE_CHARS], result.form[:MAX_NOTE_CHARS], result.parsed]
    return {"result": [*values, dict(result.extra)], "seconds": seconds}


async def _awaited(value: Any) -> object:
    return await value


def _answer(socket: Connection, answer: dict[str, Any]) -> None:
    socket.send_bytes(json.dumps(answer).encode())
