"""Rewards by name, and scoring a batch: weights once, failures never silent, nothing stuck."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import textwrap
import threading
from fractions import Fraction

import numpy as np
import pytest

from rlctl.errors import ConfigError, RewardError
from rlctl.rewards import RewardResult, RewardSet, Scored, load_rewards, score
from rlctl.rewards.base import NamedReward
from rlctl.types import Problem

FOUR = Problem("q1", "2 + 2?", "#### 4")


def rewards(*functions, weights=None, timeout_s=30.0):
    weights = weights or [1.0] * len(functions)
    named = tuple(NamedReward(f"r{i}", f, w) for i, (f, w) in enumerate(zip(functions, weights, strict=True)))
    return RewardSet(named, timeout_s)


def scores(reward_set, *completions, problem=FOUR) -> list[Scored]:
    return asyncio.run(score(reward_set, [(problem, completion) for completion in completions]))


# What a name becomes


def test_gsm8k_scores_with_form_and_reason():
    (scored,) = scores(load_rewards(["gsm8k"]), "so #### 4")
    assert scored == Scored(1.0, {"gsm8k": 1.0}, "hash: 4, gold 4")


def test_option_reaches_the_built_in():
    lenient = load_rewards(["gsm8k"], options={"gsm8k": {"allow_last_number": True}})
    assert [scores(one, "so 4")[0].reward for one in (load_rewards(["gsm8k"]), lenient)] == [0.0, 1.0]


def test_function_is_found_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "judge_here.py").write_text("def length(problem, completion):\n    return len(completion)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert scores(load_rewards(["judge_here:length"], [0.5]), "abc")[0].reward == 1.5


@pytest.fixture
def judges(tmp_path, monkeypatch):
    (tmp_path / "judges_there.py").write_text(
        textwrap.dedent("""
        NUMBER = 3
        class Judge:
            def __call__(self, problem, completion):
                return 1.0
            def grade(self, problem, completion):
                return 1.0
        judge = Judge()
        def one_argument(completion):
            return 1.0
        """)
    )
    (tmp_path / "judges_broken.py").write_text("import no_such_dependency\n")
    (tmp_path / "judges_raising.py").write_text("raise ValueError('no key')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize("name", ["judges_there:judge", "judges_there:judge.grade"])
@pytest.mark.usefixtures("judges")
def test_object_and_method_are_callables_too(name):
    assert scores(load_rewards([name]), "x")[0].reward == 1.0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gsm8", "reward 'gsm8' is unknown; the nearest is 'gsm8k'"),
        ("zzz", "reward 'zzz' is unknown."),
        ("judges_there:", "'judges_there:' is unknown"),
        ("no_such_module:f", "there is no module 'no_such_module'"),
        ("judges_there:NUMBER", "is a int, not a function"),
        ("judges_there:Judge", "is a class, not a function"),
        ("judges_there:juge", "the nearest is 'judge'"),
        ("judges_there:one_argument", "is called with (problem, completion)"),
        ("judges_broken:f", "judges_broken needs 'no_such_dependency'"),
        ("judges_raising:f", "importing judges_raising raised ValueError: no key"),
    ],
)
@pytest.mark.usefixtures("judges")
def test_unusable_name_is_a_config_error_that_quotes_it(name, says):
    with pytest.raises(ConfigError) as caught:
        load_rewards([name])
    assert says in str(caught.value)
    assert repr(name) in str(caught.value)


def test_all_complaints_come_at_once():
    with pytest.raises(ConfigError) as caught:
        load_rewards(["gsm8k", "gsm8k", "nope"], [1.0, float("nan")])
    said = str(caught.value)
    assert "2 values for 3 functions" in said
    assert "named twice" in said
    assert "nan is not a finite number" in said


def test_gold_complaint_only_for_rewards_that_need_a_number():
    problem = Problem("q", "Why?", "because")
    assert load_rewards(["gsm8k"]).gold_complaint(problem) == "gold answer 'because' is not a number"
    assert load_rewards(["gsm8k"]).gold_complaint(FOUR) is None
    assert rewards(lambda problem, completion: 1.0).gold_complaint(problem) is None


# What is called, and with what


def test_051_reward_is_given_the_completion_and_no_prompt():
    problem = Problem("q", "finish with #### number, e.g. #### 5", "5")
    seen = []

    def spy(problem, completion):
        seen.append(completion)
        return 0.0

    scores(rewards(spy), "I do not know", problem=problem)
    assert seen == ["I do not know"]
    assert scores(load_rewards(["gsm8k"]), "I do not know", problem=problem)[0].reward == 0.0


def test_070_weighted_sum_is_taken_once():
    both = rewards(lambda p, c: 1.0, lambda p, c: 0.5, weights=[1.0, 1.0])
    assert scores(both, "x")[0] == Scored(1.5, {"r0": 1.0, "r1": 0.5})
    weighed = rewards(lambda p, c: 1.0, lambda p, c: 0.5, weights=[2.0, -1.0])
    assert scores(weighed, "x")[0].reward == 1.5


def test_results_keep_the_order_of_the_items():
    async def slow_first(problem, completion):
        await asyncio.sleep(0.02 if completion == "0" else 0)
        return float(completion)

    assert [one.reward for one in scores(rewards(slow_first), *"0123")] == [0.0, 1.0, 2.0, 3.0]


async def _plain(problem, completion):
    return 1.0


class _AsyncObject:
    async def __call__(self, problem, completion):
        return 1.0


@pytest.mark.parametrize(
    "function",
    [
        _plain,
        functools.partial(_plain),
        _AsyncObject(),
        functools.partial(_AsyncObject()),
        lambda problem, completion: _plain(problem, completion),
        lambda problem, completion: 1.0,
    ],
    ids=["async def", "partial", "async object", "partial of object", "lambda giving a coroutine", "sync"],
)
def test_111_whatever_gives_an_awaitable_is_awaited(function):
    assert scores(rewards(function), "x")[0].reward == 1.0


@pytest.mark.parametrize(
    "value", [True, 1, 1.0, np.float32(1), np.int64(1), Fraction(1), RewardResult(1.0), RewardResult(np.float32(1))]
)
def test_every_kind_of_real_number_is_a_score(value):
    (scored,) = scores(rewards(lambda p, c: value), "x")
    assert (scored.reward, type(scored.reward)) == (1.0, float)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ([1.0], "list of 1"),
        ([0.0] * 7, "list of 7"),
        (None, "None"),
        ("1.0", "str of 3"),
        (np.ones(1), "numpy.ndarray"),
        (np.ones(()), "numpy.ndarray"),
        (1j, "complex"),
        (RewardResult(None), "None"),
    ],
)
def test_006_value_that_is_no_number_ends_the_run(value, got):
    with pytest.raises(RewardError) as caught:
        scores(rewards(lambda p, c: value), *"12345678")
    assert str(caught.value) == f"reward r0 must return one number for one completion, got {got}."


def test_async_generator_is_no_number():
    async def stream(problem, completion):
        yield 1.0

    with pytest.raises(RewardError, match="got async_generator"):
        scores(rewards(stream), "x")


# Failures


def _fails_on_bad(problem, completion):
    if completion == "bad":
        raise KeyError("verdict")
    return 1.0


def test_call_that_raises_leaves_no_reward_and_says_why():
    good, bad = scores(rewards(_fails_on_bad), "good", "bad")
    assert (good.reward, good.failure) == (1.0, None)
    assert (bad.reward, bad.scores) == (None, {})
    assert bad.failure.startswith("r0 on q1: KeyError: 'verdict' (test_scoring.py, line ")


def test_other_rewards_of_a_failed_completion_keep_their_scores():
    _, bad = scores(rewards(_fails_on_bad, lambda p, c: 0.5), "good", "bad")
    assert (bad.reward, bad.scores) == (None, {"r1": 0.5})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
def test_value_that_is_not_finite_is_a_failure(value):
    _, bad = scores(rewards(lambda p, c: value if c == "bad" else 1.0), "good", "bad")
    assert bad.reward is None
    assert "returned" in bad.failure


@pytest.mark.parametrize("asynchronous", [False, True])
def test_code_that_exits_does_not_end_the_run(asynchronous):
    def leave(problem, completion):
        if completion == "bad":
            sys.exit(3)
        return 1.0

    async def leave_async(problem, completion):
        return leave(problem, completion)

    _, bad = scores(rewards(leave_async if asynchronous else leave), "good", "bad")
    assert "SystemExit: 3" in bad.failure


def test_every_call_failing_ends_the_run_with_the_first_failure():
    with pytest.raises(RewardError, match="failed on all 2 completions; the first: r0 on q1: KeyError: 'verdict'"):
        scores(rewards(_fails_on_bad), "bad", "bad")


def test_nothing_to_score_is_no_failure():
    assert scores(rewards(_fails_on_bad)) == []


def test_keyboard_interrupt_passes_through():
    def interrupted(problem, completion):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scores(rewards(interrupted), "x")


def test_cancelling_ends_the_calls():
    started, cancelled = [], []

    async def waits(problem, completion):
        started.append(completion)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(completion)
            raise

    async def run():
        task = asyncio.create_task(score(rewards(waits), [(FOUR, "a"), (FOUR, "b")]))
        await until(lambda: len(started) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # On the rewards' own loop, so a moment later.
        await until(lambda: len(cancelled) == 2)

    async def until(holds):
        for _ in range(1000):
            if holds():
                return
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert sorted(cancelled) == ["a", "b"]


# Time-outs


@pytest.fixture
def gate():
    """Holds calls until the test is over, so that no thread outlives it."""
    event = threading.Event()
    yield event
    event.set()
    for thread in threading.enumerate():
        if thread.name.startswith("reward "):
            thread.join()


def test_sync_call_that_hangs_is_a_failure_and_the_others_count(gate):
    def hangs(problem, completion):
        if completion == "bad":
            gate.wait()
        return 1.0

    good, bad = scores(rewards(hangs, timeout_s=1.5), "good", "bad")
    assert good.reward == 1.0
    assert bad.failure == "r0 on q1: no result within 1.5 s"


def test_async_call_that_hangs_is_a_failure():
    async def hangs(problem, completion):
        if completion == "bad":
            await asyncio.Event().wait()
        return 1.0

    _, bad = scores(rewards(hangs, timeout_s=0.2), "good", "bad")
    assert bad.failure == "r0 on q1: no result within 0.2 s"


def test_time_out_works_off_the_main_thread(gate):
    found = []

    def hangs(problem, completion):
        return 1.0 if completion == "good" else gate.wait()

    thread = threading.Thread(
        target=lambda: found.extend(scores(rewards(hangs, timeout_s=1.5), "good", "bad")), daemon=True
    )
    thread.start()
    thread.join()
    assert [one.reward for one in found] == [1.0, None]


def test_too_many_stuck_threads_end_the_run(gate):
    with pytest.raises(RewardError, match=r"reward r0: \d+ calls still run after their time-out"):
        scores(rewards(lambda p, c: gate.wait(), timeout_s=0.05), *(["x"] * 200))


def test_threads_are_bounded():
    running, most = 0, 0
    lock = threading.Lock()

    def counts(problem, completion):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.005)
        with lock:
            running -= 1
        return 1.0

    scores(rewards(counts), *(["x"] * 300))
    assert 1 < most <= 64


def test_stuck_thread_does_not_hold_the_process():
    program = textwrap.dedent("""
        import asyncio, threading
        from rlctl.rewards.base import NamedReward, RewardSet
        from rlctl.rewards.scoring import score
        from rlctl.types import Problem
        hang = lambda p, c: threading.Event().wait() if c else 1.0
        items = [(Problem("q", "?", "1"), ""), (Problem("q", "?", "1"), "bad")]
        print([s.reward for s in asyncio.run(score(RewardSet((NamedReward("r", hang),), 0.2), items))])
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("[1.0, None]\n", "", 0)


def test_built_in_takes_no_thread(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread was started"))
    assert scores(load_rewards(["gsm8k"]), "#### 4")[0].reward == 1.0


def test_scoring_imports_nothing_heavy():
    program = "import sys, rlctl.rewards; print({'torch', 'pydantic', 'datasets', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_an_async_call_that_swallows_its_cancellation_holds_up_neither_run_nor_process(tmp_path):
    (tmp_path / "stubborn.py").write_text(
        "import asyncio\n"
        "async def reward(problem, completion):\n"
        "    while True:\n"
        "        try:\n"
        "            await asyncio.sleep(60)\n"
        "        except asyncio.CancelledError:\n"
        "            pass\n"
    )
    code = (
        "import asyncio\n"
        "from rlctl.errors import RewardError\n"
        "from rlctl.rewards import load_rewards, score\n"
        "from rlctl.types import Problem\n"
        "rewards = load_rewards(['stubborn:reward'], timeout_s=0.1)\n"
        "try:\n"
        "    asyncio.run(score(rewards, [(Problem('1', 'q', 'a'), 'x')]))\n"
        "except RewardError as error:\n"
        "    print(error.message)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert "no result within 0.1 s" in run.stdout


def test_numpys_bool_is_a_number_and_a_huge_one_is_not():
    import numpy as np

    (yes,) = scored(lambda problem, completion: np.bool_(True))
    assert yes.reward == 1.0
    with pytest.raises(RewardError, match="no usable number"):
        scored(lambda problem, completion: 1e308)


def scored(function):
    return asyncio.run(score(rewards(function), [(FOUR, "a")]))
