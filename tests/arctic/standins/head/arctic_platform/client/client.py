"""The unified clients: a blocking core, the async client over it, and its blocking twin."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from arctic_platform import wire
from arctic_platform.client.config import ArcticRLClientConfig
from tests.arctic.transport import Session, launch


@dataclass
class Jobs:
    training: Any = None
    sampling: Any = None
    log_prob: Any = None


class _Core:
    def __init__(self, config: ArcticRLClientConfig) -> None:
        onprem = config.backend
        self.config, self.jobs, self.server = config, Jobs(), None
        ids = (config.training_job_id, config.sampling_job_id, config.log_prob_job_id)
        attaches = any(job is not None for job in ids)
        if onprem.launch_local_server and not attaches:
            self.server = launch(config, host=onprem.host, port=onprem.port, release="head", log_prob_engine="vllm")
        self.session = Session(onprem.host, onprem.port)
        if attaches:
            self.jobs = Jobs(*ids)
            return
        for kind in ("sampling", "log_prob", "training"):
            if getattr(config, f"{kind}_gpus"):
                setattr(self.jobs, kind, self._initialize(kind))

    def _initialize(self, kind: str) -> int:
        config, training = self.config, self.config.training
        body: dict[str, Any] = {"model_name": config.model_name, "job_type": kind}
        if kind == "sampling":
            body |= {"arctic_inference_config": config.sampling.arctic_inference_config}
            if config.sampling.vllm:
                body["vllm_config"] = {"max_model_len": config.max_seq_len, **config.sampling.vllm}
        else:
            body |= {
                "full_determinism": training.full_determinism, "ds_config": training.ds_config,
                "ds_worker_config": training.ds_worker_config,
            }  # fmt: skip
        if kind == "training":
            body |= {
                "checkpoint_path": training.checkpoint_path, "cuda_ipc": training.cuda_ipc,
                "low_memory": training.low_memory,
            }  # fmt: skip
        if kind == "log_prob":
            body["log_prob_config"] = config.sampling.log_prob_ds_config
        if config.seed is not None:
            body["seed"] = config.seed
        try:
            reply = self.session.post("/initialize", body=body).json()
        except OSError as error:
            raise RuntimeError(f"initialize {kind}: {error}: {getattr(error, 'response', error)}") from error
        assert self.session.get(f"/job/{reply['job_id']}").json()["status"] == "RUNNING"
        return reply["job_id"]

    def json(self, operation: str, job: Any, body: Any = None) -> Any:
        return self.session.post(f"/{operation}", params={"job_id": job}, body=body).json()

    def octets(self, operation: str, job: Any, message: Any) -> Any:
        reply = self.session.post(f"/{operation}", params={"job_id": job}, octets=wire.encode(message))
        return wire.decode(reply.content)

    def fwd_bwd(self, batch: Any, processing: Any) -> Any:
        message = {**batch, "processing": processing} if processing is not None else batch
        return self.octets("forward-backward", self.jobs.training, message)

    def fwd_no_grad(self, batch: Any, reference_model: bool) -> Any:
        return self.octets("forward", self.jobs.log_prob if reference_model else self.jobs.training, batch)

    def sync(self, cuda_ipc: Any, low_memory: Any) -> Any:
        sampling = self.jobs.sampling
        self.json("wake-inference", sampling, {"tags": ["weights"]})
        payload = {
            "source_sub_job_id": self.jobs.training, "target_sub_job_ids": [sampling],
            "cuda_ipc": cuda_ipc, "low_memory": low_memory,
        }  # fmt: skip
        reply = self.json("operation", self.jobs.training, {"operation_type": "weight-sync", "payload": payload})
        self.json("wake-inference", sampling, {"tags": ["kv_cache"]})
        self.json("operation", sampling, {"operation_type": "reset-prefix-cache", "payload": {}})
        return reply

    def close(self) -> None:
        for kind in ("training", "sampling", "log_prob"):
            if (job := getattr(self.jobs, kind)) is not None:
                self.session.post("/destroy", params={"job_id": job}, body={"job_type": kind})
                setattr(self.jobs, kind, None)
        self.session.close()
        if self.server is not None:
            self.server.terminate()
            self.server.wait(timeout=10)


class SyncArcticRLClient:
    def __init__(self, config: ArcticRLClientConfig, server_state: Any = None) -> None:
        self._core = _Core(config)
        self.jobs = self._core.jobs

    def fwd_bwd(self, batch: dict, processing: dict | None = None, router_replay: Any = None) -> dict:
        return self._core.fwd_bwd(batch, processing)

    def fwd_no_grad(self, batch: dict, reference_model: bool = False) -> dict:
        return self._core.fwd_no_grad(batch, reference_model)

    def step(self, learning_rate: float | None = None) -> dict:
        return self._core.json("step", self.jobs.training, {"learning_rate": learning_rate})

    def save_checkpoint(
        self, checkpoint_id=None, checkpoint_type="resumable", path=None, *,
        step=None, export_hf=False, save_total_limit=None, stage_info=None,
    ) -> dict:  # fmt: skip
        return self._core.json("save", self.jobs.training, {"path": path, "export_hf": export_hf})

    def load_checkpoint(self, path: str | None = None, *, step: int | None = None) -> dict:
        return self._core.json("load-checkpoint", self.jobs.training, {"path": path, "step": step})

    def generate(self, prompts: list[str], sampling_params=None, routing_key=None, strict=False) -> list:
        asked = {"prompts": prompts, "sampling_params": sampling_params, "routing_key": routing_key, "strict": strict}
        return self._core.octets("generate", self.jobs.sampling, asked)["results"]

    def sync_weights(self, cuda_ipc: bool | None = None, low_memory: bool | None = None) -> dict:
        return self._core.sync(cuda_ipc, low_memory)

    def reset_prefix_cache(self, drain=True, timeout_s=60.0, retry_interval_s=0.1) -> dict:
        return self._core.json("operation", self.jobs.sampling, {"operation_type": "reset-prefix-cache", "payload": {}})

    def sleep_inference(self, level: int = 1) -> dict:
        return self._core.json("sleep-inference", self.jobs.sampling, {"level": level})

    def wake_inference(self, tags: list[str] | None = None) -> dict:
        return self._core.json("wake-inference", self.jobs.sampling, {"tags": tags} if tags else None)

    def sleep_training(self, mode: str = "all") -> dict:
        return self._core.json("sleep-training", self.jobs.training, {"mode": mode})

    def wake_training(self) -> dict:
        return self._core.json("wake-training", self.jobs.training)

    def shutdown(self) -> None:
        self._core.close()


class ArcticRLClient:
    def __init__(self, config: ArcticRLClientConfig, server_state: Any = None) -> None:
        self._twin = SyncArcticRLClient(config, server_state)
        self.jobs = self._twin.jobs
        self._gate = asyncio.Lock()

    async def _run(self, method: str, *args: Any, **kwargs: Any) -> Any:
        async with self._gate:  # one connection
            return await asyncio.to_thread(getattr(self._twin, method), *args, **kwargs)

    async def fwd_bwd(self, batch: dict, processing: dict | None = None, router_replay: Any = None) -> dict:
        return await self._run("fwd_bwd", batch, processing)

    async def fwd_no_grad(self, batch: dict, reference_model: bool = False) -> dict:
        return await self._run("fwd_no_grad", batch, reference_model)

    async def step(self, learning_rate: float | None = None) -> dict:
        return await self._run("step", learning_rate)

    async def save_checkpoint(
        self, checkpoint_id=None, checkpoint_type="resumable", path=None, *,
        step=None, export_hf=False, save_total_limit=None, stage_info=None,
    ) -> dict:  # fmt: skip
        return await self._run("save_checkpoint", path=path, export_hf=export_hf)

    async def load_checkpoint(self, path: str | None = None, *, step: int | None = None) -> dict:
        return await self._run("load_checkpoint", path, step=step)

    async def generate(self, prompts: list[str], sampling_params=None, routing_key=None, strict=False) -> list:
        return await self._run("generate", prompts, sampling_params, routing_key, strict)

    async def sync_weights(self, cuda_ipc: bool | None = None, low_memory: bool | None = None) -> dict:
        return await self._run("sync_weights", cuda_ipc, low_memory)

    async def reset_prefix_cache(self, drain=True, timeout_s=60.0, retry_interval_s=0.1) -> dict:
        return await self._run("reset_prefix_cache")

    async def sleep_inference(self, level: int = 1) -> dict:
        return await self._run("sleep_inference", level)

    async def wake_inference(self, tags: list[str] | None = None) -> dict:
        return await self._run("wake_inference", tags)

    async def sleep_training(self, mode: str = "all") -> dict:
        return await self._run("sleep_training", mode)

    async def wake_training(self) -> dict:
        return await self._run("wake_training")

    async def shutdown(self) -> None:
        await self._run("shutdown")


def create_arctic_rl_client(config: ArcticRLClientConfig, *, blocking_calls: bool = False, server_state: Any = None):
    return SyncArcticRLClient(config, server_state) if blocking_calls else ArcticRLClient(config, server_state)
