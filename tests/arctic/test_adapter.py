"""The adapter through the stand-in clients against the wire-compatible server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlctl.backends.arctic.backend import ArcticBackend
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.backends.local.backend import LocalBackend
from rlctl.backends.local.settings import LocalSettings
from tests.arctic.platform import Platform
from tests.arctic.server import Server
from tests.backends.test_contract import LOSS, num_tokens, run, sampled

# Release of the server, stand-in package, settings that choose the client; the others run in test_smoke.py.
CLIENTS = {
    "unified-blocking": ("head", "head", {"client": "unified", "blocking_calls": True}),
    "legacy-head": ("head", "head", {"client": "legacy", "destroy_foreign_jobs": True}),
}
ZORRO = {"zorro_train": True, "training_gpus": 2, "seeded_sampling": True, "sleep_training": True}


@pytest.fixture
def arctic(request: Any, installed: Any, serve: Callable[..., Server], arctic_job: Any, tmp_path: Any) -> Any:
    release, package, chosen = CLIENTS[request.param]
    installed(package)
    server = serve(release)

    def make(**settings: Any) -> ArcticBackend:
        every = {
            "port": server.port, "launch_server": False, "checkpoint_path": str(tmp_path / "server"),
            "attn_implementation": "eager", **chosen, **settings,
        }  # fmt: skip
        return ArcticBackend(ArcticSettings(**every), arctic_job)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("arctic", ["legacy-head"], indirect=True)
def test_the_legacy_client_trains_as_the_local_engine_does(arctic: Any, arctic_job: Any, platform: Platform) -> None:
    async def work(backend: Any) -> Any:
        rows = await sampled(backend, 1, 2)
        return rows, *await update(backend, rows)

    async def update(backend: Any, rows: Any) -> Any:
        old = await backend.log_probs(rows)
        reference = await backend.log_probs(rows, reference=True)
        rows = [r.with_old(o).with_reference(f) for r, o, f in zip(rows, old, reference, strict=True)]
        stats = await backend.forward_backward(rows, loss=LOSS, loss_denominator=num_tokens(rows))
        step = await backend.optim_step(0.0)
        return old, stats, step

    rows, old, stats, step = run(arctic(), work)
    local = LocalBackend(LocalSettings(dtype="float32"), arctic_job)
    expected_old, expected, expected_step = run(local, lambda backend: update(backend, rows))
    for row, mine, theirs in zip(rows, old, expected_old, strict=True):
        np.testing.assert_allclose(mine, row.rollout_logprobs, rtol=2**-8, atol=1e-3)
        np.testing.assert_allclose(mine, theirs, rtol=2**-8, atol=1e-3)
    assert stats.loss == pytest.approx(expected.loss, abs=0.02)
    assert stats.tokens == expected.tokens
    assert stats.entropy_sum == pytest.approx(expected.entropy_sum, rel=2**-7)
    assert step.grad_norm == pytest.approx(expected_step.grad_norm, rel=0.02)
    asyncio.run(arctic().close())


@pytest.mark.slow
@pytest.mark.parametrize("arctic", ["unified-blocking"], indirect=True)
def test_shared_prompts_two_ranks_and_a_trainer_that_sleeps(arctic: Any, platform: Platform) -> None:
    platform.training_gpus = 2

    async def work(backend: Any) -> Any:
        rows = (await sampled(backend, 1, 2, n=4))[:7]
        again = (await sampled(backend, 1, 2, n=4))[:7]
        old = await backend.log_probs(rows)
        stats = await backend.forward_backward(rows, loss=LOSS, loss_denominator=num_tokens(rows))
        step = await backend.optim_step(0.0)
        await backend.sync_weights()
        await sampled(backend, 3)
        return rows, again, old, stats, step, await backend.log_probs(rows)

    rows, again, old, stats, step, _ = run(arctic(**ZORRO), work)
    assert [r.completion_ids.tolist() for r in rows] == [r.completion_ids.tolist() for r in again]
    for row, mine in zip(rows, old, strict=True):
        np.testing.assert_allclose(mine, row.rollout_logprobs, rtol=2**-8, atol=1e-3)
    assert (stats.rows, stats.tokens) == (7, num_tokens(rows))  # an eighth only fills the second rank
    assert step.grad_norm > 0
    assert platform.named("forward-backward")[0]["batch"]["input_ids"].shape[0] == 8
    assert platform.named("initialize")[-1]["ds_worker_config"]["logits_optimization"] == "memory"
    order = [(name, payload) for name, payload in platform.calls if name in ("sleep-training", "wake-training")]
    assert order == [("sleep-training", "non_lp"), ("sleep-training", "lp_params"), ("wake-training", None)]
