"""Fakes at the seams the plan names: a backend whose policy is a table, and a tokenizer of bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict

from rlctl import seeds
from rlctl.backends.base import Backend
from rlctl.backends.settings import RemoteBackendSettings
from rlctl.errors import BackendError, CheckpointError, NonFiniteWeights
from rlctl.types import (
    BackendInfo,
    Completion,
    GenerateStats,
    LogProbs,
    LossSpec,
    LossStats,
    OptimStats,
    Problem,
    Prompt,
    Sampling,
    SyncReport,
    TokenIds,
    TrainRow,
)

VOCAB = 260


class FakeSettings(RemoteBackendSettings):
    model_config = ConfigDict(extra="forbid", frozen=True)

    nan_at_update: int = 0
    """The update at which the gradient is not a number; 0 is never."""
    fail_at_generate: int = 0
    """The call of generate that raises BackendError; 0 is none."""


class ByteTokenizer:
    """One token a byte; id 256 ends a text and has none."""

    def encode(self, problem: Problem) -> TokenIds:
        return np.frombuffer(problem.question.encode(), dtype=np.uint8).astype(np.int32)

    def decode(self, ids: TokenIds) -> str:
        return bytes(int(i) for i in ids if i < 256).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class FakeSnapshot:
    """A copy of the table."""

    theta: np.ndarray
    version: int

    def write(self, path: Path) -> Mapping[str, str]:
        path.mkdir(parents=True, exist_ok=True)
        np.savez(path / "fake.npz", theta=self.theta, version=self.version)
        return {}


class FakeBackend(Backend[FakeSettings]):
    """A policy of one table: every token is drawn from softmax(theta / temperature), whatever stands before it.

    Gradients are worked out by hand, so it learns; every call is recorded in `calls`.
    """

    plays_episodes = True

    def __init__(self, settings: FakeSettings, job: Any) -> None:
        super().__init__(settings, job)
        self.calls: list[str] = []
        self.trained: list[TrainRow] = []
        self.theta = np.zeros(VOCAB)
        self.theta[list(b"#0123456789 ")] = 3.0
        self.theta[256] = 2.0
        self.reference = self.theta.copy()
        self.gradient = np.zeros(VOCAB)
        self.has_gradient = False
        self.version = 0
        self.num_updates = self.num_generates = 0
        self.started = self.closed = False
        self.old_seen: list[tuple[LogProbs | None, ...]] = []

    async def start(self) -> BackendInfo:
        self.calls.append("start")
        self.started = True
        return BackendInfo("fake", 1, "float32", 1e12, "made up", VOCAB, VOCAB)

    def _logp(self, theta: np.ndarray) -> np.ndarray:
        scaled = theta / self.job.temperature
        return scaled - scaled.max() - math.log(np.exp(scaled - scaled.max()).sum())

    async def generate(self, prompts: Sequence[Prompt], *, n: int, sampling: Sampling) -> list[list[Completion]]:
        self.calls.append("generate")
        self.num_generates += 1
        if self.num_generates == self.settings.fail_at_generate:
            raise BackendError("the sampler is gone.", hint="start it again.")
        logp = self._logp(self.theta)
        ends = np.cumsum(np.exp(logp))
        groups = [[self._sample(seeds.sample_seed(p.seed, i), ends, logp, sampling) for i in range(n)] for p in prompts]
        self.generate_stats = GenerateStats(1.0, 1e-3, sum(len(c.token_ids) for g in groups for c in g))
        return groups

    def _sample(self, seed: int, ends: np.ndarray, logp: np.ndarray, sampling: Sampling) -> Completion:
        stops = {*(self.job.end_token_ids or (256,)), *sampling.stop_token_ids}
        limit = sampling.max_new_tokens
        ids: list[int] = []
        while len(ids) < limit and not (ids and ids[-1] in stops):
            u = seeds.uniforms(np.array([seed], dtype=np.uint64), len(ids))[0] * ends[-1]
            ids.append(min(int(np.searchsorted(ends, u, side="right")), VOCAB - 1))
        chosen = np.array(ids, dtype=np.int32)
        return Completion(chosen, logp[chosen].astype(np.float32), "stop" if ids[-1] in stops else "length")

    async def log_probs(self, rows: Sequence[TrainRow], *, reference: bool = False) -> list[LogProbs]:
        self.calls.append("reference" if reference else "log_probs")
        logp = self._logp(self.reference if reference else self.theta)
        values = [logp[row.completion_ids].astype(np.float32) for row in rows]
        return [v if r.policy_mask is None else v * r.policy_mask for r, v in zip(rows, values, strict=True)]

    async def forward_backward(self, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        self.calls.append("forward_backward")
        self.old_seen.append(tuple(row.old_logprobs for row in rows))
        self.trained += rows
        logp = self._logp(self.theta)
        p = np.exp(logp)
        total, tokens, deviation = 0.0, 0, 0.0
        for row in rows:
            written = row.completion_ids if row.policy_mask is None else row.completion_ids[row.policy_mask]
            new = logp[written]
            ratio = np.exp(new - (new if row.old_logprobs is None else row.written(row.old_logprobs)))
            weight = 1 / loss_denominator
            if loss.loss_agg_mode == "seq-mean-token-mean":
                weight /= max(1, row.trained_tokens)
            total += float((-row.advantage * ratio).sum() * weight)
            for token, r in zip(written, ratio, strict=True):
                onehot = np.zeros(VOCAB)
                onehot[token] = 1
                self.gradient += -row.advantage * r * weight * (onehot - p) / self.job.temperature
            tokens += row.trained_tokens
            deviation = max(deviation, float(np.abs(ratio - 1).max(initial=0)))
        self.has_gradient = self.has_gradient or bool(rows)
        return LossStats(
            loss=total, pg_loss=total, tokens=tokens, rows=len(rows), max_ratio_deviation=deviation,
            tokens_delivered=tokens, tokens_computed=max(tokens, 1), flops=1e6,
        )  # fmt: skip

    async def optim_step(self, lr: float) -> OptimStats:
        self.calls.append("optim_step")
        self.num_updates += 1
        norm = float(np.linalg.norm(self.gradient))
        if self.num_updates == self.settings.nan_at_update:
            norm = float("nan")
        stepped = math.isfinite(norm) and self.has_gradient
        if stepped:
            self.theta = self.theta - lr * self.gradient * min(1.0, self.job.grad_clip / max(norm, 1e-12))
            self.version += 1
        self.gradient, self.has_gradient = np.zeros(VOCAB), False
        return OptimStats(norm, lr, stepped, 0.5 if stepped and norm > 0 else 0.0)

    async def sync_weights(self) -> SyncReport:
        self.calls.append("sync_weights")
        return SyncReport(1, 1, self.version)

    async def save(self, path: Path) -> None:
        self.calls.append("save")
        if not np.isfinite(self.theta).all():
            raise CheckpointError(f"a weight is not finite, so {path} was not written.")
        path.mkdir(parents=True, exist_ok=True)
        np.savez(path / "fake.npz", theta=self.theta, version=self.version)

    async def snapshot(self) -> FakeSnapshot:
        self.calls.append("snapshot")
        if not np.isfinite(self.theta).all():
            raise NonFiniteWeights("a weight is not finite, so no checkpoint was written.")
        return FakeSnapshot(self.theta.copy(), self.version)

    async def load(self, path: Path) -> None:
        self.calls.append("load")
        state = np.load(path / "fake.npz")
        self.theta, self.version = state["theta"], int(state["version"])

    async def close(self) -> None:
        self.calls.append("close")
        self.closed = True
