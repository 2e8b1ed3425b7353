"""The legacy HTTP client of release 0.1.2: async methods that block inside, a sync shutdown."""

from __future__ import annotations

from typing import Any

from arctic_platform.rl.config import ArcticRLClientConfig

from tests.arctic import wire
from tests.arctic.transport import Session, launch


class ArcticRLHTTPClient:
    def __init__(self, config: ArcticRLClientConfig) -> None:
        self.config = config
        self._server = None
        self._ids = {kind: getattr(config, f"{kind}_job_id") for kind in ("training", "sampling", "log_prob")}
        attaches = config.training_job_id is not None
        if config.backend == "local" and not attaches:
            self._server = launch(
                config, host=config.host, port=config.port, release="0.1.2",
                log_prob_engine=config.log_prob_engine,
            )  # fmt: skip
        self._session = Session(config.host, config.port)
        if attaches:
            return
        for job_id, job in self._session.get("/status").json()["jobs"].items():
            self._session.post("/destroy", params={"job_id": job_id}, body={"job_type": job["job_type"]})
        for kind in ("sampling", "log_prob", "training"):
            if getattr(config, f"{kind}_gpus"):
                self._ids[kind] = self._initialize(kind)

    def _initialize(self, kind: str) -> int:
        config = self.config
        body: dict[str, Any] = {
            "model_name": config.model_name, "job_type": kind, "seed": config.seed,
            "arctic_inference_config": config.arctic_inference_config, "full_determinism": config.full_determinism,
        }  # fmt: skip
        if kind == "sampling" or (kind == "log_prob" and config.log_prob_engine == "vllm"):
            body["vllm_config"] = config.vllm_config
        else:
            body |= {"ds_config": config.ds_config, "ds_worker_config": config.ds_worker_config}
        if kind == "training":
            body["checkpoint_path"] = config.checkpoint_path
        if kind == "log_prob" and config.log_prob_ds_config is not None:
            body["log_prob_config"] = config.log_prob_ds_config
        return self._session.post("/initialize", body=body).json()["job_id"]

    def _json(self, path: str, kind: str, *, body: Any = None, **query: Any) -> Any:
        return self._session.post(path, params={"job_id": self._ids[kind], **query}, body=body).json()

    def _octets(self, path: str, kind: str, message: Any) -> Any:
        octets = wire.torch_encode(message)
        return wire.torch_decode(self._session.post(path, params={"job_id": self._ids[kind]}, octets=octets).content)

    async def fwd_bwd(self, batch: dict, processing: dict | None = None) -> dict:
        message = {**batch, "processing": processing} if processing is not None else batch
        return self._octets("/fwd-bwd", "training", message)

    async def fwd_no_grad(self, batch: dict, reference_model: bool) -> dict:
        return self._octets("/fwd-no-grad", "log_prob" if reference_model else "training", batch)

    async def step(self) -> dict:
        return self._json("/step", "training")

    async def save_checkpoint(self) -> dict:
        return self._json("/save-checkpoint", "training")

    async def generate(self, prompts: list[str], sampling_params: dict | None = None) -> list:
        return self._json("/generate", "sampling", body={"prompts": prompts, "sampling_params": sampling_params})[
            "results"
        ]

    async def sync_weights(self, cuda_ipc: bool = False, low_memory: bool = False) -> dict:
        self._json("/wake-inference", "sampling", body=["weights"])
        body = {
            "training_job_id": self._ids["training"], "sampling_job_id": self._ids["sampling"],
            "colocate": self.config.colocate, "cuda_ipc": cuda_ipc, "low_memory": low_memory,
        }  # fmt: skip
        reply = self._session.post("/sync-weights", body=body).json()
        self._json("/wake-inference", "sampling", body=["kv_cache"])
        self._json("/reset-prefix-cache", "sampling")
        return reply

    async def sleep_inference(self, level: int = 1) -> dict:
        return self._json("/sleep-inference", "sampling", level=level)

    async def wake_inference(self, tags: list[str] | None = None) -> dict:
        return self._json("/wake-inference", "sampling", body=tags)

    async def reset_prefix_cache(self) -> dict:
        return self._json("/reset-prefix-cache", "sampling")

    async def sleep_training(self, mode: str = "all") -> dict:
        return self._json("/sleep-training", "training", mode=mode)

    async def wake_training(self) -> dict:
        return self._json("/wake-training", "training")

    @property
    def training_job_id(self) -> int:
        if self._ids["training"] is None:
            raise ValueError("No training job initialized.")
        return self._ids["training"]

    def shutdown(self) -> None:
        for kind, job in self._ids.items():
            if job is not None:
                self._session.post("/destroy", params={"job_id": job}, body={"job_type": kind})
                self._ids[kind] = None
        self._session.close()
        if self._server is not None:
            self._server.terminate()
            self._server.wait(timeout=10)
            self._server = None
