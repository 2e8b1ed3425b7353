"""What every backend must do, run over each of them. A new backend adds itself to BACKENDS."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlctl.backends.base import AnyBackend, must_overlap
from rlctl.backends.local.backend import LocalBackend
from rlctl.backends.local.settings import LocalSettings
from rlctl.errors import ConfigError
from rlctl.settings import Settings
from rlctl.types import Completion, Prompt, TrainRow
from tests import defaults
from tests.fakes import FakeBackend, FakeSettings
from tests.two_sided import TwoSidedBackend, TwoSidedSettings

JOB = defaults.job(
    model="",
    temperature=0.9,
    end_token_ids=(256, 259),
    needs_reference=True,
    max_prompt_length=16,
    max_response_length=16,
    weight_decay=0.0,
    max_tokens_per_device=64,
)
SAMPLING = defaults.sampling(temperature=0.9, max_new_tokens=12)
LOSS = defaults.loss()


def fake(tiny_llama: Path, **job: Any) -> AnyBackend:
    return FakeBackend(FakeSettings(), replace(JOB, **job))


def local(tiny_llama: Path, **job: Any) -> AnyBackend:
    return LocalBackend(LocalSettings(dtype="float32"), replace(JOB, model=str(tiny_llama), **job))


def local_bfloat16(tiny_llama: Path, **job: Any) -> AnyBackend:
    settings = LocalSettings(dtype="bfloat16", tiled_logits_compute=False)
    return LocalBackend(settings, replace(JOB, model=str(tiny_llama), **job))


def local_cuda(tiny_llama: Path, **job: Any) -> AnyBackend:
    settings = LocalSettings(device="cuda", dtype="float32")
    return LocalBackend(settings, replace(JOB, model=str(tiny_llama), **job))


def ray(tiny_llama: Path, **job: Any) -> AnyBackend:
    from tests.ray import shared

    return shared.backend(replace(JOB, **job))


def http(tiny_llama: Path, **job: Any) -> AnyBackend:
    """The local backend in float32, hosted by a server in another process."""
    from tests.http import servers

    return servers.client(os.environ["RLCTL_TEST_SERVER"], replace(JOB, model=str(tiny_llama), **job))


def two_sided(tiny_llama: Path, **job: Any) -> AnyBackend:
    return TwoSidedBackend(TwoSidedSettings(), replace(JOB, **job))


BACKENDS = {
    "fake": fake,
    "two-sided": two_sided,
    "local": local,
    "local-bfloat16": local_bfloat16,
    "http": http,
    "ray": ray,
}
if torch.cuda.is_available():  # collected only where it can run: a skip in CI would hide a missing backend
    BACKENDS["local-cuda"] = local_cuda
EXACT = {
    "fake": 1e-6,
    "two-sided": 1e-6,
    "local": 1e-4,
    "local-bfloat16": 0.3,
    "local-cuda": 1e-2,
    "http": 1e-4,
    "ray": 1e-4,
}
"""How far two computations of a log-prob may lie apart; bfloat16 logits of this model are spaced by up to 1/8."""


MARKS = {"local-cuda": pytest.mark.gpu, "ray": [pytest.mark.ray, pytest.mark.slow]}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, [])) for name in BACKENDS])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("shared_ray")
    if request.param == "http":
        server = request.getfixturevalue("http_server")
        request.getfixturevalue("monkeypatch").setenv("RLCTL_TEST_SERVER", server.url)
    return str(request.param)


@pytest.fixture
def make(name: str, tiny_llama: Path) -> Callable[..., AnyBackend]:
    return lambda **job: BACKENDS[name](tiny_llama, **job)


def run(backend: AnyBackend, work: Callable[[AnyBackend], Coroutine[Any, Any, Any]]) -> Any:
    async def all_of_it() -> Any:
        try:
            await backend.start()
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(all_of_it())


def prompts(*seeds: int) -> list[Prompt]:
    return [Prompt(np.array([72, 105, 40 + seed], np.int32), seed) for seed in seeds]


def rows_of(asked: Sequence[Prompt], groups: Sequence[Sequence[Completion]]) -> list[TrainRow]:
    return [
        TrainRow(p.token_ids, c.token_ids, 1.0 if i % 2 else -1.0, c.logprobs)
        for p, group in zip(asked, groups, strict=True)
        for i, c in enumerate(group)
    ]


async def sampled(backend: AnyBackend, *seeds: int, n: int = 4) -> list[TrainRow]:
    asked = prompts(*seeds)
    return rows_of(asked, await backend.generate(asked, n=n, sampling=SAMPLING))


def num_tokens(rows: Sequence[TrainRow]) -> float:
    return float(sum(len(row.completion_ids) for row in rows))


def test_start_says_what_it_runs_on(make: Callable[..., AnyBackend]) -> None:
    info = asyncio.run(_start_and_close(make()))
    assert info.vocab_size == 260
    assert info.num_devices >= 1
    assert info.peak_source
    assert info.peak_flops is None or info.peak_flops > 0


async def _start_and_close(backend: AnyBackend) -> Any:
    try:
        return await backend.start()
    finally:
        await backend.close()


def test_reference_work_touches_nothing_that_is_computed(make: Callable[..., AnyBackend]) -> None:
    async def around(backend: AnyBackend) -> tuple[Any, Any, list[bool]]:
        rows = await sampled(backend, 1)
        before = await backend.log_probs(rows)
        there = [await backend.reference_work(2, like=phase) for phase in ("sampling", "update")]
        return before, await backend.log_probs(rows), there

    before, after, there = run(make(), around)
    assert there in ([True, True], [False, False])
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_generate_gives_n_completions_a_prompt_with_their_logprobs(make: Callable[..., AnyBackend]) -> None:
    groups = run(make(), lambda backend: backend.generate(prompts(1, 2, 3), n=4, sampling=SAMPLING))
    assert [len(group) for group in groups] == [4, 4, 4]
    for completion in (c for group in groups for c in group):
        assert completion.token_ids.dtype == np.int32
        assert completion.logprobs.dtype == np.float32
        assert 1 <= len(completion.token_ids) == len(completion.logprobs) <= 12
        assert ((completion.token_ids >= 0) & (completion.token_ids < 260)).all()
        assert (completion.logprobs <= 0).all()
        ended = completion.token_ids[-1] in JOB.end_token_ids
        assert completion.finish_reason == ("stop" if ended else "length")
        assert not np.isin(completion.token_ids[:-1], JOB.end_token_ids).any()


def test_samples_repeat_and_do_not_depend_on_the_batch(make: Callable[..., AnyBackend]) -> None:
    async def work(backend: AnyBackend) -> Any:
        return await sampled(backend, 1, 2, 3), await sampled(backend, 1, 2, 3), await sampled(backend, 2)

    first, second, alone = run(make(), work)
    ids = [[row.completion_ids.tolist() for row in rows] for rows in (first, second, alone)]
    assert ids[0] == ids[1]
    assert len({tuple(i) for i in ids[0]}) > 6
    assert [i[:1] for i in ids[0][4:8]] == [i[:1] for i in ids[2]]


def test_log_probs_are_those_of_the_sampler(make: Callable[..., AnyBackend], name: str) -> None:
    async def work(backend: AnyBackend) -> Any:
        rows = await sampled(backend, 1, 2)
        return rows, await backend.log_probs(rows), await backend.log_probs(rows, reference=True)

    rows, scored, reference = run(make(), work)
    for row, mine, ref in zip(rows, scored, reference, strict=True):
        assert len(mine) == len(row.completion_ids)
        np.testing.assert_allclose(mine, row.rollout_logprobs, atol=EXACT[name])
        np.testing.assert_allclose(mine, ref, atol=EXACT[name])


def test_an_update_raises_what_was_better_and_leaves_the_reference(make: Callable[..., AnyBackend], name: str) -> None:
    async def work(backend: AnyBackend) -> Any:
        rows = await sampled(backend, 1, 2)
        before = await backend.log_probs(rows)
        reference = await backend.log_probs(rows, reference=True)
        for _ in range(3):
            await backend.forward_backward(rows, loss=LOSS, loss_denominator=num_tokens(rows))
            stats = await backend.optim_step(0.01)
        return (
            rows,
            before,
            await backend.log_probs(rows),
            reference,
            await backend.log_probs(rows, reference=True),
            stats,
        )

    rows, before, after, reference, reference_after, stats = run(make(), work)
    gain = sum(r.advantage * float((b - a).sum()) for r, a, b in zip(rows, before, after, strict=True))
    assert gain > 0
    assert stats.stepped
    assert stats.grad_norm > 0
    assert 0 < stats.changed_fraction <= 1
    assert all(np.array_equal(a, b) for a, b in zip(reference, reference_after, strict=True))


def test_gradients_accumulate_whatever_the_cut(make: Callable[..., AnyBackend], name: str) -> None:
    async def work(backend: AnyBackend) -> Any:
        rows = await sampled(backend, 1, 2)
        whole = num_tokens(rows)
        one = await backend.forward_backward(rows, loss=LOSS, loss_denominator=whole)
        norm = (await backend.optim_step(0.0)).grad_norm
        parts = [await backend.forward_backward(rows[i::3], loss=LOSS, loss_denominator=whole) for i in range(3)]
        return one, norm, parts, (await backend.optim_step(0.0)).grad_norm

    one, norm, parts, norm_of_parts = run(make(), work)
    relative = 1e-4 if name != "local-bfloat16" else 0.05
    assert norm == pytest.approx(norm_of_parts, rel=relative)
    assert sum(part.tokens for part in parts) == one.tokens
    assert sum(part.loss for part in parts) == pytest.approx(one.loss, abs=1e-4)


def test_first_ratio_is_one_against_its_own_log_probs(make: Callable[..., AnyBackend], name: str) -> None:
    async def work(backend: AnyBackend) -> Any:
        rows = await sampled(backend, 1, 2)
        old = await backend.log_probs(rows)
        rows = [row.with_old(values) for row, values in zip(rows, old, strict=True)]
        first = await backend.forward_backward(rows, loss=LOSS, loss_denominator=1.0)
        await backend.optim_step(0.01)
        second = await backend.forward_backward(rows, loss=LOSS, loss_denominator=1.0)
        return first, second

    first, second = run(make(), work)
    assert first.max_ratio_deviation <= EXACT[name]
    assert second.max_ratio_deviation > first.max_ratio_deviation


def test_what_an_environment_wrote_is_neither_scored_nor_counted(make: Callable[..., AnyBackend], name: str) -> None:
    async def work(backend: AnyBackend) -> Any:
        assert backend.plays_episodes
        rows = await sampled(backend, 1, 2)
        masks = [np.arange(len(row.completion_ids)) % 2 == 0 for row in rows]
        masked = [replace(row, policy_mask=mask) for row, mask in zip(rows, masks, strict=True)]
        stats = await backend.forward_backward(masked, loss=LOSS, loss_denominator=1.0)
        await backend.optim_step(0.0)
        return masks, await backend.log_probs(rows), await backend.log_probs(masked), stats

    masks, plain, scored, stats = run(make(), work)
    assert stats.tokens == sum(int(mask.sum()) for mask in masks)
    for mask, every, mine in zip(masks, plain, scored, strict=True):
        assert not mine[~mask].any()
        np.testing.assert_allclose(mine[mask], every[mask], atol=EXACT[name])


def test_a_turn_ends_at_a_stop_token(make: Callable[..., AnyBackend]) -> None:
    async def work(backend: AnyBackend) -> Any:
        (first,) = await backend.generate(prompts(1), n=4, sampling=SAMPLING)
        stop = int(first[0].token_ids[0])
        sampling = replace(SAMPLING, stop_token_ids=(stop,))
        return stop, first, (await backend.generate(prompts(1), n=4, sampling=sampling))[0]

    stop, first, stopped = run(make(), work)
    for whole, cut in zip(first, stopped, strict=True):
        ends = np.flatnonzero(whole.token_ids == stop)
        wanted = whole.token_ids[: ends[0] + 1] if len(ends) else whole.token_ids
        assert cut.token_ids.tolist() == wanted.tolist()
        assert cut.finish_reason == ("stop" if len(ends) else whole.finish_reason)


def test_a_gradient_that_is_not_finite_changes_nothing(make: Callable[..., AnyBackend]) -> None:
    async def work(backend: AnyBackend) -> Any:
        rows = await sampled(backend, 1, 2)
        before = await backend.log_probs(rows)
        poisoned = [replace(rows[0], advantage=float("nan")), *rows[1:]]
        await backend.forward_backward(poisoned, loss=LOSS, loss_denominator=1.0)
        return before, await backend.optim_step(0.01), await backend.log_probs(rows), await backend.sync_weights()

    before, stats, after, sync = run(make(), work)
    assert not stats.stepped
    assert sync.version == 0
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_sync_reaches_every_name_and_counts_updates(make: Callable[..., AnyBackend]) -> None:
    async def work(backend: AnyBackend) -> Any:
        rows = await sampled(backend, 1)
        await backend.forward_backward(rows, loss=LOSS, loss_denominator=1.0)
        await backend.optim_step(0.01)
        return await backend.sync_weights()

    sync = run(make(), work)
    assert sync.names_sent == sync.names_expected > 0
    assert sync.version == 1


def test_the_sampler_follows_the_trainer(make: Callable[..., AnyBackend], name: str) -> None:
    async def work(backend: AnyBackend) -> Any:
        rows = await sampled(backend, 1, 2)
        await backend.forward_backward(rows, loss=LOSS, loss_denominator=1.0)
        await backend.optim_step(0.05)
        await backend.sync_weights()
        fresh = await sampled(backend, 1, 2)
        return fresh, await backend.log_probs(fresh)

    fresh, scored = run(make(), work)
    for row, mine in zip(fresh, scored, strict=True):
        np.testing.assert_allclose(mine, row.rollout_logprobs, atol=EXACT[name])


OVERLAPS = {"two-sided", "ray"}
PLAN = Settings().plan(steps=1)


def test_sampling_beside_training_is_from_the_weights_of_the_last_sync(
    make: Callable[..., AnyBackend], name: str
) -> None:
    async def trained(backend: AnyBackend, rows: Sequence[TrainRow]) -> None:
        await backend.forward_backward(rows, loss=LOSS, loss_denominator=1.0)
        await backend.optim_step(0.05)

    async def work(backend: AnyBackend) -> Any:
        before = await sampled(backend, 1, 2)
        beside, _ = await asyncio.gather(sampled(backend, 1, 2), trained(backend, before))
        after = await sampled(backend, 1, 2)
        await backend.sync_weights()
        return before, beside, after, await sampled(backend, 1, 2)

    backend = make(plan=replace(PLAN, max_off_policy_steps=1))
    if name not in OVERLAPS:
        with pytest.raises(ConfigError, match="cannot: its sampler and its trainer take turns"):
            run(backend, lambda backend: refuse(backend, name))
        return
    assert backend.overlap_obstacle() is None
    before, beside, after, synced = run(backend, work)
    told = [[row.rollout_logprobs.tolist() for row in rows] for rows in (before, beside, after, synced)]
    assert told[0] == told[1] == told[2] != told[3]


async def refuse(backend: AnyBackend, name: str) -> None:
    """As a run does before it starts; over http the server has done so by now."""
    must_overlap(backend, 1, name=name)


def test_what_was_saved_comes_back_in_another_backend(make: Callable[..., AnyBackend], tmp_path: Path) -> None:
    async def train_and_save(backend: AnyBackend) -> Any:
        rows = await sampled(backend, 1, 2)
        await backend.forward_backward(rows, loss=LOSS, loss_denominator=1.0)
        await backend.optim_step(0.01)
        await backend.save(tmp_path / "saved")
        return rows, await backend.log_probs(rows)

    async def load(backend: AnyBackend) -> Any:
        await backend.load(tmp_path / "saved")
        return await backend.log_probs(rows), await backend.sync_weights()

    rows, expected = run(make(), train_and_save)
    again, sync = run(make(), load)
    assert all(np.array_equal(a, b) for a, b in zip(expected, again, strict=True))
    assert sync.version == 1


def test_updates_after_a_load_are_those_of_a_run_that_went_on(
    make: Callable[..., AnyBackend], tmp_path: Path, name: str
) -> None:
    """Moments, counts and masters come back whole: field faults 121 and 129."""

    async def step(backend: AnyBackend, rows: list[TrainRow], lr: float) -> Any:
        await backend.forward_backward(rows, loss=LOSS, loss_denominator=num_tokens(rows))
        return await backend.optim_step(lr)

    async def straight(backend: AnyBackend) -> Any:
        rows = await sampled(backend, 1, 2)
        for lr in (0.01, 0.02):
            await step(backend, rows, lr)
        await backend.save(tmp_path / "saved")
        return rows, await step(backend, rows, 0.03), await step(backend, rows, 0.01), await backend.log_probs(rows)

    async def resumed(backend: AnyBackend) -> Any:
        await backend.load(tmp_path / "saved")
        await backend.sync_weights()
        return await step(backend, rows, 0.03), await step(backend, rows, 0.01), await backend.log_probs(rows)

    rows, third, fourth, expected = run(make(), straight)
    third_again, fourth_again, again = run(make(), resumed)
    exact = 0.0 if name in ("fake", "local", "local-bfloat16") else 1e-5
    for one, other in ((third, third_again), (fourth, fourth_again)):
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=exact, abs=0)
        assert other.changed_fraction == pytest.approx(one.changed_fraction, abs=exact)
    for one, other in zip(expected, again, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=exact)


def test_a_snapshot_is_what_was_saved_at_its_time(make: Callable[..., AnyBackend], tmp_path: Path) -> None:
    async def work(backend: AnyBackend) -> Any:
        rows = await sampled(backend, 1, 2)
        await backend.forward_backward(rows, loss=LOSS, loss_denominator=1.0)
        await backend.optim_step(0.01)
        then = await backend.log_probs(rows)
        snapshot = await backend.snapshot()
        if snapshot is None:
            await backend.save(tmp_path / "saved")
        await backend.forward_backward(rows, loss=LOSS, loss_denominator=1.0)
        await backend.optim_step(0.05)
        if snapshot is not None:
            await asyncio.to_thread(snapshot.write, tmp_path / "saved")
        later = await backend.log_probs(rows)
        await backend.load(tmp_path / "saved")
        await backend.sync_weights()
        return then, later, await backend.log_probs(rows)

    then, later, again = run(make(), work)
    assert all(np.array_equal(a, b) for a, b in zip(then, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(then, later, strict=True))


def test_close_is_safe_twice_and_before_start(make: Callable[..., AnyBackend]) -> None:
    async def close_twice(backend: AnyBackend) -> None:
        await backend.close()
        await backend.close()

    asyncio.run(close_twice(make()))
    run(make(), close_twice)


def test_the_loop_stays_free_while_a_verb_works(make: Callable[..., AnyBackend]) -> None:
    async def work(backend: AnyBackend) -> int:
        beats = 0

        async def heart() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.001)

        task = asyncio.create_task(heart())
        await sampled(backend, *range(20), n=8)
        task.cancel()
        return beats

    # A blocking verb would let the heart beat once or not at all; the fake has nothing to block with.
    backend = make()
    beats = run(backend, work)
    assert beats > 10 or isinstance(backend, FakeBackend)
