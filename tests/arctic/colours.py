"""Recording clients of every colour, with the unified client's signatures, on a platform in this process.

`AllAsync`, `AllSync` and `ReturnsAwaitables` are one colour throughout; `Mixed` has what is slow sync and the rest
async. Each records (method, thread, arguments) in `calls`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

from tests.arctic.platform import Platform


class Core:
    """What all of them do, sync."""

    def __init__(self, platform: Platform, config: dict[str, Any]) -> None:
        self.platform = platform
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.ids: dict[str, int] = {}
        self.num_shutdowns = 0
        training, sampling = config["training"], config["sampling"]
        self._make("sampling", config, vllm_config=sampling["vllm"])
        worker = {name: training[name] for name in ("ds_config", "ds_worker_config", "checkpoint_path")}
        self._make("training", config, **worker)
        if config["log_prob_gpus"]:
            self._make("log_prob", config, **worker)

    def _make(self, kind: str, config: dict[str, Any], **rest: Any) -> None:
        asked = {"model_name": config["model_name"], "job_type": kind, **rest}
        self.ids[kind] = self.platform.initialize(asked)["job_id"]

    def _job(self, kind: str) -> Any:
        return self.platform.jobs[self.ids[kind]]

    def do(self, method: str, **told: Any) -> Any:
        self.calls.append((method, threading.current_thread().name, told))
        return getattr(self, f"_do_{method}")(**told)

    def _do_fwd_bwd(self, batch: Any, processing: Any) -> Any:
        return self.platform.forward_backward(self._job("training"), {**batch, "processing": processing})

    def _do_fwd_no_grad(self, batch: Any, reference_model: bool) -> Any:
        return self.platform.forward(self._job("log_prob" if reference_model else "training"), batch)

    def _do_step(self) -> Any:
        return self.platform.step(self._job("training"))

    def _do_save_checkpoint(self, path: Any, export_hf: bool) -> Any:
        return self.platform.save(self._job("training"), path=path, export_hf=export_hf)

    def _do_load_checkpoint(self, path: str) -> Any:
        return self.platform.load(self._job("training"), path)

    def _do_generate(self, prompts: Any, sampling_params: Any) -> Any:
        return self.platform.generate(self._job("sampling"), prompts, sampling_params)

    def _do_sync_weights(self, cuda_ipc: Any, low_memory: Any) -> Any:
        self.platform.asleep.clear()
        return self.platform.sync()

    def _do_sleep_inference(self, level: int) -> Any:
        return self.platform.sleep(self._job("sampling"), level)

    def _do_wake_inference(self, tags: Any) -> Any:
        return self.platform.wake(self._job("sampling"), tags)

    def _do_sleep_training(self, mode: str) -> Any:
        return self.platform.log("sleep-training", mode)

    def _do_wake_training(self) -> Any:
        return self.platform.log("wake-training")

    def _do_shutdown(self) -> None:
        self.num_shutdowns += 1
        for job in self.ids.values():
            self.platform.destroy(job)


class AllSync(Core):
    def fwd_bwd(self, batch: dict, processing: dict | None = None, router_replay: Any = None) -> dict:
        return self.do("fwd_bwd", batch=batch, processing=processing)

    def fwd_no_grad(self, batch: dict, reference_model: bool = False) -> dict:
        return self.do("fwd_no_grad", batch=batch, reference_model=reference_model)

    def step(self, learning_rate: float | None = None) -> dict:
        return self.do("step")

    def save_checkpoint(
        self, checkpoint_id=None, checkpoint_type="resumable", path=None, *,
        step=None, export_hf=False, save_total_limit=None, stage_info=None,
    ) -> dict:  # fmt: skip
        return self.do("save_checkpoint", path=path, export_hf=export_hf)

    def load_checkpoint(self, path: str | None = None, *, step: int | None = None) -> dict:
        return self.do("load_checkpoint", path=path)

    def generate(self, prompts: list[str], sampling_params=None, routing_key=None, strict=False) -> list:
        return self.do("generate", prompts=prompts, sampling_params=sampling_params)

    def sync_weights(self, cuda_ipc: bool | None = None, low_memory: bool | None = None) -> dict:
        return self.do("sync_weights", cuda_ipc=cuda_ipc, low_memory=low_memory)

    def sleep_inference(self, level: int = 1) -> dict:
        return self.do("sleep_inference", level=level)

    def wake_inference(self, tags: list[str] | None = None) -> dict:
        return self.do("wake_inference", tags=tags)

    def sleep_training(self, mode: str = "all") -> dict:
        return self.do("sleep_training", mode=mode)

    def wake_training(self) -> dict:
        return self.do("wake_training")

    def shutdown(self) -> None:
        return self.do("shutdown")


class AllAsync(Core):
    async def fwd_bwd(self, batch: dict, processing: dict | None = None, router_replay: Any = None) -> dict:
        return await self.later("fwd_bwd", batch=batch, processing=processing)

    async def fwd_no_grad(self, batch: dict, reference_model: bool = False) -> dict:
        return await self.later("fwd_no_grad", batch=batch, reference_model=reference_model)

    async def step(self, learning_rate: float | None = None) -> dict:
        return await self.later("step")

    async def save_checkpoint(
        self, checkpoint_id=None, checkpoint_type="resumable", path=None, *,
        step=None, export_hf=False, save_total_limit=None, stage_info=None,
    ) -> dict:  # fmt: skip
        return await self.later("save_checkpoint", path=path, export_hf=export_hf)

    async def load_checkpoint(self, path: str | None = None, *, step: int | None = None) -> dict:
        return await self.later("load_checkpoint", path=path)

    async def generate(self, prompts: list[str], sampling_params=None, routing_key=None, strict=False) -> list:
        return await self.later("generate", prompts=prompts, sampling_params=sampling_params)

    async def sync_weights(self, cuda_ipc: bool | None = None, low_memory: bool | None = None) -> dict:
        return await self.later("sync_weights", cuda_ipc=cuda_ipc, low_memory=low_memory)

    async def sleep_inference(self, level: int = 1) -> dict:
        return await self.later("sleep_inference", level=level)

    async def wake_inference(self, tags: list[str] | None = None) -> dict:
        return await self.later("wake_inference", tags=tags)

    async def sleep_training(self, mode: str = "all") -> dict:
        return await self.later("sleep_training", mode=mode)

    async def wake_training(self) -> dict:
        return await self.later("wake_training")

    async def shutdown(self) -> None:
        return await self.later("shutdown")

    async def later(self, method: str, **told: Any) -> Any:
        await asyncio.sleep(0)
        # The platform runs event loops of its own, which a thread with a running one cannot.
        return await asyncio.to_thread(self.do, method, **told)


class ReturnsAwaitables(AllAsync):
    """Plain functions that return awaitables: half of them say so, half do not."""

    def fwd_bwd(self, batch: dict, processing: dict | None = None, router_replay: Any = None) -> Awaitable[dict]:
        return self.later("fwd_bwd", batch=batch, processing=processing)

    def fwd_no_grad(self, batch: dict, reference_model: bool = False) -> Awaitable[dict]:
        return self.later("fwd_no_grad", batch=batch, reference_model=reference_model)

    def step(self, learning_rate: float | None = None) -> Awaitable[dict]:
        return self.later("step")

    def save_checkpoint(
        self, checkpoint_id=None, checkpoint_type="resumable", path=None, *,
        step=None, export_hf=False, save_total_limit=None, stage_info=None,
    ) -> Awaitable[dict]:  # fmt: skip
        return self.later("save_checkpoint", path=path, export_hf=export_hf)

    def load_checkpoint(self, path: str | None = None, *, step: int | None = None) -> Awaitable[dict]:
        return self.later("load_checkpoint", path=path)

    def generate(self, prompts: list[str], sampling_params=None, routing_key=None, strict=False):
        return self.later("generate", prompts=prompts, sampling_params=sampling_params)

    def sync_weights(self, cuda_ipc: bool | None = None, low_memory: bool | None = None):
        return self.later("sync_weights", cuda_ipc=cuda_ipc, low_memory=low_memory)

    def sleep_inference(self, level: int = 1):
        return self.later("sleep_inference", level=level)

    def wake_inference(self, tags: list[str] | None = None):
        return self.later("wake_inference", tags=tags)

    def sleep_training(self, mode: str = "all"):
        return self.later("sleep_training", mode=mode)

    def wake_training(self):
        return self.later("wake_training")

    def shutdown(self):
        return self.later("shutdown")


class Mixed(AllAsync):
    fwd_bwd = AllSync.fwd_bwd  # type: ignore[assignment]
    step = AllSync.step  # type: ignore[assignment]
    sync_weights = ReturnsAwaitables.sync_weights  # type: ignore[assignment]
    shutdown = AllSync.shutdown  # type: ignore[assignment]
