"""Rewards in worker processes: what hangs, crashes or eats memory costs its own call, and nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from pathlib import Path

import pytest

from rlctl.errors import RewardError
from rlctl.rewards import Scored, load_rewards, score
from rlctl.rewards.workers import WorkerPool
from rlctl.types import Problem

FOUR = Problem("q1", "2 + 2?", "#### 4")

REWARDS = """
import asyncio, ctypes, os, re, signal, subprocess, sys, threading, time
from rlctl.rewards import RewardResult

calls = 0

def length(problem, completion):
    return len(completion)

def count(problem, completion):
    global calls
    calls += 1
    return calls

def pid(problem, completion):
    return os.getpid()

def hashed(problem, completion):
    return hash(completion) % 1000

def told(problem, completion):
    return RewardResult(0.5, note=problem.id, form="box", parsed=True)

async def later(problem, completion):
    return os.getpid()

def gives_coroutine(problem, completion):
    return later(problem, completion)

def modules(problem, completion):
    return RewardResult(float("torch" in sys.modules), note=sys.modules["__main__"].__dict__.get("__file__", "none"))

def text(problem, completion):
    return completion

def grandchild(problem, completion):
    if not completion:
        return 1.0
    child = subprocess.Popen(["sleep", "600"])
    with open(completion, "w") as file:
        file.write(str(child.pid))
    time.sleep(600)

def odd(problem, completion):
    what, _, _ = completion.partition(" ")
    if what == "sleep":
        time.sleep(600)
    if what == "spin":
        re.match(r"(a+)+$", "a" * 64 + "b")
    if what == "segfault":
        ctypes.string_at(0)
    if what == "exit":
        os._exit(3)
    if what == "sysexit":
        sys.exit(3)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raise":
        raise KeyError("verdict")
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "memory":
        bytearray(3 << 30)
    if what == "nan":
        return float("nan")
    if what == "huge":
        return 10**400
    if what == "recurse":
        return odd(problem, completion)
    if what == "close":
        os.closerange(3, 100)
    if what == "fork" and os.fork() == 0:
        time.sleep(600)
    if what == "fork":
        os._exit(5)
    if what == "forge":
        from multiprocessing.connection import Connection
        Connection(int(sys.argv[1])).send_bytes(b'{"call": 1, "result": [9.0, "", "", null], "seconds": 0}')
        os._exit(0)
    if what == "thread":
        threading.Thread(target=lambda: (time.sleep(0.3), os._exit(7))).start()
    return 1.0
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "worker_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def make(folder):
    """Rewards by their names in the module above, in a pool that is closed in the end."""
    pools = []

    def make(*names, size=2, timeout_s=20.0, memory_gb=1.0):
        pools.append(WorkerPool(size, memory_gb=memory_gb))
        full = [f"worker_rewards:{name}" for name in names]
        return load_rewards(full, timeout_s=timeout_s, workers="process", pool=pools[-1])

    yield make
    for pool in pools:
        pool.close()


def scores(reward_set, *completions) -> list[Scored]:
    return asyncio.run(score(reward_set, [(FOUR, completion) for completion in completions]))


def test_scores_come_one_a_completion_in_order(make):
    texts = ["x" * n for n in range(200)]
    assert [one.reward for one in scores(make("length"), *texts)] == list(range(200))


def test_calls_are_made_in_other_processes_that_stay(make):
    reward_set = make("pid")
    first = {one.reward for one in scores(reward_set, *["x"] * 20)}
    second = {one.reward for one in scores(reward_set, *["x"] * 20)}
    assert os.getpid() not in first | second
    assert len(first | second) <= 2


def test_a_reward_is_the_same_function_in_every_worker(make):
    assert len({one.reward for one in scores(make("hashed"), *["the same text"] * 40)}) == 1


def test_a_result_comes_back_whole(make):
    (scored,) = scores(make("told"), "x")
    assert scored == Scored(0.5, {"worker_rewards:told": 0.5}, "box: q1")


def test_a_plain_function_that_gives_a_coroutine_is_awaited_in_the_worker(make):
    assert scores(make("gives_coroutine"), "x")[0].reward != os.getpid()


def test_an_async_reward_stays_in_this_process(make):
    assert scores(make("later"), "x")[0].reward == os.getpid()


def test_a_worker_holds_neither_torch_nor_the_main_module(make):
    import torch  # noqa: F401  # so that it is loaded here

    (scored,) = scores(make("modules"), "x")
    assert (scored.reward, scored.note) == (0.0, "none")


@pytest.mark.parametrize("text", ["a" * 3_000_000, "\ud800 \x00 \U0001f600", ""])
def test_any_text_reaches_the_worker(make, text):
    assert scores(make("length"), text)[0].reward == len(text)


def test_a_value_that_is_no_number_ends_the_run(make):
    with pytest.raises(RewardError, match="text must return one number for one completion, got str of 1"):
        scores(make("text"), "x")


@pytest.mark.parametrize(
    ("what", "kind", "says"),
    [
        ("sleep", "timeout", "no result within 1 s"),
        ("spin", "timeout", "no result within 1 s"),
        ("segfault", "crash", "its worker process died (SIGSEGV)"),
        ("exit", "crash", "its worker process died (exit status 3)"),
        ("kill", "crash", "its worker process died (SIGKILL, out of memory?)"),
        ("fork", "crash", "its worker process died (exit status 5)"),
        ("close", "crash", "its worker process died"),
        ("sysexit", "exception", "SystemExit: 3 (worker_rewards.py, line"),
        ("raise", "exception", "KeyError: 'verdict' (worker_rewards.py, line"),
        ("interrupt", "exception", "KeyboardInterrupt"),
        ("recurse", "exception", "RecursionError"),
        ("memory", "exception", "MemoryError:  (worker_rewards.py, line"),
        ("nan", "not_finite", "returned nan, which is no usable number"),
        ("huge", "not_finite", "returned inf, which is no usable number"),
    ],
)
def test_a_call_that_fails_costs_itself_alone(make, what, kind, says):
    reward_set = make("odd", timeout_s=1.0)
    scores(reward_set, "warm", "warm")
    results = scores(reward_set, "good", f"{what} 1", "good", f"{what} 2", "good", "good")
    assert [one.reward for one in results] == [1.0, None, 1.0, None, 1.0, 1.0]
    assert [one.failures for one in results[1:4:2]] == [(kind,), (kind,)]
    assert says in results[1].failure


def test_a_function_that_no_worker_can_import_is_told(monkeypatch):
    module = types.ModuleType("made_here")
    module.reward = lambda problem, completion: 1.0
    monkeypatch.setitem(sys.modules, "made_here", module)
    pool = WorkerPool(1, memory_gb=1.0)
    with pytest.raises(
        RewardError, match=r"in a worker: .*there is no module 'made_here'.*reward.workers = \"thread\""
    ):
        scores(load_rewards(["made_here:reward"], workers="process", pool=pool), "x")
    pool.close()


def test_an_answer_that_belongs_to_another_call_is_none(make):
    results = scores(make("odd", size=1), "good", "good", "forge", "good")
    assert [one.reward for one in results] == [1.0, 1.0, None, 1.0]
    assert "something else than an answer" in results[2].failure


def test_a_reward_that_cannot_be_made_in_workers_is_not_tried_for_every_call(folder, monkeypatch):
    (folder / "slow_import.py").write_text(
        "import sys, time\nif 'pytest' not in sys.modules:\n    time.sleep(1)\n    raise OSError('no licence')\n"
        "def reward(problem, completion):\n    return 1.0\n"
    )
    pool = WorkerPool(2, memory_gb=1.0)
    start = time.monotonic()
    with pytest.raises(RewardError, match=r"in a worker: .*importing slow_import raised OSError: no licence"):
        scores(load_rewards(["slow_import:reward"], workers="process", pool=pool), *["x"] * 100)
    pool.close()
    assert time.monotonic() - start < 40.0


def test_memory_limit_is_named(make):
    _, bad = scores(make("odd", memory_gb=0.5), "good", "memory")
    assert "reward.worker_memory_gb = 0.5" in bad.failure


def test_a_call_after_one_that_filled_the_memory_gets_a_fresh_worker(make):
    reward_set = make("odd", "count", size=1)
    results = scores(reward_set, "good", "memory", "good")
    assert [one.scores.get("worker_rewards:count") for one in results] == [1.0, 2.0, 3.0]
    assert results[2].reward == 4.0


def test_a_worker_that_dies_between_calls_costs_no_call(make):
    reward_set = make("odd", size=1)
    assert scores(reward_set, "thread")[0].reward == 1.0
    time.sleep(0.8)
    assert scores(reward_set, "good")[0].reward == 1.0


def test_hangs_are_waited_for_side_by_side(make):
    reward_set = make("odd", timeout_s=2.5, size=4)
    scores(reward_set, *["warm"] * 8)
    start = time.monotonic()
    results = scores(reward_set, *["sleep"] * 4, "good")
    # One after the other they would take ten seconds.
    assert time.monotonic() - start < 9.0
    assert [one.reward for one in results] == [None] * 4 + [1.0]


def test_a_reward_that_hangs_on_everything_is_given_up_in_time(make):
    start = time.monotonic()
    with pytest.raises(RewardError, match=r"failed on all 300 completions; the first: .*no result within 0.05 s"):
        scores(make("odd", timeout_s=0.05, size=2), *["sleep"] * 300)
    assert time.monotonic() - start < 30.0


def test_what_a_reward_has_started_ends_with_its_deadline(make, folder):
    good, bad = scores(make("grandchild", timeout_s=1.0), "", str(folder / "pid"))
    assert good.reward == 1.0
    assert bad.failures == ("timeout",)
    assert gone(int((folder / "pid").read_text()))


def test_works_from_any_thread_and_loop(make):
    reward_set = make("length")
    found = []
    threads = [threading.Thread(target=lambda: found.extend(scores(reward_set, "ab", "c"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.reward for one in found) == [1.0] * 4 + [2.0] * 4


def test_closing_ends_the_processes_and_a_later_call_starts_them_again(make):
    reward_set = make("pid")
    first = int(scores(reward_set, "x")[0].reward)
    reward_set.close()
    reward_set.close()
    assert gone(first)
    assert int(scores(reward_set, "x")[0].reward) != first


def test_closing_ends_a_call_that_is_running(make):
    reward_set = make("odd", timeout_s=600.0)

    async def run() -> None:
        task = asyncio.create_task(score(reward_set, [(FOUR, "sleep"), (FOUR, "sleep")]))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    start = time.monotonic()
    asyncio.run(run())
    reward_set.close()
    assert time.monotonic() - start < 60.0  # it sleeps for 600


# The end of the run


PROGRAM = """
import asyncio, contextlib, os, sys, threading
sys.path.insert(0, sys.argv[1])
from rlctl.rewards import load_rewards, score
from rlctl.rewards.workers import WorkerPool
from rlctl.types import Problem

reward_set = load_rewards(["worker_rewards:pid"], workers="process", pool=WorkerPool(2, memory_gb=1.0))
items = [(Problem("q", "?", "1"), "x")] * 8
print(*{int(one.reward) for one in asyncio.run(score(reward_set, items))}, flush=True)
busy = load_rewards(["worker_rewards:odd"], workers="process", pool=reward_set.pool, timeout_s=600)
if sys.argv[2] != "idle":
    def work():
        with contextlib.suppress(Exception):  # The calls end with the pool.
            asyncio.run(score(busy, [(items[0][0], sys.argv[2])] * 2))
    threading.Thread(target=work, daemon=True).start()
    threading.Event().wait(1.0)
closed = threading.Thread(target=os.read, args=(0, 1), daemon=True)
closed.start()
try:
    print("ready", flush=True)
    while closed.is_alive():
        # A signal that came right before a read of this thread would be seen when that ends, and it never would.
        closed.join(0.1)
except KeyboardInterrupt:
    scored = asyncio.run(score(load_rewards(["worker_rewards:length"], workers="process", pool=reward_set.pool), items))
    print(scored[0].reward)
"""


@pytest.fixture
def run(folder):
    """A process of its own with a pool, whose calls hang as told: (process, ids of its workers)."""
    started = []

    def run(what: str) -> tuple[subprocess.Popen, list[int]]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), what],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert process.stdout.readline() == "ready\n"
        return process, pids

    yield run
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.parametrize("what", ["idle", "sleep", "spin"])
def test_nothing_outlives_a_run_that_is_killed(run, what):
    process, pids = run(what)
    workers = set(pids) | children(process.pid)
    assert workers
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert all(gone(pid) for pid in workers)


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.parametrize("what", ["idle", "spin"])
def test_nothing_outlives_a_run_that_ends(run, what):
    process, pids = run(what)
    workers = set(pids) | children(process.pid)
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    assert all(gone(pid) for pid in workers)
    assert process.stderr.read() == ""


def test_ctrl_c_reaches_the_run_and_not_its_workers(run):
    process, _ = run("idle")
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "1.0\n"
    assert process.wait(timeout=30) == 0
    assert process.stderr.read() == ""


def children(parent: int) -> set[int]:
    return {int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()} | {
        int(pid) for task in Path(f"/proc/{parent}/task").iterdir() for pid in (task / "children").read_text().split()
    }


def gone(pid: int) -> bool:
    """Whether the process ends within some seconds; one that only waits to be reaped has ended."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False
