"""A DeepSpeed update is the local backend's, whatever the stage and the number of ranks.

Bounds: float32 differs by the order of sums, 1e-5 of the value. In bfloat16 both sides round the same products, but
DeepSpeed adds the gradient of the tied head to that of the embedding in bfloat16 (8 bits: 2^-8 = 0.004 of each value)
before it goes into the float32 sum, where the local backend adds the head's in float32; gradient norms agree to 1 %.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlctl.algorithms.losses import agg_mode_of
from rlctl.types import JobSpec, LoraSpec, OptimStats, TrainRow
from tests import defaults

pytestmark = [pytest.mark.ray, pytest.mark.slow]

LR = 1e-3


def rows() -> list[TrainRow]:
    """Three groups of four, of different lengths: over two ranks, two groups meet one. In two rows of each, every third
    token is an environment's."""
    draw = np.random.default_rng(0)

    def ids(length: int) -> Any:
        return draw.integers(5, 250, length, dtype=np.int32)

    made = []
    for group in range(3):
        prompt = ids(6 + 3 * group)
        for number in range(4):
            own = ids(int(draw.integers(2, 14)))
            mask = np.arange(len(own)) % 3 != 1 if number % 2 else None
            told = np.full(len(own), -2.0, np.float32)
            made.append(TrainRow(prompt, own, float(draw.normal()), told, policy_mask=mask))
    return made


def job(model: Path, **changes: Any) -> JobSpec:
    # Small micro-batches, so that ranks have different numbers of them; a clip that acts.
    own: dict[str, Any] = {
        "temperature": 0.9,
        "max_tokens_per_device": 60,
        "grad_clip": 0.05,
        "weight_decay": 0.1,
        "max_prompt_length": 16,
        "max_response_length": 16,
    }
    return defaults.job(model=str(model), **{**own, **changes})


def ranks(
    model: Path, *, world: int, stage: int, dtype: str = "float32", changes: dict[str, Any] | None = None, **own: Any
) -> Any:
    """The Ray backend with trainer ranks and no sampler."""
    from rlctl.backends.ray.backend import RayBackend
    from rlctl.backends.ray.fleet import Fleet
    from rlctl.backends.ray.settings import RaySettings

    class Trainers(Fleet):
        def _place_sampler(self, index: int) -> None: ...

    class WithoutSamplers(RayBackend):
        async def sync_weights(self) -> Any: ...

    asked: dict[str, Any] = {"trainer_ranks": world, "zero_stage": stage, "dtype": dtype, **own}
    settings = RaySettings(logits_tile_tokens=7, colocate=False, device="cpu", **asked)
    backend = WithoutSamplers(settings, job(model, **(changes or {})))
    backend.fleet = Trainers(settings, backend.job)
    return backend


async def updates(backend: Any) -> tuple[list[Any], list[float], list[OptimStats], list[Any]]:
    """Log-probs before, the loss and statistics of two updates with old log-probs, log-probs after."""
    made = rows()
    before = await backend.log_probs(made)
    made = [row.with_old(values) for row, values in zip(made, before, strict=True)]
    denominator = float(sum(row.trained_tokens for row in made))
    losses, stats = [], []
    for _ in range(2):
        # In two calls: gradients accumulate until the step.
        parts = [
            await backend.forward_backward(part, loss=defaults.loss(), loss_denominator=denominator)
            for part in (made[:5], made[5:])
        ]
        losses.append(sum(part.loss for part in parts))
        stats.append(await backend.optim_step(LR))
    return before, losses, stats, await backend.log_probs(made)


def run(backend: Any) -> Any:
    async def all_of_it() -> Any:
        try:
            await backend.start()
            return await updates(backend)
        finally:
            await backend.close()

    return asyncio.run(all_of_it())


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def expected(request: pytest.FixtureRequest, llama: Path) -> tuple[str, Any]:
    return request.param, run(local(llama, dtype=request.param))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_updates_equal_the_local_backends(
    cluster: None, llama: Path, expected: tuple[str, Any], stage: int, world: int
) -> None:
    dtype, (before, losses, stats, after) = expected
    got = run(ranks(llama, world=world, stage=stage, dtype=dtype))
    relative = {"float32": 1e-5, "bfloat16": 0.01}[dtype]
    moved = {"float32": 1e-4, "bfloat16": 0.3}[dtype]
    for mine, theirs in zip(got[0], before, strict=True):
        # Another packing: in float32 rounding, in bfloat16 logits spaced by up to 1/8.
        np.testing.assert_allclose(mine, theirs, atol={"float32": 1e-5, "bfloat16": 0.15}[dtype])
    assert got[1][0] == pytest.approx(
        losses[0], rel=max(relative, 1e-5), abs={"float32": 1e-6, "bfloat16": 1e-2}[dtype]
    )
    for mine, theirs in zip(got[2], stats, strict=True):
        assert mine.stepped
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=5 * relative)
        assert mine.changed_fraction == pytest.approx(theirs.changed_fraction, abs=0.02)
    for mine, theirs in zip(got[3], after, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=moved)


def local(model: Path, *, dtype: str = "float32", **changes: Any) -> Any:
    from rlctl.backends.local.backend import LocalBackend
    from rlctl.backends.local.settings import LocalSettings

    return LocalBackend(LocalSettings(dtype=dtype, logits_tile_tokens=7, device="cpu"), job(model, **changes))


def must_equal(got: Any, expected: Any) -> None:
    """In float32, where only the order of sums differs."""
    assert got[1] == pytest.approx(expected[1], rel=1e-5, abs=1e-6)
    for mine, theirs in zip(got[2], expected[2], strict=True):
        assert mine.stepped
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=5e-5)
    for mine, theirs in zip(got[0] + got[3], expected[0] + expected[3], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize(("world", "stage"), [(1, 1), (2, 2)])
def test_lora_updates_equal_the_local_backends(cluster: None, llama: Path, world: int, stage: int) -> None:
    changes = {"lora": LoraSpec(4, 8.0, ("all-linear",)), "grad_clip": 1.0}
    expected = run(local(llama, **changes))
    moved = max(float(np.abs(a - b).max()) for a, b in zip(expected[0], expected[3], strict=True))
    assert moved > 1e-3
    must_equal(run(ranks(llama, world=world, stage=stage, changes=changes)), expected)


LOSSES = ("gspo", "gmpo", "cispo", "sapo", "gpg", "clip_cov", "kl_cov")


async def one_update_by_each_loss(backend: Any) -> list[tuple[float, float]]:
    """(loss, gradient norm) of an update by each loss, old log-probs being off, and tokens chosen."""
    draw, found = np.random.default_rng(1), []
    try:
        await backend.start()
        made = []
        for row, values in zip(rows(), await backend.log_probs(rows()), strict=True):
            old = values + draw.normal(0, 0.3, len(values)).astype(np.float32)
            own = np.full(len(values), row.advantage, np.float32) * (1 + np.arange(len(values), dtype=np.float32))
            made.append(replace(row, old_logprobs=old, token_advantages=own, selected=draw.random(len(values)) < 0.3))
        for name in LOSSES:
            loss = defaults.loss(policy_loss=name, loss_agg_mode=agg_mode_of(name, "token-mean"))
            assert backend.loss_obstacle(loss) is None
            stats = await backend.forward_backward(made, loss=loss, loss_denominator=100.0)
            found.append((stats.loss, (await backend.optim_step(LR)).grad_norm))
        return found
    finally:
        await backend.close()


def test_every_loss_equals_the_local_backends(cluster: None, llama: Path) -> None:
    # Two ranks with other micro-batches than the local backend's, tiles of 7 tokens: rows in several tiles.
    expected = asyncio.run(one_update_by_each_loss(local(llama)))
    got = asyncio.run(one_update_by_each_loss(ranks(llama, world=2, stage=3)))
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=1e-5)


def test_checkpointed_layers_give_the_same_update(cluster: None, llama: Path) -> None:
    must_equal(run(ranks(llama, world=2, stage=3, gradient_checkpointing=True)), run(local(llama)))


def test_rows_without_completions_and_ranks_without_rows(cluster: None, llama: Path) -> None:
    backend = ranks(llama, world=2, stage=2, dtype="float32")
    none = np.zeros(0, np.int32)
    only = replace(rows()[0], completion_ids=none, rollout_logprobs=none.astype(np.float32))

    async def work() -> Any:
        try:
            await backend.start()
            empty = await backend.forward_backward([], loss=defaults.loss(), loss_denominator=1.0)
            bare = await backend.log_probs([only, *rows()[:2]])
            one_group = await backend.forward_backward(rows()[:4], loss=defaults.loss(), loss_denominator=1.0)
            return empty, bare, one_group, await backend.optim_step(LR)
        finally:
            await backend.close()

    empty, bare, one_group, stats = asyncio.run(work())
    assert empty.tokens == 0
    assert [len(values) for values in bare] == [0, *(len(row.completion_ids) for row in rows()[:2])]
    assert one_group.rows == 4
    assert stats.stepped
