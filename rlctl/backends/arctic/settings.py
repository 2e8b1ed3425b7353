"""The keys of `[remote_backend.arctic]`. All are sent explicitly: the platform's own defaults differ by release."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from rlctl.backends.settings import RemoteBackendSettings
from rlctl.perf import datasheet_peak


class ArcticSettings(RemoteBackendSettings):
    """Which client is used, where the server is, and how its engines are built."""

    client: Literal["auto", "unified", "legacy"] = "auto"
    """Which of the platform's clients is used; auto is the unified one where the installed release has it."""
    blocking_calls: bool = False
    """Take the unified client's blocking twin, whose methods run in threads."""
    comm_protocol: Literal["http", "ray"] = "http"
    """How the client reaches its engines: a server's HTTP routes, or Ray actors without a server."""
    host: str = "localhost"
    """Where the server is, or is started."""
    port: int = Field(7000, ge=1, le=65535)
    """Its port."""
    launch_server: bool = True
    """Whether the client starts the server, on this machine; false connects to one that runs."""
    destroy_foreign_jobs: bool = False
    """Accept that the legacy client destroys every job that the server at host and port runs, whoever started it."""
    training_job_id: int | str | None = None
    """Attach to this training job in place of creating jobs, made with the same settings; attached jobs are left
    running at the end."""
    sampling_job_id: int | str | None = None
    """The sampling job to attach to."""
    log_prob_job_id: int | str | None = None
    """The log-prob job to attach to, for a KL term."""

    training_gpus: PositiveInt = 1
    """GPUs of the training engine: its data-parallel ranks."""
    sampling_gpus: PositiveInt = 1
    """GPUs of the sampling engine: its replicas times sampling_tp_size."""
    log_prob_gpus: NonNegativeInt | None = None
    """GPUs of the engine that holds the reference model; null is 1 where KL has a weight, else 0."""
    log_prob_engine: Literal["deepspeed", "vllm"] = "deepspeed"
    """What computes the reference; only deepspeed can serve a KL term."""
    sampling_tp_size: PositiveInt = 1
    """GPUs that share one copy of the sampler's model."""
    gpu: str | None = None
    """Name of the platform's GPUs, "NVIDIA H200" say, for the MFU; the platform does not tell it, so null is n/a."""
    cuda_visible_devices: str | None = None
    """Devices of a server that is started ("0,1"); null leaves all. Only the unified client has it."""
    ray_auto_attach: bool = True
    """Whether a server started by the legacy client joins a Ray cluster with GPUs that runs already."""
    server_logs: bool = True
    """Whether a server started by the legacy client writes to this terminal."""

    zorro_train: bool = False
    """Compute each prompt of a group once in training (Qwen3 models); needed for tiles of logits."""
    zorro_max_rollouts: PositiveInt | None = None
    """Most completions that share one computed prompt; null is rollout.n."""
    zorro_inference: bool = False
    """Forest Cascade Attention in the sampler."""
    speculative_model: str = ""
    """Draft model of the sampler; empty is none."""
    zero_stage: Literal[0, 1, 2, 3] = 2
    """DeepSpeed's ZeRO stage; 0 fails with the platform's bfloat16 and float32 gradients."""
    offload_optimizer: bool = False
    """Keep the optimizer's state in the memory of the machine."""
    offload_param: bool = False
    """Keep parameters there too; needs stage 3."""
    micro_batch_size: PositiveInt | None = None
    """Rows of a micro-batch on each GPU; null is what fits trainer.max_tokens_per_device and divides the rows, and 1
    without flash attention."""
    load_balancer: bool = True
    """Let the server spread prompt groups evenly over the ranks, in every batch where that is legal."""
    gradient_checkpointing: bool = True
    """Compute activations again in the backward pass instead of keeping them."""
    attn_implementation: str = "flash_attention_2"
    """Attention kernel of the training engine; without flash attention a micro-batch has one row, since more would see
    each other."""
    use_liger: bool = False
    """Liger's kernels in the training engine, where they are installed."""
    logits_peak_memory_gb: PositiveFloat = 4.0
    """GiB of one chunk of logits when they are computed in chunks or tiles."""
    logits_in_float32: bool = False
    """Take log-probs from float32 logits; off, they are rounded to bfloat16."""
    logits_from_float32: bool = False
    """With zorro_train, compute logits from float32 inputs of the last layer."""
    full_determinism: bool = False
    """Deterministic kernels in the training engine."""
    seed: NonNegativeInt = 42
    """Seed of the engines."""

    cuda_ipc: bool = False
    """Hand weights to a colocated sampler on the device; off, through a file."""
    low_memory: bool = False
    """With cuda_ipc, one parameter at a time."""
    sleep_training: bool = False
    """Move the training engine off the devices while it samples; for a model that does not fit beside its sampler."""
    gpu_memory_utilization: float = Field(0.6, gt=0, lt=1)
    """Share of a device's memory that the sampler takes."""
    max_num_seqs: PositiveInt = 256
    """Most completions a sampler works on at a time."""
    enforce_eager: bool = False
    """Sample without CUDA graphs."""
    samples_per_request: PositiveInt | None = None
    """Most samples in one generate call, calls running side by side; null sends one. The legacy HTTP client gives up
    on a call after 300 s."""
    seeded_sampling: bool = False
    """One request for each sample, with a seed of its own, so that a run repeats; slower."""
    max_concurrent_requests: PositiveInt = 64
    """Most generate calls on their way at a time; a client whose generate is sync gets one after the other."""
    check_prompt_ids: bool = True
    """Compare the prompt length that the server reports with the one sent, since it tokenizes the text again."""

    checkpoint_path: str = "runs/arctic-server"
    """Folder in which the server keeps checkpoints and the file of a weight sync."""
    drop_position_ids: bool = True
    """Let the server count positions from the attention mask in place of sending them."""
    startup_timeout_s: float = Field(600.0, gt=0)
    """Seconds until a server that was started must answer."""
    job_ready_timeout_s: float = Field(1800.0, gt=0)
    """Seconds until a job must be ready: the model is loaded in them."""
    shutdown_timeout_s: float = Field(60.0, gt=0)
    """Seconds that destroying the jobs may take at the end."""
    deepspeed: dict[str, Any] = Field(default={})
    """DeepSpeed settings laid over those that rlctl makes; batch sizes and accumulation follow from the run."""
    vllm: dict[str, Any] = Field(default={})
    """vLLM engine arguments laid over those that rlctl makes."""

    @field_validator("gpu")
    @classmethod
    def gpu_has_a_known_peak(cls, value: str | None) -> str | None:
        if value is not None and datasheet_peak(value) is None:
            raise ValueError('is no GPU whose peak is known; write its full name, "NVIDIA H200" say, or leave it out')
        return value

    @property
    def attaches(self) -> bool:
        """Whether jobs that run are used, and none is created."""
        return any(job is not None for job in (self.training_job_id, self.sampling_job_id, self.log_prob_job_id))

    @property
    def logits_optimization(self) -> Literal["none", "compute", "memory"]:
        """What the platform calls tiles of logits: `memory` never holds all of them and needs zorro; `compute` holds
        them once, where its default `none` holds them twice."""
        if not self.tiled_logits_compute:
            return "none"
        return "memory" if self.zorro_train else "compute"
