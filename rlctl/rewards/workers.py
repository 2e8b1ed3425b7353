"""A pool of worker processes for rewards: a call that is stuck or dies costs its own worker, never the run.

Each slot is a thread that owns one process, hands it a call, and waits no longer than the call's deadline. A process
that misses it, dies or is out of memory is killed with everything it started, and the next call gets a fresh one.
Processes are started when they are first needed.

Not `concurrent.futures` or pebble: both start children that import the run's main module again, torch with it, and
end the child alone, not what a reward has started in it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from rlctl.errors import RewardError
from rlctl.rewards.base import NamedReward, RewardResult
from rlctl.rewards.outcome import Failure, Outcome, outcome_of
from rlctl.types import Problem

START_SECONDS = 120.0
"""A worker may take that long to import its reward, which may load a model; no call is running yet."""

RETRY_SECONDS = 30.0
"""A reward that could not be made in a worker is not tried again before: a batch must not wait for every failure."""

LOOK_SECONDS = 0.2
"""How often a waiting slot looks whether its process still lives: a process that it forked may keep the socket open."""

MAX_ANSWER_BYTES = 1 << 20

_GARBLED = Failure("crash", "its worker process sent something else than an answer")

_ELSE = ' (reward.workers = "thread" calls it where it was found)'
"""For a function that lives in the run's process only, such as one made in a notebook."""

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[3])
from rlctl.rewards.worker import main
main(fd=int(sys.argv[1]), parent=int(sys.argv[2]))
"""

_ENVIRONMENT = {
    # Workers run side by side already; the buffers of a thread a core would also count against their memory.
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # A reward that goes by a hash or the order of a set is then the same function in all of them.
    "PYTHONHASHSEED": "0",
}
"""What workers are told, unless the user's environment says otherwise."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call that waits for a slot."""

    reward: NamedReward
    problem: Problem
    completion: str
    timeout_s: float
    answer: Future[Outcome] = field(default_factory=Future)


class WorkerPool:
    """`size` slots. Safe from any thread and any event loop; `close` ends the processes."""

    def __init__(self, size: int, *, memory_gb: float | None = None) -> None:
        self.size = size
        self.memory_bytes = None if memory_gb is None else int(memory_gb * 2**30)
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._slots: list[_Slot] = []
        self._lock = threading.Lock()

    def submit(self, reward: NamedReward, problem: Problem, completion: str, *, timeout_s: float) -> Future[Outcome]:
        """The outcome, once there is one. It raises RewardError when the reward breaks its contract."""
        call = _Call(reward, problem, completion, timeout_s)
        with self._lock:
            if len(self._slots) < self.size:
                if not self._slots:
                    atexit.register(self.close)
                self._slots.append(_Slot(self._calls, memory_bytes=self.memory_bytes))
            self._calls.put(call)
        return call.answer

    def close(self) -> None:
        """Kill the processes and drop the calls that wait. A later call starts the pool anew."""
        with self._lock:
            slots, self._slots = self._slots, []
            calls, self._calls = self._calls, queue.SimpleQueue()
        with contextlib.suppress(queue.Empty):
            while (call := calls.get_nowait()) is not None:
                call.answer.cancel()
        for slot in slots:
            slot.closed = True
            calls.put(None)
        for slot in slots:
            slot.end()
        atexit.unregister(self.close)


class _Slot:
    """A thread with at most one process for each reward that it has called."""

    def __init__(self, calls: queue.SimpleQueue[_Call | None], *, memory_bytes: int | None) -> None:
        self.calls, self.memory_bytes = calls, memory_bytes
        self.workers: dict[str, _Worker] = {}
        self.refused: dict[str, tuple[float, Outcome]] = {}
        self.num_calls = 0
        self.closed = False
        self.thread = threading.Thread(target=self._run, name="rlctl-reward-slot", daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Kill its processes; the thread, which owns their sockets, sees that and ends too."""
        for worker in list(self.workers.values()):
            worker.kill()
        self.thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self.closed and (call := self.calls.get()) is not None:
            if not call.answer.set_running_or_notify_cancel():
                continue
            try:
                call.answer.set_result(self._outcome(call))
            # Carried to whoever waits: a RewardError, or a fault of ours that must not leave them waiting.
            except BaseException as error:
                call.answer.set_exception(error)
        for worker in self.workers.values():
            worker.bury()

    def _outcome(self, call: _Call) -> Outcome:
        name, death = call.reward.name, ""
        for _ in range(2):
            worker = self.workers.get(name) or self._start(call.reward)
            if isinstance(worker, Outcome):
                return worker
            self.num_calls += 1
            request = pickle.dumps((self.num_calls, call.problem, call.completion))
            try:
                worker.socket.send_bytes(request)
            except OSError:  # It died while it had nothing to do, so this call has not begun.
                death = worker.death()
                self._drop(name)
                continue
            return self._answered(call, worker)
        return Outcome(None, Failure("crash", f"its worker process died before the call ({death})"))

    def _answered(self, call: _Call, worker: _Worker) -> Outcome:
        start = time.perf_counter()
        answer = worker.receive(call.timeout_s)
        if not isinstance(answer, Failure) and answer.get("call") != self.num_calls:
            answer = _GARBLED  # Not this call's: its scores must not get to another.
        if isinstance(answer, Failure):
            self._drop(call.reward.name)
            return Outcome(None, answer, time.perf_counter() - start)
        if answer.get("memory"):
            self._drop(call.reward.name)
        return self._read(answer, call.reward)

    def _read(self, answer: Mapping[str, Any], reward: NamedReward) -> Outcome:
        try:
            if "broken" in answer:
                message, hint = answer["broken"]
                raise RewardError(str(message), hint=str(hint))
            seconds = float(answer["seconds"])
            if "error" in answer:
                limit = f"; reward.worker_memory_gb = {(self.memory_bytes or 0) / 2**30:g}" if answer["memory"] else ""
                return Outcome(None, Failure("exception", answer["error"] + limit), seconds)
            score, note, form, parsed, extra = answer["result"]
            result = RewardResult(float(score), note=note, form=form, parsed=parsed, extra=extra)
        except (KeyError, TypeError, ValueError):
            return Outcome(None, _GARBLED)
        return outcome_of(reward.name, result, weight=reward.weight, seconds=seconds)

    def _start(self, reward: NamedReward) -> _Worker | Outcome:
        """A worker that has made its reward, or why there is none; it is not tried again at once."""
        since, refusal = self.refused.get(reward.name, (-math.inf, None))
        if refusal is not None and time.monotonic() - since < RETRY_SECONDS:
            return refusal
        started = self._started(reward)
        if isinstance(started, Outcome):
            self.refused[reward.name] = (time.monotonic(), started)
        return started

    def _started(self, reward: NamedReward) -> _Worker | Outcome:
        try:
            worker = _Worker()
        except OSError as error:  # No more processes or files are allowed.
            return Outcome(None, Failure("crash", f"a worker process cannot be started: {error}"))
        self.workers[reward.name] = worker
        if self.closed:
            worker.kill()  # `end` may have looked before it was there.
        try:
            worker.socket.send_bytes(pickle.dumps((reward.name, dict(reward.options), self.memory_bytes)))
            answer = worker.receive(START_SECONDS)
        except OSError:
            answer = Failure("crash", f"its worker process died at its start ({worker.death()})")
        if isinstance(answer, Failure):
            self._drop(reward.name)
            return Outcome(None, Failure(answer.kind, f"importing it in a worker: {answer.text}"))
        if "failed" in answer:
            self._drop(reward.name)
            return Outcome(None, Failure("exception", f"in a worker: {answer['failed']}{_ELSE}"))
        return worker

    def _drop(self, name: str) -> None:
        self.workers.pop(name).bury()


class _Worker:
    """One process and the socket to it. It leads a session of its own: Ctrl-C in the terminal is not sent to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        arguments = [str(theirs.fileno()), str(os.getpid()), json.dumps(sys.path)]
        with ours, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**_ENVIRONMENT, **os.environ},
            )
            self.socket = Connection(ours.detach())

    def receive(self, seconds: float) -> dict[str, Any] | Failure:
        """Its answer, or the failure to give one within the time."""
        deadline = time.monotonic() + seconds
        try:
            while not self.socket.poll(max(0.0, min(LOOK_SECONDS, deadline - time.monotonic()))):
                if self._ended() and not self.socket.poll(0):
                    return Failure("crash", f"its worker process died ({self.death()})")
                if time.monotonic() >= deadline:
                    return Failure("timeout", f"no result within {seconds:g} s")
            answer = json.loads(self.socket.recv_bytes(MAX_ANSWER_BYTES))
            return answer if isinstance(answer, dict) else _GARBLED
        except (OSError, EOFError):
            return Failure("crash", f"its worker process died ({self.death()})")
        except ValueError:
            return _GARBLED

    def death(self) -> str:
        """How the process ended, in words."""
        deadline = time.monotonic() + 1.0
        while (end := self._ended()) is None:
            if time.monotonic() >= deadline:
                return "it closed its socket"
            time.sleep(0.005)
        if end.si_code == os.CLD_EXITED:
            return f"exit status {end.si_status}"
        name = next((one.name for one in signal.Signals if one == end.si_status), f"signal {end.si_status}")
        return f"{name}, out of memory?" if name == "SIGKILL" else name

    def _ended(self) -> os.waitid_result | None:
        """How it ended, None while it runs. It is not reaped: its id, which names its group, must stay its own."""
        if self.process.returncode is not None:
            return None
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def kill(self) -> None:
        """End the process and all that it started in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)

    def bury(self) -> None:
        """Kill it, reap it, and close the socket: once, by the thread that owns it."""
        self.kill()
        self.process.wait()
        self.socket.close()
