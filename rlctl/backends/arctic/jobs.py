"""Settings and job -> the configurations of the platform's engines, as plain JSON values.

An update's rows are cut over the ranks, and each rank cuts its own into as many micro-batches as DeepSpeed
accumulates over: both counts are fixed when the job is created, so they follow from the run's plan.
"""

from __future__ import annotations

import math
from typing import Any

from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.types import JobSpec, UpdatePlan

Config = dict[str, Any]


def accumulation_steps(settings: ArcticSettings, job: JobSpec) -> int:
    """Micro-batches of one update on each rank. Without a plan all rows go into one."""
    if job.plan is None:
        return 1
    return _rows_per_rank(settings, job.plan) // micro_batch_size(settings, job)


def micro_batch_size(settings: ArcticSettings, job: JobSpec) -> int:
    """Rows of a micro-batch: as set, else the most that fit and that divide a rank's rows."""
    if settings.micro_batch_size is not None:
        return settings.micro_batch_size
    if job.plan is None:
        return 1
    rows = _rows_per_rank(settings, job.plan)
    return max(size for size in range(1, min(_fitting(settings, job), rows) + 1) if rows % size == 0)


def rows_per_scoring(settings: ArcticSettings, job: JobSpec, *, reference: bool) -> int | None:
    """Most rows of one scoring call, so that no micro-batch of it is larger than one of an update.

    The training engine cuts a call into the micro-batches of its updates, however many rows it has. The reference's
    accumulates nothing: whatever a rank gets is one micro-batch. None, all rows at once, where there is no plan.
    """
    if job.plan is None and settings.micro_batch_size is None:
        return None
    if job.plan is not None and not reference:
        return job.plan.rows_per_update
    ranks = log_prob_gpus(settings, job) if reference else settings.training_gpus
    return max(1, ranks) * (settings.micro_batch_size or _fitting(settings, job))


def _fitting(settings: ArcticSettings, job: JobSpec) -> int:
    """Rows that a micro-batch may have: those that the token budget holds, or one if rows would see each other."""
    if mixes_rows(settings):
        return 1
    return max(1, job.max_tokens_per_device // (job.max_prompt_length + job.max_response_length))


def mixes_rows(settings: ArcticSettings) -> bool:
    """Whether rows of one micro-batch, which the platform joins to one sequence, see each other.

    Only flash attention keeps them apart, by their positions; shared prompts have an attention of their own.
    """
    return "flash" not in settings.attn_implementation and not settings.zorro_train


def _rows_per_rank(settings: ArcticSettings, plan: UpdatePlan) -> int:
    return plan.rows_per_update // settings.training_gpus


def deepspeed_config(settings: ArcticSettings, job: JobSpec) -> Config:
    """DeepSpeed's own configuration of the training engine."""
    micro, steps = micro_batch_size(settings, job), accumulation_steps(settings, job)
    config: Config = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
        "train_batch_size": micro * steps * settings.training_gpus,
        "gradient_clipping": job.grad_clip,
        "zero_optimization": _zero(settings),
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": job.plan.lr if job.plan else 0.0,
                "betas": list(job.betas),
                "eps": 1e-8,
                "weight_decay": job.weight_decay,
            },
        },
    }
    schedule = scheduler(job.plan) if job.plan else None
    if schedule is not None:
        config["scheduler"] = schedule
    return merged(config, settings.deepspeed)


def _zero(settings: ArcticSettings) -> Config:
    zero: Config = {"stage": settings.zero_stage}
    if settings.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if settings.offload_param:
        zero["offload_param"] = {"device": "cpu"}
    return zero


def scheduler(plan: UpdatePlan) -> Config | None:
    """DeepSpeed's schedule nearest to the run's; None for a constant rate.

    The platform steps it itself and ignores the rate of a call. DeepSpeed's warm-ups begin at 0 and last for two
    updates at least; rlctl's of one update is none.
    Source: https://deepspeed.readthedocs.io/en/latest/schedulers.html
    """
    updates = plan.steps * plan.updates_per_step
    warmup = math.ceil(plan.warmup_ratio * plan.steps) * plan.updates_per_step
    if plan.lr_schedule == "cosine":
        params = {"total_num_steps": updates, "warmup_num_steps": warmup, "warmup_min_ratio": 0.0, "cos_min_ratio": 0.0}
        return {"type": "WarmupCosineLR", "params": {**params, "warmup_type": "linear"}}
    ramp = {"warmup_min_lr": 0.0, "warmup_max_lr": plan.lr, "warmup_num_steps": warmup, "warmup_type": "linear"}
    if plan.lr_schedule == "linear":
        return {"type": "WarmupDecayLR", "params": {"total_num_steps": updates, **ramp}}
    return {"type": "WarmupLR", "params": ramp} if warmup > 1 else None


def worker_config(settings: ArcticSettings, job: JobSpec) -> Config:
    """What the platform's training worker is told beside DeepSpeed's configuration."""
    config: Config = {
        "attn_implementation": settings.attn_implementation,
        "enable_gradient_checkpointing": settings.gradient_checkpointing,
        "use_liger": settings.use_liger,
        "zorro_train_enable": settings.zorro_train,
        **logits(settings),
    }
    if settings.zorro_train:
        config |= {
            "response_len": job.max_response_length,
            "max_token_len": job.max_tokens_per_device,
            "rollout_n": group_size(job),
            "temperature": job.temperature,
            "use_unpad": True,
            "logits_compute_from_fp32_inputs": settings.logits_from_float32,
        }
    return config


def logits(settings: ArcticSettings) -> Config:
    """How logits are computed, under the names that the worker and a batch's meta both have for it."""
    return {
        "logits_optimization": settings.logits_optimization,
        "logits_optimization_peak_mem_size_in_gib": settings.logits_peak_memory_gb,
        "logits_compute_in_fp32": settings.logits_in_float32,
    }


def group_size(job: JobSpec) -> int:
    return job.plan.group_size if job.plan else 1


def vllm_config(settings: ArcticSettings, job: JobSpec) -> Config:
    """vLLM's engine arguments of the sampler."""
    config: Config = {
        "tensor_parallel_size": settings.sampling_tp_size,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "max_model_len": job.max_prompt_length + job.max_response_length,
        "max_num_seqs": settings.max_num_seqs,
        "enforce_eager": settings.enforce_eager,
        "enable_chunked_prefill": True,
    }
    if job.temperature != 1:
        # vLLM's own default are log-probs before the division by the temperature.
        config["logprobs_mode"] = "processed_logprobs"
    return merged(config, settings.vllm)


def inference_config(settings: ArcticSettings) -> Config:
    """What Arctic Inference adds to the sampler."""
    return {
        "zorro_inference": {"enable": settings.zorro_inference},
        "speculative_decoding": {"model": settings.speculative_model},
    }


def log_prob_config(settings: ArcticSettings) -> Config:
    """DeepSpeed's configuration of the engine that holds the reference: forward only, nothing accumulated."""
    zero = {"stage": settings.zero_stage} | ({"offload_param": {"device": "cpu"}} if settings.offload_param else {})
    return {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}


def log_prob_gpus(settings: ArcticSettings, job: JobSpec) -> int:
    return int(job.needs_reference) if settings.log_prob_gpus is None else settings.log_prob_gpus


def merged(base: Config, over: Config) -> Config:
    """`base` with what `over` says instead, table by table."""
    both = {name: merged(base[name], over[name]) for name in base.keys() & over.keys() if _tables(base, over, name)}
    return {**base, **over, **both}


def _tables(base: Config, over: Config, name: str) -> bool:
    return isinstance(base[name], dict) and isinstance(over[name], dict)
