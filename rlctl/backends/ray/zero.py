"""DeepSpeed as it is used here: its config, its engine, and full tensors in and out of whatever it has sharded.

DeepSpeed averages gradients over ranks; the loss is multiplied by their number, so that what it steps on is the sum.
`managed_gradient_accumulation = false` makes `step()` alone end an accumulation, since how many micro-batches an update
has is not known before. Everything here that touches a full tensor is a collective: all ranks must call it together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlctl.backends.ray.installed import import_deepspeed
from rlctl.backends.ray.settings import RaySettings
from rlctl.errors import ConfigError
from rlctl.presets import did_you_mean
from rlctl.types import JobSpec

T = TypeVar("T")


def config(settings: RaySettings, job: JobSpec, *, dtype: torch.dtype) -> dict[str, Any]:
    """DeepSpeed's config for a rank; the user's `deepspeed` table is merged over it."""
    zero: dict[str, Any] = {"stage": settings.zero_stage, "overlap_comm": False}
    if settings.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if settings.offload == "parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    ours = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": job.grad_clip,
        "bf16": {"enabled": dtype == torch.bfloat16},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "steps_per_print": 2**31,
        "zero_optimization": zero,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": 0.0,
                "betas": list(job.betas),
                "weight_decay": job.weight_decay,
                # Offloaded, DeepSpeed's own kernel for a CPU is several times as fast.
                "torch_adam": settings.offload == "none",
                "adam_w_mode": True,
            },
        },
    }
    return _merged(ours, settings.deepspeed)


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {k: _merged(under[k], v) for k, v in over.items() if isinstance(v, dict) and isinstance(under.get(k), dict)}
    return {**under, **over, **both}


def check_config(settings: RaySettings) -> None:
    """Raises ConfigError for a `zero_optimization` that DeepSpeed does not know, BackendUnavailable without it."""
    import_deepspeed()
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from pydantic import ValidationError

    wanted = settings.deepspeed.get("zero_optimization", {})
    known = [name for field, info in DeepSpeedZeroConfig.model_fields.items() for name in (info.alias, field) if name]
    where = "remote_backend.ray.deepspeed.zero_optimization"
    if not isinstance(wanted, dict):
        raise ConfigError(f"{where} = {wanted!r} must be a table.")
    for key in wanted:
        if key not in known:
            raise ConfigError(f"{where}.{key} is not one of DeepSpeed's.{did_you_mean(key, known)}")
    if "stage" in wanted:
        raise ConfigError(f"{where}.stage is set by rlctl: set remote_backend.ray.zero_stage.")
    try:
        DeepSpeedZeroConfig(**wanted)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{where}.{'.'.join(map(str, first['loc']))}: {first['msg']}.") from error


def initialize(module: nn.Module, settings: dict[str, Any]) -> Any:
    """The DeepSpeed engine around a module; `settings` without an optimizer shards it for forward passes alone.

    DeepSpeed turns buffers to bfloat16 with the weights, and rotary frequencies with them: 8 bits of a position. They
    are put back as they were.
    """
    import deepspeed

    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    trained = [p for p in module.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=module, config=settings, model_parameters=trained if "optimizer" in settings else None
    )
    for name, buffer in module.named_buffers():
        buffer.data = buffers[name].to(buffer.device)
    return engine


def forward_only(settings: dict[str, Any]) -> dict[str, Any]:
    """The config of a model that is never trained, with its weights sharded as in stage 3."""
    kept = {key: value for key, value in settings.items() if key in ("train_micro_batch_size_per_gpu", "bf16")}
    offload = settings["zero_optimization"].get("offload_param")
    return {**kept, "zero_optimization": {"stage": 3} | ({"offload_param": offload} if offload else {})}


def own_share(parameters: list[Any], *, rank: int, world: int) -> list[tuple[int, Tensor]]:
    """(position, values) of the compute weights this rank answers for: its shards, or every world-th parameter."""
    if parameters and hasattr(parameters[0], "ds_tensor"):
        return [(i, p.ds_tensor.data) for i, p in enumerate(parameters)]
    return [(i, p.data) for i, p in enumerate(parameters) if i % world == rank]


def collected(pairs: Iterator[tuple[str, T]], *, keep: bool) -> dict[str, T]:
    """The pairs as a dict; without `keep` they are gone through, as the collectives need, and dropped one by one."""
    kept = {}
    for name, value in pairs:
        if keep:
            kept[name] = value
    return kept


def full_weights(named: dict[str, nn.Parameter], *, on: str = "cpu") -> Iterator[tuple[str, Tensor]]:
    """(name, whole compute weight on that device), one after the other."""
    import deepspeed

    for name, p in named.items():
        if hasattr(p, "ds_tensor"):
            with deepspeed.zero.GatheredParameters([p]):
                yield name, p.detach().to(on, copy=True)
        else:
            yield name, p.detach().to(on)


def full_masters(named: dict[str, nn.Parameter]) -> Iterator[tuple[str, Tensor]]:
    """(name, whole float32 master on the CPU)."""
    from deepspeed.utils import safe_get_full_fp32_param

    for name, p in named.items():
        yield name, safe_get_full_fp32_param(p).detach().cpu().float().clone()


def set_masters(named: dict[str, nn.Parameter], masters: dict[str, Tensor]) -> None:
    """Write whole float32 masters; the compute weights follow with the next update."""
    from deepspeed.utils import safe_set_full_fp32_param

    for name, p in named.items():
        safe_set_full_fp32_param(p, masters[name].to(p.device))


MOMENTS = ("exp_avg", "exp_avg_sq")


def full_moments(named: dict[str, nn.Parameter]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """(name, AdamW's two whole moments on the CPU); needs an update before, which makes them."""
    from deepspeed.utils import safe_get_full_optimizer_state

    for name, p in named.items():
        yield name, {key: safe_get_full_optimizer_state(p, key).detach().cpu().float().clone() for key in MOMENTS}


def set_moments(named: dict[str, nn.Parameter], moments: dict[str, dict[str, Tensor]]) -> None:
    """Write AdamW's two whole moments; needs an update before, which makes room for them."""
    from deepspeed.utils import safe_set_full_optimizer_state

    for name, p in named.items():
        for key in MOMENTS:
            safe_set_full_optimizer_state(p, moments[name][key].to(p.device), key)


def set_step_count(engine: Any, steps: int) -> None:
    """The number of updates that AdamW's bias correction counts."""
    for state in engine.optimizer.optimizer.state.values():
        state["step"] = torch.tensor(float(steps)) if isinstance(state["step"], Tensor) else steps


def set_lr(engine: Any, lr: float) -> None:
    for group in engine.optimizer.param_groups:
        group["lr"] = lr
