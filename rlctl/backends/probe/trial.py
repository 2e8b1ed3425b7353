"""A tiny job on a started backend: does it keep the contract, how long does each verb take, and does the loop stall?

The model is the one that ships with rlctl, so nothing is downloaded. Each check is timed beside a heartbeat: a verb
that blocks the event loop stops it. A check that fails does not hide the others, only those that need what it made.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlctl.backends.base import AnyBackend
from rlctl.backends.probe.report import Trial, TrialCheck
from rlctl.errors import BackendUnavailable, CheckpointError, ConfigError, RlctlError
from rlctl.seeds import prompt_seed
from rlctl.types import BackendInfo, Completion, JobSpec, LossSpec, Prompt, Sampling, TrainRow, UpdatePlan

BEAT_SECONDS = 0.01
STALL_SECONDS = 0.5
"""A shorter stall is a machine's own business: a garbage collection, other programs."""
STALL_SHARE = 0.5
"""A verb that blocks stalls the loop for nearly all of its time."""
LIMITS = {"float32": (1e-3, 1e-2)}
ROUNDED = (0.05, 1.0)
"""(mean, maximum) of the difference of two log-probs of a token, nats; bfloat16 logits of 16 are 1/8 apart."""
LR = 1e-3
MODEL = "embedded:tiny"
TEXTS = ("2 + 3 = ", "A box holds 4 pens. Two boxes hold ")
SAMPLES = 4

LOSS = LossSpec(0.2, 0.2, 3.0, 0.0, "k3", 0.0, "token-mean", 16)
SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, max_new_tokens=16)


class _Broken(Exception):
    """The contract is not kept, in words."""


def tiny_job() -> JobSpec:
    """The job of the trial. Imports a tokenizer's library."""
    from rlctl import tokenizer

    loaded = tokenizer.load(MODEL)
    plan = UpdatePlan(
        loss=LOSS,
        sampling=SAMPLING,
        group_size=SAMPLES,
        rows_per_update=len(TEXTS) * SAMPLES,
        updates_per_step=1,
        steps=8,
        lr=LR,
        lr_schedule="constant",
        warmup_ratio=0.0,
    )
    return JobSpec(
        model=MODEL,
        temperature=SAMPLING.temperature,
        end_token_ids=tokenizer.end_token_ids(MODEL, loaded.tokenizer),
        needs_reference=False,
        max_tokens_per_device=1024,
        max_prompt_length=32,
        max_response_length=SAMPLING.max_new_tokens,
        weight_decay=0.0,
        betas=(0.9, 0.95),
        grad_clip=1.0,
        plan=plan,
    )


async def run_trial(make: Callable[[JobSpec], AnyBackend]) -> Trial:
    """Start the backend that `make` makes, put it through its verbs, and close it.

    Raises ConfigError and BackendUnavailable as they come from the start: then there is nothing to try.
    """
    job = tiny_job()
    backend = make(job)
    trial = _Trial(backend, job, prompts=_prompts())
    try:
        await trial.everything()
    finally:
        await trial.check("closes, twice", _closed_twice(backend))
    return Trial(trial.info.device if trial.info else "not started", tuple(trial.checks))


def _prompts() -> list[Prompt]:
    from rlctl import tokenizer

    encode = tokenizer.load(MODEL).tokenizer
    ids = [np.asarray(encode(text, add_special_tokens=False)["input_ids"], dtype=np.int32) for text in TEXTS]
    return [Prompt(each, prompt_seed(0, "trial", text)) for each, text in zip(ids, TEXTS, strict=True)]


async def _closed_twice(backend: AnyBackend) -> None:
    await backend.close()
    await backend.close()


@dataclass
class _Heart:
    """Beats on the loop; `stall` is the longest time between two beats beyond what was meant."""

    stall: float = 0.0

    async def beat(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            now = time.perf_counter()
            self.stall, last = max(self.stall, now - last - BEAT_SECONDS), now


class _Trial:
    """The checks so far, and what they made for the next ones."""

    def __init__(self, backend: AnyBackend, job: JobSpec, *, prompts: list[Prompt]) -> None:
        self.backend, self.job, self.prompts = backend, job, prompts
        self.checks: list[TrialCheck] = []
        self.info: BackendInfo | None = None
        self.rows: list[TrainRow] = []
        self.version = 0

    async def everything(self) -> None:
        if not await self.check("starts", self._starts(), goes_through=(ConfigError, BackendUnavailable)):
            return
        if not await self.check("samples with ids and log-probs", self._samples()):
            return
        await self.check("scores as it sampled", self._scores())
        await self.check("an update raises what was better", self._updates())
        await self.check("the sampler follows the trainer", self._syncs())
        await self.check("an update that is no number changes nothing", self._refuses_nan())
        if self.backend.accumulates:
            await self.check("gradients add up, however rows are cut", self._accumulates())
        if self.backend.plays_episodes:
            await self.check("leaves out what it did not write", self._masks())
        with tempfile.TemporaryDirectory(prefix="rlctl-trial-") as folder:
            await self.check("saves and loads", self._saves(Path(folder) / "saved"))

    async def check(self, name: str, work: Awaitable[None], *, goes_through: tuple[type[RlctlError], ...] = ()) -> bool:
        """Whether the work was done as it should be; recorded with its time either way."""
        heart = _Heart()
        beating = asyncio.create_task(heart.beat())
        start = time.perf_counter()
        outcome, detail = "ok", ""
        try:
            await asyncio.sleep(0)
            await work
        except goes_through:
            raise
        except CheckpointError as error:
            outcome, detail = "refused", error.message
        except Exception as error:  # the boundary to a backend under test: whatever it raises is its result
            outcome, detail = "failed", str(error) if isinstance(error, _Broken) else f"{type(error).__name__}: {error}"
        finally:
            seconds = time.perf_counter() - start
            await asyncio.sleep(2 * BEAT_SECONDS)  # a beat that was held up is heard
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
        if outcome == "ok" and heart.stall > max(STALL_SECONDS, STALL_SHARE * seconds):
            outcome, detail = "failed", f"it blocked the event loop for {heart.stall:.2f} of {seconds:.2f} s"
        self.checks.append(TrialCheck(name, outcome, seconds, heart.stall, detail))  # type: ignore[arg-type]
        return outcome == "ok"

    async def _starts(self) -> None:
        info = await self.backend.start()
        _must(isinstance(info, BackendInfo), f"start returned a {type(info).__name__}, not BackendInfo")
        _must(info.num_devices >= 1, f"num_devices is {info.num_devices}")
        _must(bool(info.peak_source), "peak_source is empty, which says where the peak is from or why it is unknown")
        self.info = info

    async def _sampled(self) -> list[TrainRow]:
        groups = await self.backend.generate(self.prompts, n=SAMPLES, sampling=SAMPLING)
        _must([len(g) for g in groups] == [SAMPLES] * len(self.prompts), "generate returned not n completions a prompt")
        return [
            TrainRow(prompt.token_ids, c.token_ids, 1.0 if i % 2 else -1.0, c.logprobs)
            for prompt, group in zip(self.prompts, groups, strict=True)
            for i, c in enumerate(map(self._checked, group))
        ]

    def _checked(self, completion: Completion) -> Completion:
        ids, logprobs = completion.token_ids, completion.logprobs
        _must(ids.dtype == np.int32 and logprobs.dtype == np.float32, f"dtypes are {ids.dtype} and {logprobs.dtype}")
        _must(1 <= len(ids) == len(logprobs) <= SAMPLING.max_new_tokens, f"{len(ids)} ids, {len(logprobs)} log-probs")
        assert self.info is not None, "started"
        _must(ids.min() >= 0 and ids.max() < self.info.vocab_size, "an id is outside of the vocabulary")
        _must(bool((logprobs <= 1e-6).all()), "a log-prob is above 0")
        _must(not np.isin(ids[:-1], self.job.end_token_ids).any(), "a completion goes on after an end token")
        ended = ids[-1] in self.job.end_token_ids
        _must(completion.finish_reason == ("stop" if ended else "length"), f"ended by {completion.finish_reason}")
        return completion

    async def _samples(self) -> None:
        self.rows = await self._sampled()

    async def _scores(self) -> None:
        self._must_agree(self.rows, await self.backend.log_probs(self.rows))

    def _must_agree(self, rows: list[TrainRow], scored: list[Any]) -> None:
        _must(len(scored) == len(rows), f"{len(scored)} answers for {len(rows)} rows")
        gaps = [np.abs(mine - row.rollout_logprobs) for row, mine in zip(rows, scored, strict=True)]
        assert self.info is not None, "started"
        mean, most = LIMITS.get(self.info.dtype, ROUNDED)
        whole = np.concatenate(gaps)
        told = f"log-probs of trainer and sampler differ by {whole.mean():.2g} on average, {whole.max():.2g} at most"
        _must(bool(whole.mean() <= mean and whole.max() <= most), f"{told} (limits {mean:g}, {most:g})")

    async def _updates(self) -> None:
        before = await self.backend.log_probs(self.rows)
        self.rows = [row.with_old(values) for row, values in zip(self.rows, before, strict=True)]
        tokens = _num_tokens(self.rows)
        for _ in range(2):
            stats = await self.backend.forward_backward(self.rows, loss=LOSS, loss_denominator=tokens)
            _must(stats.tokens == tokens, f"an update of {tokens:g} tokens says it had {stats.tokens}")
            step = await self.backend.optim_step(LR)
            _must(step.stepped and step.grad_norm > 0, f"stepped {step.stepped}, gradient norm {step.grad_norm:g}")
            self.version += 1
        after = await self.backend.log_probs(self.rows)
        gain = sum(r.advantage * float((b - a).sum()) for r, a, b in zip(self.rows, before, after, strict=True))
        _must(gain > 0, f"advantage-weighted log-probs changed by {gain:.3g}, which should be above 0")

    async def _syncs(self) -> None:
        sync = await self.backend.sync_weights()
        _must(sync.version == self.version, f"version {sync.version} after {self.version} updates")
        _must(sync.names_sent == sync.names_expected, f"{sync.names_sent} of {sync.names_expected} weights were sent")
        fresh = await self._sampled()
        self._must_agree(fresh, await self.backend.log_probs(fresh))

    async def _refuses_nan(self) -> None:
        before = await self.backend.log_probs(self.rows)
        poisoned = [replace(self.rows[0], advantage=math.nan), *self.rows[1:]]
        await self.backend.forward_backward(poisoned, loss=LOSS, loss_denominator=1.0)
        step = await self.backend.optim_step(LR)
        _must(not step.stepped, "it stepped")
        after = await self.backend.log_probs(self.rows)
        _must(all(map(np.array_equal, before, after)), "log-probs changed")

    async def _accumulates(self) -> None:
        tokens = _num_tokens(self.rows)
        whole = await self.backend.forward_backward(self.rows, loss=LOSS, loss_denominator=tokens)
        norm = (await self.backend.optim_step(0.0)).grad_norm
        parts = [
            await self.backend.forward_backward(self.rows[i::2], loss=LOSS, loss_denominator=tokens) for i in (0, 1)
        ]
        norm_of_parts = (await self.backend.optim_step(0.0)).grad_norm
        self.version += 2
        _must(math.isclose(norm, norm_of_parts, rel_tol=0.02), f"norm {norm:.4g} at once, {norm_of_parts:.4g} in parts")
        _must(sum(part.tokens for part in parts) == whole.tokens, "parts count other tokens than the whole")

    async def _masks(self) -> None:
        """Every second token is an environment's, once with an old log-prob that would change the gradient."""
        masked = [replace(row, policy_mask=np.arange(len(row.completion_ids)) % 2 == 0) for row in self.rows]
        wild = [replace(row, old_logprobs=np.where(row.policy_mask, row.old_logprobs, -50)) for row in masked]  # type: ignore[arg-type]
        written, norms = sum(row.trained_tokens for row in masked), []
        for rows in (masked, wild):
            stats = await self.backend.forward_backward(rows, loss=LOSS, loss_denominator=float(written))
            _must(stats.tokens == written, f"it counts {stats.tokens} tokens where {written} are the policy's")
            norms.append((await self.backend.optim_step(0.0)).grad_norm)
            self.version += 1
        told = f"gradient norm {norms[0]:.4g}, {norms[1]:.4g} with other log-probs of tokens that are not the policy's"
        _must(math.isclose(*norms, rel_tol=0.02), told)
        scored = await self.backend.log_probs(masked)
        theirs = [
            values[~row.policy_mask] for row, values in zip(masked, scored, strict=True) if row.policy_mask is not None
        ]
        _must(not np.concatenate(theirs).any(), "log_probs are not 0 where the policy did not write")

    async def _saves(self, path: Path) -> None:
        before = await self.backend.log_probs(self.rows)
        await self.backend.save(path)
        await self.backend.forward_backward(self.rows, loss=LOSS, loss_denominator=_num_tokens(self.rows))
        await self.backend.optim_step(LR)
        await self.backend.load(path)
        after = await self.backend.log_probs(self.rows)
        gap = max(float(np.abs(b - a).max()) for a, b in zip(before, after, strict=True))
        _must(gap <= 1e-3, f"after loading what was saved, log-probs differ by {gap:.2g}")


def _num_tokens(rows: list[TrainRow]) -> float:
    return float(sum(len(row.completion_ids) for row in rows))


def _must(holds: bool, told: str) -> None:
    if not holds:
        raise _Broken(told)
