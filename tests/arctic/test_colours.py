"""The same run with clients of every colour: what the platform is asked, and that nothing it does stalls the loop."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rlctl.backends.arctic.backend import ArcticBackend
from rlctl.backends.arctic.connecting import unified_config
from rlctl.backends.arctic.installed import Release
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.errors import BackendError, BackendUnavailable
from rlctl.types import TrainRow
from tests.arctic import colours
from tests.arctic.platform import Platform
from tests.backends.test_contract import LOSS, num_tokens, run, sampled

RELEASE = Release(Path(), "of a test", has_unified=True, has_safe_codec=True)
COLOURS = [colours.AllSync, colours.AllAsync, colours.ReturnsAwaitables, colours.Mixed]


def backend_with(client: Any, job: Any, **settings: Any) -> ArcticBackend:
    """A backend whose client is made by `client(config)`."""
    chosen = ArcticSettings(attn_implementation="eager", **settings)

    def connect(settings: ArcticSettings, job: Any, *, model: str) -> Any:
        return lambda: client(unified_config(settings, job, model=model)), "unified", RELEASE

    return ArcticBackend(chosen, job, connect=connect)


@pytest.mark.slow
@pytest.mark.parametrize("colour", COLOURS)
def test_a_step_is_right_with_a_client_of_every_colour(
    colour: type[colours.Core], arctic_job: Any, platform: Platform, tmp_path: Path
) -> None:
    clients: list[colours.Core] = []

    def make(config: Any) -> colours.Core:
        clients.append(colour(platform, config))
        return clients[-1]

    async def work(backend: ArcticBackend) -> Any:
        rows = await sampled(backend, 1, 2)
        first = await backend.forward_backward(rows, loss=LOSS, loss_denominator=num_tokens(rows))
        step = await backend.optim_step(1e-3)
        sync = await backend.sync_weights()
        await backend.save(tmp_path / "saved")
        again = await backend.log_probs(rows)
        await backend.load(tmp_path / "saved")
        return first, step, sync, again

    job = replace(arctic_job, needs_reference=False)
    first, step, sync, again = run(backend_with(make, job, checkpoint_path=str(tmp_path)), work)
    methods = [method for method, _, _ in clients[0].calls]
    assert methods == [
        "generate", "sleep_inference", "fwd_no_grad", "fwd_bwd", "step", "sync_weights", "save_checkpoint",
        "sleep_inference", "fwd_no_grad", "load_checkpoint", "sync_weights", "shutdown",
    ]  # fmt: skip
    asked = clients[0].calls[0][2]
    assert len(asked["prompts"]) == 8
    assert len(set(asked["prompts"])) == 2  # the platform gives one completion a prompt, so each is repeated
    assert step.stepped
    assert step.grad_norm > 0
    assert (sync.version, sync.names_sent) == (1, None)
    assert first.tokens == sum(len(values) for values in again)
    assert (tmp_path / "saved" / "model.safetensors").is_file()
    assert platform.jobs == {}


def test_the_loop_stays_responsive_while_an_async_method_blocks(arctic_job: Any) -> None:
    class Blocks:
        async def step(self, learning_rate: float | None = None) -> dict:  # as the legacy HTTP client: no await in it
            time.sleep(0.5)
            return {"metrics": {"last_lr": 1.0, "grad_norm": 1.0}}

        def shutdown(self) -> None:
            """Nothing to end."""

    async def work(backend: ArcticBackend) -> float:
        backend._waits_for_step = True
        task = asyncio.ensure_future(backend.optim_step(1.0))
        stall, last = 0.0, time.perf_counter()
        while not task.done():
            await asyncio.sleep(0.01)
            stall, last = max(stall, time.perf_counter() - last), time.perf_counter()
        await task
        return stall

    assert run(backend_with(lambda config: Blocks(), arctic_job), work) < 0.4


@pytest.mark.parametrize("shutdown", ["sync", "async"])
def test_close_is_safe_twice_and_outside_of_the_loop_that_started(shutdown: str, arctic_job: Any) -> None:
    class Client:
        num_shutdowns = 0

    class Sync(Client):
        def shutdown(self) -> None:
            Client.num_shutdowns += 1

    class Async(Client):
        async def shutdown(self) -> None:
            Client.num_shutdowns += 1

    backend = backend_with(lambda config: Sync() if shutdown == "sync" else Async(), arctic_job)
    asyncio.run(backend.close())  # before it was started
    backend = backend_with(lambda config: Sync() if shutdown == "sync" else Async(), arctic_job)
    asyncio.run(backend.start())
    asyncio.run(backend.close())
    asyncio.run(backend.close())
    assert Client.num_shutdowns == 1
    with pytest.raises(BackendError, match="not started, or is closed"):
        asyncio.run(backend.sync_weights())


def test_a_start_that_fails_says_why_and_can_be_closed(arctic_job: Any) -> None:
    def refuse(config: Any) -> Any:
        raise RuntimeError('/initialize answered 400: {"detail":"No sampling GPUs configured"}')

    backend = backend_with(refuse, arctic_job)

    async def start_and_close() -> None:
        try:
            await backend.start()
        finally:
            await backend.close()

    with pytest.raises(BackendError, match="No sampling GPUs configured"):
        asyncio.run(start_and_close())


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), TimeoutError("not healthy within 300 s")])
def test_a_server_that_is_not_there_is_unavailable(error: Exception, arctic_job: Any) -> None:
    def fail(config: Any) -> Any:
        raise RuntimeError("initialize failed") from error

    with pytest.raises(BackendUnavailable, match="the platform's client failed: RuntimeError: initialize failed"):
        run(backend_with(fail, arctic_job), lambda b: b.sync_weights())


def test_a_start_that_is_interrupted_leaves_no_jobs(arctic_job: Any) -> None:
    jobs: list[str] = []

    class Slow:
        def __init__(self, config: Any) -> None:
            time.sleep(0.3)
            jobs.append("training")

        def shutdown(self) -> None:
            jobs[:] = ["destroyed"]

    backend = backend_with(Slow, arctic_job)

    async def interrupt() -> None:
        task = asyncio.ensure_future(backend.start())
        while backend._thread._connecting is None:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await backend.close()

    asyncio.run(interrupt())
    assert jobs == ["destroyed"]


def test_a_start_that_cannot_be_ended_is_told(arctic_job: Any, caplog: pytest.LogCaptureFixture) -> None:
    free = threading.Event()
    backend = backend_with(lambda config: free.wait(20), arctic_job, shutdown_timeout_s=0.1)

    async def interrupt() -> None:
        task = asyncio.ensure_future(backend.start())
        while backend._thread._connecting is None:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await backend.close()

    asyncio.run(interrupt())
    free.set()
    assert "the jobs may still run: the platform's client was still being made after 0.1 s" in caplog.text


def canned(**replies: Any) -> Callable[[Any], Any]:
    """A client that answers each method with a fixed reply, or raises it."""

    class Client:
        def shutdown(self) -> None:
            """Nothing to end."""

    def method(reply: Any) -> Any:
        def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(reply, Exception):
                raise reply
            return reply

        return answer

    for name, reply in {"sleep_inference": {}, **replies}.items():
        setattr(Client, name, method(reply))
    return lambda config: Client()


ITEM = {"token_ids": [65, 256], "finish_reason": "stop", "prompt_len": 3, "logprobs": [{65: {"logprob": -1.0}}] * 2}


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"text": "A", "finish_reason": "stop"}, "returned no token ids"),
        ({**ITEM, "prompt_len": 4}, "read a prompt of 3 tokens as 4"),
        ({**ITEM, "finish_reason": "abort"}, "aborted a completion"),
        ({**ITEM, "logprobs": None}, "returned none log-probs for 2 tokens"),
        ({**ITEM}, "no log-prob of token 256"),
        ({**ITEM, "token_ids": []}, "empty completion"),
        ("A", "returned a str for a prompt"),
    ],
)
def test_completions_that_cannot_be_trained_on_are_refused(item: Any, told: str, arctic_job: Any) -> None:
    backend = backend_with(canned(generate=[item]), arctic_job)
    with pytest.raises(BackendError, match=told):
        run(backend, lambda b: sampled(b, 1, n=1))


def test_a_step_on_a_gradient_that_is_no_number_ends_the_run(arctic_job: Any) -> None:
    async def work(backend: ArcticBackend) -> Any:
        backend._waits_for_step = True
        return await backend.optim_step(1e-3)

    ranks = {"metrics": {"last_lr": [1e-3, 1e-3], "grad_norm": [2.0, 2.0]}}
    assert run(backend_with(canned(step=ranks), arctic_job), work).grad_norm == 2.0
    untold = {"metrics": {"last_lr": 1e-3, "grad_norm": None}}  # DeepSpeed does not always report one
    assert math.isnan(run(backend_with(canned(step=untold), arctic_job), work).grad_norm)
    with pytest.raises(BackendError, match="gradient of norm nan"):
        run(backend_with(canned(step={"metrics": {"last_lr": 1.0, "grad_norm": float("nan")}}), arctic_job), work)
    with pytest.raises(BackendError, match="no number 'last_lr'; they are grad_norm"):
        run(backend_with(canned(step={"metrics": {"grad_norm": 1.0}}), arctic_job), work)
    with pytest.raises(BackendError, match="step failed: ValueError: boom"):
        run(backend_with(canned(step=ValueError("boom")), arctic_job), work)


def test_a_call_that_takes_too_long_is_given_up(arctic_job: Any) -> None:
    class Slow:
        async def sync_weights(self, **_: Any) -> None:
            await asyncio.sleep(30)

        def shutdown(self) -> None:
            """Nothing to end."""

    backend = backend_with(lambda config: Slow(), arctic_job, request_timeout_s=0.2)
    with pytest.raises(BackendError, match=r"sync_weights gave no answer within 0\.2 s"):
        run(backend, lambda b: b.sync_weights())


def test_a_constructor_that_wants_the_running_loop_gets_it(arctic_job: Any) -> None:
    class Client:
        def __init__(self, config: Any) -> None:
            self.loop = asyncio.get_running_loop()

        async def sync_weights(self, **_: Any) -> dict[str, str]:
            return {"status": "ok" if asyncio.get_running_loop() is self.loop else "another loop"}

        def shutdown(self) -> None:
            """Nothing to end."""

    run(backend_with(Client, arctic_job), lambda b: b.sync_weights())


def test_the_reference_scores_in_calls_that_fit_and_rows_keep_their_order(arctic_job: Any) -> None:
    class Client:
        """Says of each token, one column early, that its log-prob is minus its id."""

        sizes: ClassVar[list[int]] = []

        def fwd_no_grad(self, batch: Any, *, reference_model: bool) -> Any:
            ids = batch["batch"]["input_ids"]
            self.sizes.append(len(ids))
            return {"batch": {"logprobs": -ids.roll(-1, dims=-1).float()}}

        def sleep_inference(self, level: int) -> None: ...
        def shutdown(self) -> None: ...

    prompt, none = np.array([7], np.int32), np.zeros(0, np.float32)
    rows = [TrainRow(prompt, np.arange(20 + i, 22 + i, dtype=np.int32), 0.0, none) for i in range(7)]
    job = replace(arctic_job, needs_reference=True)
    backend = backend_with(lambda config: Client(), job, micro_batch_size=1, log_prob_gpus=2)
    scored = run(backend, lambda b: b.log_probs(rows, reference=True))
    assert [(-values).tolist() for values in scored] == [row.completion_ids.tolist() for row in rows]
    assert Client.sizes == [2, 2, 2, 2]  # the last one filled up, since each rank wants a row
