from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Awaitable
from unittest import mock

import pytest

from rlctl.backends import calling
from rlctl.errors import BackendError
from tests.backends.clients import ActorHandle, Shapes, SyncClient

# Method, what inspect says of it, what rlctl says of it.
SHAPES = [
    ("plain", True, "async"),
    ("part", True, "async"),
    ("static", True, "async"),
    ("of_class", True, "async"),
    ("wrapped", False, "unknown"),
    ("wrapped_namelessly", False, "unknown"),
    ("callable_object", False, "unknown"),
    ("part_of_callable_object", False, "unknown"),
    ("expression", False, "unknown"),
    ("cached", False, "unknown"),
    ("streamed", False, "async generator"),
]


@pytest.mark.parametrize(("method", "flag", "style"), SHAPES)
def test_style_claims_no_more_of_a_method_than_can_be_known(method, flag, style):
    function = getattr(Shapes(), method)
    assert inspect.iscoroutinefunction(function) is flag
    assert calling.style(function) == style


@pytest.mark.parametrize(("method", "flag", "style"), SHAPES)
def test_style_is_the_same_for_what_stands_in_the_class(method, flag, style):
    assert calling.style(inspect.getattr_static(Shapes, method)) == style


@pytest.mark.parametrize("method", [method for method, _, _ in SHAPES if method != "streamed"])
def test_call_gets_the_answer_of_every_shape(method):
    assert asyncio.run(calling.call(Shapes(), method, 3)) == {"n": 3}


def test_async_generator_is_collected():
    assert asyncio.run(calling.call(Shapes(), "streamed", 3)) == [{"n": 3}]


def test_sync_generator_is_collected():
    assert asyncio.run(calling.call(SyncClient(), "chunks", 3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("method", "style"),
    [("generate", "sync"), ("decorated", "sync"), ("promise", "returns awaitable"), ("coroutine", "sync")],
)
def test_plain_functions_are_sync_unless_their_annotation_promises_an_awaitable(method, style):
    assert calling.style(getattr(SyncClient(), method)) == style
    assert asyncio.run(calling.call(SyncClient(), method, 3)) == {"n": 3}


def test_keyword_arguments_arrive():
    assert asyncio.run(calling.call(Shapes(), "wrapped", n=3)) == {"n": 3}


def test_arguments_called_client_and_method_arrive():
    class Client:
        def send(self, *, client, method):
            return client, method

    assert asyncio.run(calling.call(Client(), "send", client=1, method=2)) == (1, 2)


def test_promise_of_an_awaitable_that_is_not_kept_is_survived():
    class Client:
        def step(self) -> Awaitable[int]:
            return 3

    assert asyncio.run(calling.call(Client(), "step")) == 3


def test_compiled_functions_are_unknown_and_callable():
    assert calling.style("x".upper) == "unknown"
    assert asyncio.run(calling.call("x", "upper")) == "X"


def test_loop_keeps_beating_while_a_sync_method_sleeps():
    async def run():
        beats = 0
        task = asyncio.create_task(calling.call(SyncClient(), "sleep", 0.3))
        while not task.done():
            await asyncio.sleep(0.01)
            beats += 1
        return beats, await task

    beats, answer = asyncio.run(run())
    assert answer == "slept"
    assert beats >= 5  # 30 on an idle machine, 1 if the loop had been blocked


def test_coroutine_made_in_a_thread_is_awaited_on_the_loop():
    class Client:
        def where(self):
            made_in = threading.current_thread()

            async def tell():
                return made_in, threading.current_thread(), asyncio.get_running_loop()

            return tell()

    async def run():
        return *await calling.call(Client(), "where"), asyncio.get_running_loop()

    made_in, awaited_in, its_loop, our_loop = asyncio.run(run())
    assert made_in is not threading.main_thread()
    assert awaited_in is threading.main_thread()
    assert its_loop is our_loop


def test_call_works_in_one_loop_after_another():
    client = SyncClient()
    assert [asyncio.run(calling.call(client, "generate", n)) for n in (1, 2)] == [{"n": 1}, {"n": 2}]


def test_call_works_in_a_loop_of_another_thread():
    answers = []
    thread = threading.Thread(target=lambda: answers.append(asyncio.run(calling.call(Shapes(), "wrapped", 3))))
    thread.start()
    thread.join(timeout=10)
    assert answers == [{"n": 3}]


def test_what_the_method_raises_goes_through():
    with pytest.raises(ValueError, match="no such job"):
        asyncio.run(calling.call(SyncClient(), "fails"))


def test_stop_iteration_becomes_an_error_and_no_hang():
    with pytest.raises(RuntimeError, match="exhausted"):
        asyncio.run(asyncio.wait_for(calling.call(SyncClient(), "exhausted"), timeout=10))


def test_missing_method_is_a_backend_error():
    with pytest.raises(BackendError, match="SyncClient has no method 'step'"):
        asyncio.run(calling.call(SyncClient(), "step"))


def test_attribute_that_is_no_method_is_a_backend_error():
    with pytest.raises(BackendError, match="constant is not a method, it is 3"):
        asyncio.run(calling.call(SyncClient(), "constant"))


@pytest.mark.parametrize(
    "fake",
    [
        mock.AsyncMock(),
        mock.MagicMock(spec=SyncClient.generate),
        mock.MagicMock(),
        mock.create_autospec(SyncClient.generate),
        mock.create_autospec(Shapes).plain,
    ],
)
def test_mocks_are_told_apart_whatever_they_imitate(fake):
    assert calling.style(fake) == "mock"


def test_ray_actor_method_is_called_through_remote():
    handle = ActorHandle()
    assert calling.style(handle.generate) == "ray actor method"
    assert asyncio.run(calling.call(handle, "generate", 3)) == {"n": 3}


@pytest.mark.ray
@pytest.mark.slow
def test_real_ray_actor():
    pytest.importorskip("ray")
    # In a process of its own, as Ray leaves threads and signal handlers behind.
    code = """
import asyncio, ray
from rlctl.backends import calling

@ray.remote
class Actor:
    def sync(self, n): return {"n": n}
    async def coroutine(self, n): return {"n": n}
    def chunks(self, n):
        for item in range(n):
            yield item
    def fails(self): raise ValueError("no such job")

ray.init(num_cpus=1, include_dashboard=False, logging_level="error")
handle = Actor.remote()
assert calling.style(handle.sync) == "ray actor method"
for method in ("sync", "coroutine"):
    assert asyncio.run(calling.call(handle, method, 3)) == {"n": 3}
assert asyncio.run(calling.call(handle, "chunks", 3)) == [0, 1, 2]
try:
    asyncio.run(calling.call(handle, "fails"))
except ValueError as error:
    print("raised", "no such job" in str(error))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert "raised True" in result.stdout
