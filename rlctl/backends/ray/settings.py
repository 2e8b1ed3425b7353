"""The knobs of the Ray backend: the `[remote_backend.ray]` table."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from rlctl.backends.settings import RemoteBackendSettings
from rlctl.presets import did_you_mean

OUR_DEEPSPEED_KEYS = {
    "train_batch_size": "rlctl counts rows, tokens and ranks itself",
    "train_micro_batch_size_per_gpu": "a micro-batch holds trainer.max_tokens_per_device tokens",
    "gradient_accumulation_steps": "gradients accumulate until the update",
    "managed_gradient_accumulation": "gradients accumulate until the update",
    "gradient_clipping": "set trainer.grad_clip",
    "optimizer": "set trainer.weight_decay and trainer.betas",
    "scheduler": "set trainer.lr_schedule",
    "bf16": "set remote_backend.ray.dtype",
    "fp16": "set remote_backend.ray.dtype",
    "data_types": "gradients are summed in float32",
}
"""Top-level keys of DeepSpeed's config that rlctl writes, with what to set in their place."""

DEEPSPEED_KEYS = frozenset(
    {
        "zero_optimization", "communication_data_type", "activation_checkpointing", "aio", "comms_logger",
        "flops_profiler", "wall_clock_breakdown", "memory_breakdown", "dump_state", "steps_per_print", "compile",
    }
)  # fmt: skip
"""Top-level keys of DeepSpeed's config that change memory, speed or what is logged, and no result."""

OUR_VLLM_KEYS = {
    "model": "set model.path",
    "tokenizer": "prompts travel as token ids",
    "skip_tokenizer_init": "prompts travel as token ids",
    "load_format": "weights come from the trainer",
    "dtype": "set remote_backend.ray.dtype",
    "tensor_parallel_size": "set remote_backend.ray.tensor_parallel_size",
    "worker_extension_cls": "rlctl loads the trainer's weights through its own",
    "logprobs_mode": "log-probs are needed at the sampling temperature",
    "weight_transfer_config": "set remote_backend.ray.weight_sync",
    "generation_config": "sampling is set by rollout and eval alone",
    "enable_sleep_mode": "set remote_backend.ray.colocate",
    "seed": "every request carries its own seed",
}
"""vLLM's engine arguments that rlctl sets, with what to set in their place."""


class RaySettings(RemoteBackendSettings):
    """Settings of the Ray backend."""

    address: str | None = None
    """Address of a running Ray cluster (`host:6379`, `ray://host:10001`, or `auto` for the one on this machine); null
    starts one on this machine and stops it at the end."""
    trainer_ranks: PositiveInt = 1
    """DeepSpeed ranks, one device each; the rows of an update and the optimizer's state are spread over them."""
    sampler_replicas: PositiveInt = 1
    """Engines that sample, each with the whole model; the prompts of a step are spread over them."""
    tensor_parallel_size: PositiveInt = 1
    """Devices of one sampler, over which its weights are split. All lie on one machine."""
    rollout_engine: str = "vllm"
    """What samples; rlctl/backends/ray/rollout_engines/__init__.py lists them."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What a device is; auto is cuda when the cluster has GPUs, else cpu."""
    cpus_per_rank: PositiveFloat = 1.0
    """CPU cores reserved for a trainer rank; on cpu also its threads."""
    cpus_per_sampler: PositiveFloat = 1.0
    """CPU cores reserved for a sampler; on cpu also its threads."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the compute weights of trainers and samplers; masters are always float32. Auto is that of `local`."""
    zero_stage: Literal[1, 2, 3] = 2
    """What DeepSpeed spreads over the ranks: 1 the optimizer's state, 2 also gradients, 3 also weights."""
    offload: Literal["none", "optimizer", "parameters"] = "none"
    """Keep the optimizer's state, or with zero_stage 3 also the weights, in the memory of the machine, not the GPU."""
    logits_tile_tokens: PositiveInt = 1024
    """Tokens in one tile of logits."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, a third more time."""
    kv_cache_gb: PositiveFloat = 4.0
    """Memory of a sampler on a cpu for keys and values, in GiB. On a GPU, vllm.gpu_memory_utilization decides."""
    max_num_seqs: PositiveInt = 256
    """Most completions that one sampler draws at a time."""
    weight_sync: Literal["auto", "shared_memory", "cuda_ipc", "nccl"] = "auto"
    """How weights reach the samplers: within a GPU (cuda_ipc), from GPU to GPU (nccl), or as safetensors in the
    machine's shared memory, and through Ray's object store to other machines. Auto is cuda_ipc when colocated on GPUs,
    nccl when apart, shared_memory on cpu."""
    sync_check_every: PositiveInt = 10
    """Every sync compares names, shapes and checksums; the first ten, and from then on every so many, also compare
    the sampler's log-probs of a fixed text with the trainer's."""
    deepspeed: dict[str, Any] = Field(default={})
    """More of DeepSpeed's config, merged over rlctl's; what would change a result is refused."""
    vllm: dict[str, Any] = Field(default={})
    """More of vLLM's engine arguments, by its names; what rlctl must decide itself is refused."""
    actor_output: bool = False
    """Show what the actors' processes print, vLLM's and DeepSpeed's own words among it, on standard error."""
    start_timeout_s: PositiveFloat = 600.0
    """Seconds until all actors must be there and hold the model."""
    stall_notice_s: PositiveFloat = 30.0
    """Seconds after which a wait says who is waited for, and again each so many."""

    @field_validator("deepspeed")
    @classmethod
    def deepspeed_keys_are_not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        unknown = [key for key in value if key not in DEEPSPEED_KEYS | OUR_DEEPSPEED_KEYS.keys()]
        if unknown:
            near = did_you_mean(unknown[0], sorted(DEEPSPEED_KEYS))
            raise ValueError(f"{unknown[0]} is not one of {', '.join(sorted(DEEPSPEED_KEYS))}.{near}")
        return _not_ours(value, OUR_DEEPSPEED_KEYS)

    @field_validator("vllm")
    @classmethod
    def vllm_keys_are_not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _not_ours(value, OUR_VLLM_KEYS)

    @model_validator(mode="after")
    def parameters_are_offloaded_by_stage_3(self) -> RaySettings:
        if self.offload == "parameters" and self.zero_stage != 3:
            raise ValueError('offload = "parameters" needs zero_stage = 3')
        return self

    @model_validator(mode="after")
    def rollout_engine_is_known(self) -> RaySettings:
        from rlctl.backends.ray.rollout_engines import ENGINES

        if self.rollout_engine not in ENGINES:
            near = did_you_mean(self.rollout_engine, ENGINES)
            raise ValueError(f"rollout_engine {self.rollout_engine!r} is not one of {', '.join(ENGINES)}.{near}")
        return self


def _not_ours(value: dict[str, Any], ours: dict[str, str]) -> dict[str, Any]:
    taken = [f"{key} is set by rlctl: {ours[key]}" for key in value if key in ours]
    if taken:
        raise ValueError("; ".join(taken))
    return value
