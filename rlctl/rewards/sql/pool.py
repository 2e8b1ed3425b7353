"""Processes that execute queries, kept between queries and replaced when one had to be killed.

A query is stopped by the worker's own clock or, `GRACE_S` later, by killing the worker: `hex(zeroblob(...))` or a LIKE
that backtracks is one instruction, in which SQLite calls no handler. A worker that dies takes one query with it, which
is tried once more on a new one. Workers end with this process, however it ends (`worker.py`).
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.errors import RewardError

GRACE_S = 0.25
"""Between the worker's own deadline and its end by force."""
GRACE_FOR_ROWS_S = 5.0
"""The same for a gold query, whose rows are sent after its deadline was met."""

PACKAGE = Path(__file__).resolve().parents[2]
BOOT = """
import sys, types
for name, folder in (("rlctl", sys.argv[2]), ("rlctl.rewards", sys.argv[2] + "/rewards")):
    module = types.ModuleType(name); module.__path__ = [folder]; sys.modules[name] = module
from rlctl.rewards.sql.worker import main
main()
"""
"""Runs the worker without what `rlctl/rewards/__init__.py` imports."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query may take, and how many are executed at once."""

    workers: int
    timeout_s: float
    memory_mb: int
    max_rows: int
    max_result_mb: int


class WorkerGone(Exception):
    """The worker died or was killed; `late` when it was for taking too long."""

    def __init__(self, *, late: bool) -> None:
        super().__init__("killed at its deadline" if late else "the process died")
        self.late = late


Reply = dict[str, Any]


class Pool:
    """Up to `limits.workers` processes, started when first needed. Safe to use from many threads."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._slots = threading.BoundedSemaphore(limits.workers)
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._alive: set[_Process] = set()
        self._closings = 0
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _kill_all, self._alive, self._owner)
        atexit.register(self._end)

    def ask(self, request: Reply, *, timeout_s: float | None = None) -> Reply:
        """The worker's reply to one request (see `worker.py`), a failure of kind `timeout` or `crashed` included."""
        timeout_s = self.limits.timeout_s if timeout_s is None else timeout_s
        request = {**request, "timeout_s": timeout_s}
        grace_s = GRACE_S if "compare" in request else GRACE_FOR_ROWS_S
        with self._slots:
            opening = self._closings
            for _ in range(2):
                try:
                    return self._once(request, within_s=timeout_s + grace_s)
                except WorkerGone as gone:
                    if gone.late:
                        return {"ok": False, "kind": "timeout", "message": f"killed after {timeout_s:g} s"}
                if self._closings != opening:
                    return {"ok": False, "kind": "crashed", "message": "the pool was closed"}
        return {"ok": False, "kind": "crashed", "message": "the worker died, and so did the next"}

    def _once(self, request: Reply, *, within_s: float) -> Reply:
        process = self._take()
        try:
            reply = process.ask(request, within_s=within_s)
        except BaseException:
            self._drop(process)
            raise
        if reply.get("kind") == "memory":
            self._drop(process)
        else:
            with self._lock:
                self._idle.append(process)
        return reply

    def _take(self) -> _Process:
        """The process used last, whose databases are still open, or a new one."""
        with self._lock:
            if os.getpid() != self._owner:
                raise RuntimeError("a pool of SQL workers cannot be used after a fork")
            if self._idle:
                return self._idle.pop()
        process = _Process(self.limits)
        with self._lock:
            self._alive.add(process)
        return process

    def _drop(self, process: _Process) -> None:
        process.kill()
        with self._lock:
            self._alive.discard(process)

    @property
    def process_ids(self) -> list[int]:
        with self._lock:
            return [process.popen.pid for process in self._alive]

    def close(self) -> None:
        """End all workers, and with them the queries in flight; the next request starts new ones."""
        with self._lock:
            self._closings += 1
            idle, self._idle = self._idle, []
            busy = self._alive - set(idle)
            self._alive.difference_update(idle)
        for process in idle:
            process.kill()
        for process in busy:
            # Its pipes belong to the thread that waits for it, which finds them closed at the other end.
            process.popen.kill()


def _kill_all(processes: set[_Process], owner: int) -> None:
    if os.getpid() == owner:
        for process in list(processes):
            process.popen.kill()


class _Process:
    """One worker and its pipes."""

    def __init__(self, limits: Limits) -> None:
        options = {
            "parent": os.getpid(),
            "memory_mb": limits.memory_mb,
            "max_rows": limits.max_rows,
            "max_bytes": limits.max_result_mb * 2**20,
        }
        command = [sys.executable, "-I", "-S", "-c", BOOT, json.dumps(options), str(PACKAGE)]
        try:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                # One arena: by default each thread's malloc reserves 64 MiB of the address space that is limited.
                env={"MALLOC_ARENA_MAX": "1"},
                # Ctrl-C is for the run, which then ends its workers in order.
                start_new_session=True,
            )
        except OSError as error:
            raise RewardError(f"no process for SQL can be started: {error}.") from error
        self.known_golds: set[str] = set()

    def ask(self, request: Reply, *, within_s: float) -> Reply:
        """Raises WorkerGone; the process must then be dropped."""
        deadline = time.monotonic() + within_s
        reply = self._exchange(self._lean(request), deadline)
        if reply.get("kind") == "unknown gold":
            reply = self._exchange(request, deadline)
        return reply

    def _lean(self, request: Reply) -> Reply:
        """The request without a gold payload that this worker was sent before."""
        compare = request.get("compare")
        if compare is None:
            return request
        if compare["gold"] not in self.known_golds:
            self.known_golds.add(compare["gold"])
            return request
        return {**request, "compare": {key: value for key, value in compare.items() if key != "payload"}}

    def _exchange(self, request: Reply, deadline: float) -> Reply:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        try:
            _write_all(self.popen.stdin.fileno(), json.dumps(request).encode() + b"\n")
            return json.loads(_read_line(self.popen.stdout.fileno(), deadline))  # type: ignore[no-any-return]
        except (OSError, ValueError) as error:
            raise WorkerGone(late=False) from error

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_line(descriptor: int, deadline: float) -> bytes:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    parts: list[bytes] = []
    while not (parts and parts[-1].endswith(b"\n")):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise WorkerGone(late=True)
        part = os.read(descriptor, 1 << 20)
        if not part:
            raise WorkerGone(late=False)
        parts.append(part)
    return b"".join(parts)
