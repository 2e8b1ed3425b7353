"""The in-process backend: one torch model on one device, sampled and trained in turn.

Sampler and trainer read the same compute weights, so a sync sends nothing: it checks that every name the
sampler reads is one the trainer writes. Master weights, moments and the reference live beside them.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from rlctl.backends.base import Backend
from rlctl.backends.local.settings import LocalSettings
from rlctl.backends.local.snapshot import TRAINER, LocalSnapshot, take
from rlctl.engine import lora, sampler, update
from rlctl.engine.checkpointing import checkpoint_layers
from rlctl.engine.compiling import compile_layers
from rlctl.engine.limits import compute_dtype, max_memory_bytes, must_fit_context, must_know_ids
from rlctl.engine.model import Policy, load_policy, wrap
from rlctl.engine.optimizer import MasterOptimizer
from rlctl.engine.peak import device_peak
from rlctl.engine.policy_losses import loss_function
from rlctl.engine.reference import Reference
from rlctl.errors import BackendError, BackendUnavailable, CheckpointError, NonFiniteWeights, OutOfMemory
from rlctl.types import (
    BackendInfo,
    Completion,
    JobSpec,
    JudgedPhase,
    LogProbs,
    LossSpec,
    LossStats,
    OptimStats,
    Prompt,
    Sampling,
    SyncReport,
    TrainRow,
)

T = TypeVar("T")

NOT_STARTED = "the local backend is not started, or is closed already."


class LocalBackend(Backend[LocalSettings]):
    """GRPO's verbs on a model in this process."""

    plays_episodes = True

    def __init__(self, settings: LocalSettings, job: JobSpec) -> None:
        super().__init__(settings, job)
        self._abandoned = threading.Event()
        self.compute = update.Compute(
            temperature=job.temperature,
            max_tokens=job.max_tokens_per_device,
            tile_tokens=settings.logits_tile_tokens if settings.tiled_logits_compute else None,
            abandoned=self._abandoned.is_set,
        )
        self._loss_is_finite = True
        self._policy: Policy | None = None
        self._optimizer: MasterOptimizer | None = None
        self._reference: Policy | None = None
        self._reference_work: Reference | None = None
        self._closed = False
        # One thread for all torch work: the loop stays free, and OpenMP keeps one pool of threads. (A second pool, from
        # torch in any other thread, makes both sleep between operations: sampling at half the speed.)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rlctl-local")

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise BackendError(NOT_STARTED)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._afresh, work)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"the device is out of memory: {str(error).split('.')[0]}.",
                hint="lower trainer.max_tokens_per_device, local.kv_cache_gb or trainer.mini_batch_size.",
            ) from error

    def _afresh(self, work: Callable[[], T]) -> T:
        """Do the work, after what an abandoned one has left behind is gone."""
        if self._abandoned.is_set():
            self._abandoned.clear()
            if self._optimizer is not None:
                self._optimizer.discard()
            self._loss_is_finite = True
        return work()

    def loss_obstacle(self, loss: LossSpec) -> str | None:
        """None: the engine computes every loss that is registered. Raises BackendUnavailable where its code fails."""
        loss_function(loss)
        return None

    def abandon(self) -> bool:
        self._abandoned.set()
        return True

    @property
    def policy(self) -> Policy:
        if self._policy is None:
            raise BackendError(NOT_STARTED)
        return self._policy

    @property
    def optimizer(self) -> MasterOptimizer:
        if self._optimizer is None:
            raise BackendError(NOT_STARTED)
        return self._optimizer

    async def start(self) -> BackendInfo:
        return await self._run(self._start)

    def _start(self) -> BackendInfo:
        device = _device(self.settings.device)
        if self.settings.num_threads is not None:
            torch.set_num_threads(self.settings.num_threads)
        policy = load_policy(self.job.model, device=device)
        must_fit_context(policy.causal_lm.config, self.job.max_prompt_length + self.job.max_response_length)
        num_parameters = sum(p.numel() for p in policy.causal_lm.parameters())
        dtype = compute_dtype(self.settings.dtype, device, num_parameters)
        if self.job.lora is not None:
            lora.inject(policy.causal_lm, self.job.lora)
            policy = wrap(policy.causal_lm)
        elif self.job.needs_reference:
            self._reference = load_policy(self.job.model, device=device)
            self._reference.causal_lm.requires_grad_(False)
            for p in self._reference.causal_lm.parameters():
                p.data = p.data.to(dtype)
        self._optimizer = MasterOptimizer(policy.causal_lm, dtype=dtype, job=self.job)
        if self.settings.compile:
            compile_layers(policy)
        if self.settings.gradient_checkpointing:
            policy = checkpoint_layers(policy)
        self._policy = policy
        peak, source = device_peak(device, dtype)
        return BackendInfo(
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            num_devices=1,
            dtype=str(dtype).removeprefix("torch."),
            peak_flops=peak if policy.shape is not None else None,
            peak_source=source if policy.shape is not None else policy.shape_note,
            vocab_size=policy.vocab_size,
            num_parameters=num_parameters,
            max_context=policy.max_context,
        )

    async def generate(self, prompts: Sequence[Prompt], *, n: int, sampling: Sampling) -> list[list[Completion]]:
        def work() -> list[list[Completion]]:
            must_know_ids(self.policy.vocab_size, prompts)
            completions, self.generate_stats = sampler.generate(
                self.policy,
                prompts,
                n=n,
                sampling=sampling,
                end_token_ids=self.job.end_token_ids,
                limits=sampler.Limits(
                    self.settings.kv_cache_gb * 2**30, self.settings.max_num_seqs, self._abandoned.is_set
                ),
                group_ended=self.group_ended,
            )
            return completions

        return await self._run(work)

    async def log_probs(self, rows: Sequence[TrainRow], *, reference: bool = False) -> list[LogProbs]:
        if reference and self.job.lora is not None and self.job.needs_reference:
            return await self._run(lambda: self._log_probs_without_lora(rows))
        policy = self._reference if reference else self.policy
        if policy is None:
            raise BackendError(
                "reference log-probs were asked for, but no reference model is loaded.",
                hint="set algorithm.kl_coef above 0.",
            )
        return await self._run(lambda: update.log_probs(policy, rows, compute=self.compute))

    def _log_probs_without_lora(self, rows: Sequence[TrainRow]) -> list[LogProbs]:
        with lora.switched_off(self.policy.causal_lm):
            return update.log_probs(self.policy, rows, compute=self.compute)

    async def forward_backward(self, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        def work() -> LossStats:
            stats = update.forward_backward(
                self.policy, rows, loss=loss, loss_denominator=loss_denominator, compute=self.compute
            )
            self._loss_is_finite = self._loss_is_finite and math.isfinite(stats.loss)
            return stats

        return await self._run(work)

    async def optim_step(self, lr: float) -> OptimStats:
        def work() -> OptimStats:
            finite, self._loss_is_finite = self._loss_is_finite, True
            return self.optimizer.step(lr, loss_is_finite=finite)

        stats = await self._run(work)
        return replace(stats, max_memory_bytes=max_memory_bytes(self.policy.device))

    async def sync_weights(self) -> SyncReport:
        expected = {name: p for name, p in self.policy.causal_lm.named_parameters() if p.requires_grad}
        written = dict(zip(self.optimizer.names, self.optimizer.compute, strict=True))
        stale = [name for name, p in expected.items() if written.get(name) is not p]
        if stale:
            raise BackendError(f"{len(stale)} weights of the sampler are not the trainer's: {', '.join(stale[:5])}.")
        return SyncReport(len(expected), len(written), self.optimizer.version)

    async def reference_work(self, repetitions: int, *, like: JudgedPhase) -> bool:
        def work() -> bool:
            policy = self.policy
            if self._reference_work is None:
                self._reference_work = Reference(policy.causal_lm.config, device=policy.device, dtype=policy.dtype)
            self._reference_work.work(repetitions, like=like)
            return True

        return await self._run(work)

    async def snapshot(self) -> LocalSnapshot:
        return await self._run(self._snapshot)

    def _snapshot(self) -> LocalSnapshot:
        if not self.optimizer.all_finite():
            raise NonFiniteWeights(
                "a weight is not finite, so no checkpoint was written.", hint="earlier checkpoints are untouched."
            )
        with_lora = self.job.lora is not None
        return take(self.policy.causal_lm, self.optimizer, dtype=self.policy.dtype, with_lora=with_lora)

    async def save(self, path: Path) -> None:
        snapshot = await self.snapshot()
        try:
            await self._run(lambda: snapshot.write(path))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error.strerror or error}.") from error

    async def load(self, path: Path) -> None:
        await self._run(lambda: self._load(path))

    def _load(self, path: Path) -> None:
        try:
            state = torch.load(path / TRAINER, map_location=self.policy.device, weights_only=True)
            self.optimizer.restore(state["masters"], state)
            torch.set_rng_state(state["rng"].cpu())
        except (OSError, RuntimeError, KeyError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(
                f"{path} cannot be read: {type(error).__name__}: {str(error).splitlines()[0]}"
            ) from error

    async def close(self) -> None:
        self._closed = True
        self._policy = self._optimizer = self._reference = self._reference_work = None
        self._thread.shutdown(wait=False, cancel_futures=True)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable(
            "local.device = cuda, but torch finds no CUDA device.", hint='set local.device = "auto".'
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
