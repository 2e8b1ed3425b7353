"""The adapter: each of rlctl's verbs on the farm's client. Every call goes through `calling.call`, which awaits what
is async and runs what blocks in a thread, so it does not matter here which is which.
"""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlctl.backends import calling
from rlctl.backends.base import Backend
from rlctl.errors import BackendError, BackendUnavailable, CheckpointError, ConfigError
from rlctl.seeds import sample_seed
from rlctl.tokenizer import model_json
from rlctl.types import (
    BackendInfo,
    Completion,
    GenerateStats,
    JobSpec,
    LogProbs,
    LossSpec,
    LossStats,
    OptimStats,
    Prompt,
    Sampling,
    SyncReport,
    TrainRow,
)
from rlctl_toyfarm.client import FarmClient, FarmError
from rlctl_toyfarm.settings import ToyFarmSettings

STATE = "toyfarm.json"


class ToyFarmBackend(Backend[ToyFarmSettings]):
    """GRPO's verbs on a farm."""

    def __init__(self, settings: ToyFarmSettings, job: JobSpec) -> None:
        """Raises ConfigError for what a farm cannot do: before the run, not in the middle of it."""
        super().__init__(settings, job)
        if job.needs_reference:
            raise ConfigError("a toy farm has no reference model.", hint="set algorithm.kl_coef = 0.")
        if job.plan is not None and job.plan.loss.entropy_coeff > 0:
            raise ConfigError("a toy farm has no entropy bonus.", hint="set algorithm.entropy_coeff = 0.")
        self._client: FarmClient | None = None
        self._server: subprocess.Popen[str] | None = None
        self._has_gradient = False
        self._version = 0

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._client is None:
            raise BackendError("the farm is not started, or is closed already.")
        try:
            return await calling.call(self._client, method, *args, **kwargs)
        except FarmError as error:
            raise BackendError(f"the farm failed: {error}.", hint="is its server still there?") from error

    async def start(self) -> BackendInfo:
        vocab_size = int(await asyncio.to_thread(self._vocab_size))
        url = self.settings.url if self.settings.url else await asyncio.to_thread(self._start_server)
        self._client = FarmClient(url, timeout_s=self.settings.request_timeout_s)
        await self._call("create", vocab_size=vocab_size)
        return BackendInfo(
            device=f"toy farm at {url}",
            num_devices=1,
            dtype="float32",
            peak_flops=None,
            peak_source="a table of logits has no matrix products",
            vocab_size=vocab_size,
            num_parameters=vocab_size,
        )

    def _vocab_size(self) -> int:
        size = model_json(self.job.model, "config.json").get("vocab_size")
        if not isinstance(size, int):
            raise ConfigError(f"config.json of {self.job.model} names no vocab_size.")
        return size

    def _start_server(self) -> str:
        command = [sys.executable, "-m", "rlctl_toyfarm.server"]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None, "it is a pipe"
        port = self._server.stdout.readline().strip()
        if not port:
            raise BackendUnavailable("the farm's server ended before it said its port.")
        return f"http://127.0.0.1:{port}"

    async def generate(self, prompts: Sequence[Prompt], *, n: int, sampling: Sampling) -> list[list[Completion]]:
        start = time.perf_counter()
        requests = [
            {
                "seed": sample_seed(prompt.seed, sample),
                # A table cannot be sampled at temperature 0; this is as near as makes no difference.
                "temperature": max(sampling.temperature, 1e-4),
                "max_tokens": sampling.max_new_tokens,
                "stop_ids": list(self.job.end_token_ids),
            }
            for prompt in prompts
            for sample in range(n)
        ]
        drawn = [self._completion(item) for item in await self._call("sample", requests)]
        self.generate_stats = GenerateStats(
            seconds=time.perf_counter() - start, tokens=sum(len(c.token_ids) for c in drawn)
        )
        return [drawn[i * n : (i + 1) * n] for i in range(len(prompts))]

    def _completion(self, item: dict[str, Any]) -> Completion:
        ids = np.asarray(item["ids"], dtype=np.int32)
        ended = int(ids[-1]) in self.job.end_token_ids
        return Completion(ids, np.asarray(item["logprobs"], dtype=np.float32), "stop" if ended else "length")

    async def log_probs(self, rows: Sequence[TrainRow], *, reference: bool = False) -> list[LogProbs]:
        if reference:
            raise BackendError("a toy farm has no reference model.", hint="set algorithm.kl_coef = 0.")
        completions = [row.completion_ids.tolist() for row in rows]
        scored = await self._call("score", completions, temperature=self.job.temperature)
        return [np.asarray(values, dtype=np.float32) for values in scored]

    async def forward_backward(self, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        sent = [_row(row, loss, loss_denominator) for row in rows if len(row.completion_ids)]
        clip = (loss.clip_ratio_low, loss.clip_ratio_high, loss.clip_ratio_c or math.inf)
        told = await self._call("gradient", sent, temperature=self.job.temperature, clip=clip)
        self._has_gradient = self._has_gradient or bool(sent)
        tokens = sum(len(row["ids"]) for row in sent)
        return LossStats(
            loss=told["loss"],
            pg_loss=told["loss"],
            tokens=tokens,
            rows=len(sent),
            clipped_tokens=told["clipped"],
            max_ratio_deviation=told["deviation"],
            ppo_kl_sum=told["ppo_kl"],
            entropy_sum=math.nan,
            tokens_delivered=tokens,
            tokens_computed=tokens,
        )

    async def optim_step(self, lr: float) -> OptimStats:
        told = await self._call("step", lr=lr, max_norm=self.job.grad_clip)
        stepped = self._has_gradient and math.isfinite(told["norm"])
        self._has_gradient = False
        self._version = told["version"]
        return OptimStats(told["norm"], lr, stepped=stepped, changed_fraction=told["changed"])

    async def sync_weights(self) -> SyncReport:
        told = await self._call("publish")
        return SyncReport(names_expected=1, names_sent=1, version=told["version"])

    async def save(self, path: Path) -> None:
        state = await self._call("save")
        try:
            await asyncio.to_thread(path.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread((path / STATE).write_text, json.dumps(state))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error}.") from error

    async def load(self, path: Path) -> None:
        try:
            state = json.loads(await asyncio.to_thread((path / STATE).read_text))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path / STATE} cannot be read: {error}.") from error
        await self._call("load", state)

    async def close(self) -> None:
        client, self._client = self._client, None
        server, self._server = self._server, None
        if client is not None:
            await calling.call(client, "close")
        if server is not None:
            server.terminate()
            await asyncio.to_thread(server.wait)
            if server.stdout is not None:
                server.stdout.close()


def _row(row: TrainRow, loss: LossSpec, denominator: float) -> dict[str, Any]:
    per_token = loss.loss_agg_mode != "seq-mean-token-mean"
    return {
        "ids": row.completion_ids.tolist(),
        "advantage": row.advantage,
        "old": None if row.old_logprobs is None else row.old_logprobs.tolist(),
        "weight": 1 / denominator / (1 if per_token else len(row.completion_ids)),
    }
