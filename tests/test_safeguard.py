"""Losses, gradients and weights that are not finite: never stepped on, dumped, and rolled back from where asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlctl import dumps, loop
from rlctl.backends.local.backend import LocalBackend
from rlctl.backends.local.settings import LocalSettings
from rlctl.errors import ConfigError, NonFiniteGradient
from rlctl.replay import replay
from rlctl.settings import Settings
from rlctl.step_report import Refused
from rlctl.types import LossSpec, TrainRow
from tests import defaults
from tests.fakes import FakeBackend
from tests.runs import Recorder, prepared, run, saved

pytestmark = pytest.mark.usefixtures("fake_backend")


class Troubled(FakeBackend):
    """Its gradients are not finite from one update on, for so many."""

    def __init__(self, ready: Any, *, first: int, number: int) -> None:
        made = loop.backend_for(ready)
        super().__init__(made.settings, made.job)
        self.bad = range(first, first + number)

    async def optim_step(self, lr: float) -> Any:
        if self.num_updates + 1 in self.bad:
            self.gradient[:] = np.inf
        return await super().optim_step(lr)


def settings(*more: str) -> tuple[str, ...]:
    return ("trainer.max_skipped_updates=2", "trainer.steps=8", "trainer.eval_freq=0", *more)


def test_too_many_refused_updates_stop_the_run_by_default(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, *settings())
    with pytest.raises(NonFiniteGradient, match="2 times in a row, last at step 4"):
        run(ready, tmp_path / "run", backend=Troubled(ready, first=3, number=5))
    assert saved(tmp_path / "run") == ["step_000001", "step_000002"]


def test_a_rollback_takes_the_weights_of_before_the_trouble(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, *settings("trainer.on_non_finite=rollback", "trainer.save_freq=2"))
    recorder = Recorder()
    outcome, backend = run(ready, tmp_path / "run", recorder, backend=Troubled(ready, first=4, number=2))
    assert outcome.exit_code == 0
    assert [m["training/rollbacks"] for m in outcome.metrics] == [0, 0, 0, 0, 0, 1, 1, 1]
    # Steps 4 and 5 were refused; step 3's update went with the weights of step 2.
    assert backend.version == 5
    assert any("Back to the weights of step_000002" in note for note in recorder.notes)
    assert [m["training/global_step"] for m in outcome.metrics] == list(range(1, 9))


def test_a_rollback_takes_the_weight_of_kl_of_before_the_trouble(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(
        tiny_llama, data, *settings("trainer.on_non_finite=rollback", "trainer.save_freq=2"),
        "algorithm.use_kl_in_reward=true", "algorithm.kl_coef=0.1", "algorithm.kl_target=9", "algorithm.kl_horizon=100",
    )  # fmt: skip
    outcome, _ = run(ready, tmp_path / "run", backend=Troubled(ready, first=4, number=2))
    weights = [metrics["actor/reward_kl_penalty_coeff"] for metrics in outcome.metrics]
    # Far below the target it falls with every step; step 6 begins with what step 2 had left.
    assert weights[:5] == sorted(set(weights[:5]), reverse=True)
    assert weights[5] == weights[2]


def test_a_rollback_before_the_first_checkpoint_finds_the_start(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, *settings("trainer.on_non_finite=rollback", "trainer.save_freq=0"))
    _, backend = run(ready, tmp_path / "run", backend=Troubled(ready, first=2, number=2))
    assert saved(tmp_path / "run") == ["step_000000", "step_000008"]
    assert backend.version == 5


def test_rollbacks_have_an_end(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, *settings("trainer.on_non_finite=rollback", "trainer.max_rollbacks=2"))
    with pytest.raises(NonFiniteGradient, match="last at step 8"):
        run(ready, tmp_path / "run", backend=Troubled(ready, first=3, number=99))


def test_the_first_refused_rows_are_dumped_with_their_weights(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, *settings("trainer.max_skipped_updates=3"))
    run(ready, tmp_path / "run", backend=Troubled(ready, first=3, number=2))
    assert [path.name for path in (tmp_path / "run/dumps").iterdir()] == ["step_000003"]
    dump = dumps.read(tmp_path / "run/dumps/step_000003")
    assert (dump.step, dump.refused.update) == (3, 0)
    assert not np.isfinite(dump.refused.grad_norm)
    assert len(dump.refused.rows) % 4 == 0
    assert (dump.weights / "fake.npz").is_file()
    assert np.load(dump.weights / "fake.npz")["version"] == 2


def test_a_loss_that_is_not_finite_is_not_stepped_on(tiny_llama: Path) -> None:
    """Even where the gradient is: an infinite advantage on a token whose weight is cut to zero."""
    ids = np.array([70, 71, 72], np.int32)
    row = TrainRow(ids, ids, 1.0, np.full(3, -1.0, np.float32))

    async def work() -> Any:
        backend = LocalBackend(
            LocalSettings(dtype="float32"),
            defaults.job(max_prompt_length=16, max_response_length=16, model=str(tiny_llama)),
        )
        try:
            await backend.start()
            await backend.forward_backward([row], loss=defaults.loss(), loss_denominator=3.0)
            backend._loss_is_finite = False
            refused = await backend.optim_step(1e-3)
            await backend.forward_backward([row], loss=defaults.loss(), loss_denominator=3.0)
            return refused, await backend.optim_step(1e-3)
        finally:
            await backend.close()

    refused, taken = asyncio.run(work())
    assert np.isfinite(refused.grad_norm)
    assert not refused.stepped
    assert taken.stepped


def test_a_replay_finds_the_row(tiny_llama: Path, tmp_path: Path) -> None:
    def row(first: int, advantage: float) -> TrainRow:
        ids = np.array([first, 71, 72], np.int32)
        return TrainRow(ids, ids, advantage, np.full(3, -1.0, np.float32), np.full(3, -5.0, np.float32))

    rows = [row(70, 1.0), row(80, float("nan")), row(90, -1.0)]
    spec: LossSpec = defaults.loss()
    settings = Settings()

    def backend() -> LocalBackend:
        return LocalBackend(
            LocalSettings(dtype="float32"),
            defaults.job(max_prompt_length=16, max_response_length=16, model=str(tiny_llama)),
        )

    async def make() -> None:
        made = backend()
        try:
            await made.start()
            await made.forward_backward([rows[0]], loss=spec, loss_denominator=3.0)
            await made.optim_step(1e-2)
            await made.save(tmp_path / "dump" / dumps.WEIGHTS)
        finally:
            await made.close()

    asyncio.run(make())
    refused = Refused(0, rows, 9.0, float("nan"), float("nan"))
    dumps.write(tmp_path / "dump", step=4, refused=refused, settings=settings.model_dump(mode="json"))
    read = dumps.read(tmp_path / "dump")
    for mine, theirs in zip(rows, read.refused.rows, strict=True):
        assert mine.completion_ids.tolist() == theirs.completion_ids.tolist()
        assert mine.old_logprobs is not None
        assert theirs.old_logprobs is not None
        assert mine.old_logprobs.tolist() == theirs.old_logprobs.tolist()
        assert theirs.ref_logprobs is None
    whole, *each = asyncio.run(replay(read, backend=backend(), settings=settings))
    assert not whole.finite
    assert [result.finite for result in each] == [True, False, True]


def test_a_folder_that_is_no_dump_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a dump"):
        dumps.read(tmp_path)
