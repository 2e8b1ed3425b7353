"""Whose turn it is on shared devices: the calls that sampler and trainer get before a verb, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rlctl.backends.arctic.backend import ArcticBackend
from rlctl.backends.arctic.calls import ClientThread
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.backends.arctic.turns import Turns
from rlctl.errors import BackendError
from tests.arctic.test_colours import backend_with
from tests.backends.test_contract import run

ATTACHED = {"training_job_id": 1, "sampling_job_id": 2}
SLEEPS = {"sleep_training": True}


class Recording:
    """A client that does nothing; `calls` are (method, its only argument)."""

    def __init__(self, config: Any = None) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def method(*_: Any, **told: Any) -> Any:
            self.calls.append((name, next(iter(told.values()), None)))
            return {"status": "ok", "path": "there"}

        return method


def calls_of(work: Callable[[Turns], Awaitable[None]], **settings: Any) -> list[tuple[str, Any]]:
    client = Recording()

    async def do() -> None:
        thread = ClientThread(timeout_s=5)
        await thread.connect(lambda: client)
        try:
            await work(Turns(ArcticSettings(**settings), thread))
        finally:
            await thread.close(method=None, timeout_s=1)

    asyncio.run(do())
    return client.calls


def test_one_step_sleeps_the_sampler_while_the_trainer_works() -> None:
    async def step(turns: Turns) -> None:
        await turns.sampler()
        await turns.trainer()
        await turns.trainer()
        await turns.sync()
        await turns.sampler()

    assert calls_of(step) == [("sleep_inference", 1), ("sync_weights", False)]
    assert calls_of(step, colocate=False) == [("sync_weights", False)]
    assert calls_of(step, **SLEEPS) == [
        ("sleep_inference", 1), ("sleep_training", "non_lp"), ("sync_weights", False), ("sleep_training", "lp_params"),
    ]  # fmt: skip


def test_sampling_without_a_sync_wakes_weights_before_the_cache() -> None:
    async def score_and_sample(turns: Turns) -> None:
        await turns.trainer()
        await turns.sampler()
        await turns.trainer()

    wakes = [("wake_inference", ["weights"]), ("wake_inference", ["kv_cache"])]
    slept = ("sleep_inference", 1)
    assert calls_of(score_and_sample) == [slept, *wakes, slept]
    told = calls_of(score_and_sample, **SLEEPS)
    assert told == [slept, ("sleep_training", "all"), *wakes, slept, ("wake_training", None)]


def test_weights_are_read_from_a_trainer_that_is_awake() -> None:
    async def sync_twice(turns: Turns) -> None:
        await turns.sync()
        await turns.sync()

    synced = [("sleep_training", "non_lp"), ("sync_weights", False), ("sleep_training", "lp_params")]
    assert calls_of(sync_twice, **SLEEPS) == [*synced, ("sleep_inference", 1), ("wake_training", None), *synced]
    assert calls_of(sync_twice) == [("sync_weights", False)] * 2


def test_jobs_that_are_attached_to_may_be_asleep() -> None:
    wakes = [("wake_inference", ["weights"]), ("wake_inference", ["kv_cache"])]
    assert calls_of(Turns.sampler, **ATTACHED) == wakes
    assert calls_of(Turns.sampler, **ATTACHED, **SLEEPS) == [("sleep_training", "all"), *wakes]
    assert calls_of(Turns.trainer, **ATTACHED) == [("sleep_inference", 1), ("wake_training", None)]
    assert calls_of(Turns.sampler, **ATTACHED, colocate=False) == []


def test_a_checkpoint_is_saved_from_a_trainer_that_is_awake(arctic_job: Any, tmp_path: Any) -> None:
    clients: list[Recording] = []

    def make(config: Any) -> Recording:
        clients.append(Recording())
        return clients[-1]

    async def sync_and_save(backend: ArcticBackend) -> None:
        await backend.sync_weights()
        (tmp_path / "saved").mkdir()
        (tmp_path / "saved" / "latest").touch()
        await backend.save(tmp_path / "saved")

    run(backend_with(make, arctic_job, **SLEEPS), sync_and_save)
    assert [name for name, _ in clients[0].calls][-4:] == [
        "sleep_inference", "wake_training", "save_checkpoint", "shutdown",
    ]  # fmt: skip


@pytest.mark.parametrize("where", ["saved/hf", "elsewhere"])
def test_an_exported_model_lies_in_the_checkpoint_wherever_the_platform_put_it(
    where: str, arctic_job: Any, tmp_path: Any
) -> None:
    class Client(Recording):
        def save_checkpoint(self, **_: Any) -> Any:
            (tmp_path / where).mkdir(parents=True)
            (tmp_path / where / "model.safetensors").write_bytes(b"weights")
            return {"path": str(tmp_path / "saved"), "hf_path": str(tmp_path / where)}

    run(backend_with(Client, arctic_job), lambda backend: backend.save(tmp_path / "saved"))
    assert (tmp_path / "saved" / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("reply", [{"status": "failed"}, None])
def test_a_sync_that_did_not_say_ok_ends_the_run(reply: Any) -> None:
    class Client:
        def sync_weights(self, **_: Any) -> Any:
            return reply

    async def sync() -> None:
        thread = ClientThread(timeout_s=5)
        await thread.connect(Client)
        try:
            await Turns(ArcticSettings(), thread).sync()
        finally:
            await thread.close(method=None, timeout_s=1)

    with pytest.raises(BackendError, match="did not say ok"):
        asyncio.run(sync())
