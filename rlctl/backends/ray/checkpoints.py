"""What a trainer writes and reads: the same files as the local backend's, whole, whatever the number of ranks.

`trainer.pt` holds float32 masters by name, AdamW's state dict in the order of those names, the number of updates and
torch's random state; so a run may go on with another number of ranks, another ZeRO stage, or another backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlctl.backends.ray import zero
from rlctl.engine import lora
from rlctl.engine.limits import name_dtype
from rlctl.errors import CheckpointError
from rlctl.types import JobSpec, LossSpec

NO_LOSS = LossSpec(
    clip_ratio_low=0.2,
    clip_ratio_high=0.2,
    clip_ratio_c=None,
    kl_coef=0.0,
    kl_estimator="k3",
    entropy_coeff=0.0,
    loss_agg_mode="token-mean",
    max_response_length=1,
)
"""Any loss will do for a micro-batch of weight zero."""


def trainer_state(
    masters: dict[str, Tensor], moments: dict[str, dict[str, Tensor]], *, job: JobSpec, version: int, lr: float
) -> dict[str, Any]:
    """The content of `trainer.pt`; no moments before the first update."""
    adamw = torch.optim.AdamW(
        [nn.Parameter(torch.zeros(0)) for _ in masters], lr=lr, betas=job.betas, weight_decay=job.weight_decay
    ).state_dict()
    adamw["state"] = {
        i: {"step": torch.tensor(float(version)), **moments[name]} for i, name in enumerate(masters) if moments
    }
    return {"masters": masters, "adamw": adamw, "version": version, "rng": torch.get_rng_state()}


@dataclass(frozen=True, slots=True)
class Content:
    """What a checkpoint holds, in memory of its own: the weights of a plain model, LoRA's factors, `trainer.pt`."""

    weights: dict[str, Tensor]
    adapter: dict[str, Tensor] | None
    trainer: dict[str, Any]


def content(causal_lm: Any, *, weights: dict[str, Tensor], trainer: dict[str, Any], job: JobSpec) -> Content:
    """Copy what further updates change; the tensors of `trainer` are copies already."""
    if job.lora is None:
        return Content(_copied(weights), None, trainer)
    return Content(_copied(lora.merged_state(causal_lm)), _copied(lora.adapter_state(causal_lm)), trainer)


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU; tied weights stay tied."""
    made: dict[int, Tensor] = {}
    for tensor in state.values():
        if tensor.data_ptr() not in made:
            made[tensor.data_ptr()] = tensor.detach().to("cpu", copy=True)
    return {name: made[tensor.data_ptr()] for name, tensor in state.items()}


def write(path: Path, causal_lm: Any, content: Content) -> None:
    """The Hugging Face folder with `trainer.pt` beside it. Raises CheckpointError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        causal_lm.save_pretrained(path, state_dict=dict(content.weights))
        if content.adapter is not None:
            lora.save_adapter(causal_lm, path / "adapter", state=content.adapter)
        name_dtype(path / "config.json", next(iter(content.weights.values())).dtype)
        torch.save(content.trainer, path / "trainer.pt")
    except (OSError, RuntimeError) as error:
        # torch reports a full disk as RuntimeError.
        raise CheckpointError(f"{path} cannot be written: {error}.") from error


def merged(causal_lm: nn.Module, named: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """The weights of a plain model that computes what the one with LoRA factors does; tied ones once."""
    state = {name: tensor.cpu() for name, tensor in lora.merged_state(causal_lm).items()}
    names = {name.replace(".base_layer.", ".") for name in named if ".lora_" not in name}
    return {name: tensor for name, tensor in state.items() if name in names}


def restore_moments(engine: Any, trained: dict[str, nn.Parameter], state: dict[str, Any]) -> None:
    """Take moments, counts and random state back; moments of a run without an update are zero."""
    saved = state["adamw"]["state"]
    moments = {
        name: {key: saved[i][key] if saved else torch.zeros_like(state["masters"][name]) for key in zero.MOMENTS}
        for i, name in enumerate(trained)
    }
    zero.set_moments(trained, moments)
    zero.set_step_count(engine, int(saved[0]["step"]) if saved else 0)
    torch.set_rng_state(state["rng"].cpu())
