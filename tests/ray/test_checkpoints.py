"""A checkpoint is whole: another number of ranks, another ZeRO stage or the local backend goes on from it alike."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import defaults
from tests.ray.test_numerics import LR, job, ranks, rows

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("cluster")]

DENOMINATOR = 60.0


async def update(backend: Any) -> float:
    await backend.forward_backward(rows(), loss=defaults.loss(), loss_denominator=DENOMINATOR)
    norm: float = (await backend.optim_step(LR)).grad_norm
    return norm


def started(backend: Any, work: Any) -> Any:
    async def all_of_it() -> Any:
        try:
            await backend.start()
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(all_of_it())


@pytest.fixture(scope="module")
def saved(cluster: None, llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint of two ranks of stage 3 after two updates, and what the third update gave there."""
    folder = tmp_path_factory.mktemp("checkpoint") / "saved"

    async def work(backend: Any) -> Any:
        await update(backend)
        await update(backend)
        await backend.save(folder)
        return await update(backend), await backend.log_probs(rows())

    return folder, started(ranks(llama, world=2, stage=3, dtype="float32"), work)


def local(llama: Path) -> Any:
    from rlctl.backends.local.backend import LocalBackend
    from rlctl.backends.local.settings import LocalSettings

    return LocalBackend(LocalSettings(dtype="float32", device="cpu"), job(llama))


@pytest.mark.parametrize("other", ["one rank of stage 1", "local"])
def test_another_backend_goes_on_with_the_same_update(saved: tuple[Path, Any], llama: Path, other: str) -> None:
    folder, (norm, logprobs) = saved

    async def work(backend: Any) -> Any:
        await backend.load(folder)
        return await update(backend), await backend.log_probs(rows())

    backend = local(llama) if other == "local" else ranks(llama, world=1, stage=1, dtype="float32")
    norm_here, logprobs_here = started(backend, work)
    assert norm_here == pytest.approx(norm, rel=1e-4)
    # Moments were restored: without them AdamW's third update would be as large as a first one.
    for mine, theirs in zip(logprobs_here, logprobs, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_a_local_checkpoint_goes_on_over_two_ranks(llama: Path, tmp_path: Path) -> None:
    async def before(backend: Any) -> Any:
        await update(backend)
        await backend.save(tmp_path / "saved")
        return await update(backend), await backend.log_probs(rows())

    async def after(backend: Any) -> Any:
        await backend.load(tmp_path / "saved")
        return await update(backend), await backend.log_probs(rows())

    norm, logprobs = started(local(llama), before)
    norm_here, logprobs_here = started(ranks(llama, world=2, stage=2, dtype="float32"), after)
    assert norm_here == pytest.approx(norm, rel=1e-4)
    for mine, theirs in zip(logprobs_here, logprobs, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_a_folder_that_is_no_checkpoint_is_refused(llama: Path, tmp_path: Path) -> None:
    from rlctl.errors import CheckpointError

    async def work(backend: Any) -> None:
        with pytest.raises(CheckpointError, match="cannot be read"):
            await backend.load(tmp_path)

    started(ranks(llama, world=1, stage=2, dtype="float32"), work)
