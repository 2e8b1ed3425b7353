"""Configuration of the unified clients: unknown keys are refused."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class TrainingConfig(_Strict):
    full_determinism: bool = False
    checkpoint_path: str | None = None
    ds_config: dict[str, Any] | None = None
    ds_worker_config: dict[str, Any] | None = None
    cuda_ipc: bool = False
    low_memory: bool = False


class SamplingConfig(_Strict):
    vllm: dict[str, Any] = {}
    arctic_inference_config: dict[str, Any] | None = None
    log_prob_engine: Literal["vllm", "deepspeed"] = "vllm"
    log_prob_ds_config: dict[str, Any] | None = None


class OnPremConfig(_Strict):
    type: Literal["onprem"] = "onprem"
    protocol: Literal["http", "ray"] = "http"
    host: str = "localhost"
    port: int = 8000
    colocate: bool = False
    launch_local_server: bool = False
    server_cuda_visible_devices: str | None = None
    startup_timeout: float = 600


class ArcticRLClientConfig(_Strict):
    model_name: str
    seed: int | None = None
    dtype: str | None = None
    max_seq_len: int = 8192
    training_gpus: int = 0
    sampling_gpus: int = 0
    log_prob_gpus: int = 0
    job_ready_timeout: float = 1800
    request_timeout: float = 1800
    training_job_id: int | str | None = None
    sampling_job_id: int | str | None = None
    log_prob_job_id: int | str | None = None
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    backend: OnPremConfig = Field(default_factory=OnPremConfig)
