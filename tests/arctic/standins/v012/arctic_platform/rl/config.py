"""Configuration of the legacy clients: unknown keys are ignored."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class ArcticRLClientConfig(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    backend: Literal["local", "dss-platform"] = "local"
    comm_protocol: Literal["http", "ray"] = "http"
    checkpoint_path: str | None = None
    host: str | None = None
    port: int | None = None
    model_name: str
    ds_config: dict[str, Any] = {}
    training_config: dict[str, Any] | None = None
    vllm_config: dict[str, Any] | None = None
    log_prob_ds_config: dict[str, Any] | None = None
    ds_worker_config: dict[str, Any] | None = None
    arctic_inference_config: dict[str, Any] | None = None
    full_determinism: bool = False
    seed: int = 42
    training_gpus: int = 0
    sampling_gpus: int = 0
    log_prob_gpus: int = 0
    log_prob_engine: Literal["vllm", "deepspeed"] = "vllm"
    colocate: bool = False
    server_logs: bool = True
    ray_auto_attach: bool = True
    startup_timeout: float = 300.0
    health_check_interval: float = 2.0
    job_ready_timeout: float = 600.0
    training_job_id: int | None = Field(default=None, exclude=True)
    sampling_job_id: int | None = Field(default=None, exclude=True)
    log_prob_job_id: int | None = Field(default=None, exclude=True)
