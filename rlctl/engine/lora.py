"""LoRA by peft: small trained factors beside frozen weights, W x + (alpha / rank) B A x.

The factors are injected into the transformers module, so sampling, training and scoring are the code of every other
model; the reference policy is the same module with its factors switched off. Source: https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlctl.errors import BackendUnavailable, ModelError
from rlctl.types import LoraSpec

SEED = 0
"""Of the factors' random start. It decides nothing that a run's seed should: B is zero, so the start has no effect."""


def inject(causal_lm: nn.Module, spec: LoraSpec) -> None:
    """Freeze the model and add factors of that rank, at first without effect. Raises ModelError, BackendUnavailable."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise BackendUnavailable(
            f"model.lora.rank = {spec.rank} needs peft, which is not installed.", hint="pip install 'rlctl[lora]'"
        ) from error
    targets = "all-linear" if spec.target_modules == ("all-linear",) else _present(causal_lm, spec.target_modules)
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        # What AutoPeftModelForCausalLM loads beneath a saved adapter: the folder or hub id that this was loaded from.
        base_model_name_or_path=getattr(causal_lm, "name_or_path", None) or None,
    )
    if targets == "all-linear":
        # Injection, unlike get_peft_model, does not know the word.
        config.target_modules = sorted({name.rsplit(".", 1)[-1] for name, _ in _linears(causal_lm)})
    # The same start in every process and every run: ranks must agree, and a seeded run must repeat.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        inject_adapter_in_model(config, causal_lm)
    causal_lm.eval()


def _linears(causal_lm: Any) -> list[tuple[str, nn.Module]]:
    """The matrix products inside the layers; the output head stays as it is."""
    return [(name, m) for name, m in causal_lm.base_model.named_modules() if isinstance(m, nn.Linear)]


def _present(causal_lm: nn.Module, wanted: tuple[str, ...]) -> list[str]:
    known = sorted({name.rsplit(".", 1)[-1] for name, _ in _linears(causal_lm)})
    missing = [name for name in wanted if name not in known]
    if missing:
        raise ModelError(
            f"model.lora.target_modules names {', '.join(missing)}, which this model has not.",
            hint=f"it has {', '.join(known)}; all-linear takes them all.",
        )
    return list(wanted)


def layers(causal_lm: nn.Module) -> dict[str, Any]:
    """Every linear layer with factors, by the name it had without."""
    from peft.tuners.lora import LoraLayer

    return {name: m for name, m in causal_lm.named_modules() if isinstance(m, LoraLayer)}


@contextmanager
def switched_off(causal_lm: nn.Module) -> Iterator[None]:
    """Inside, the model is the one that was loaded."""
    with_factors = layers(causal_lm).values()
    for layer in with_factors:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in with_factors:
            layer.enable_adapters(True)


@torch.no_grad()
def merged_state(causal_lm: nn.Module) -> dict[str, Tensor]:
    """The weights of a plain model that computes the same, under its own names."""
    merged = {}
    with_factors = layers(causal_lm)
    for name, tensor in causal_lm.state_dict().items():
        owner, _, leaf = name.partition(".base_layer.")
        if owner in with_factors and leaf:
            delta = with_factors[owner].get_delta_weight("default") if leaf == "weight" else 0.0
            merged[f"{owner}.{leaf}"] = (tensor.float() + delta).to(tensor.dtype)
        elif ".lora_" not in name:
            merged[name] = tensor
    return merged


def adapter_state(causal_lm: Any) -> dict[str, Tensor]:
    """The factors alone, under the names that peft gives them."""
    from peft import get_peft_model_state_dict

    return {f"base_model.model.{name}": t.contiguous() for name, t in get_peft_model_state_dict(causal_lm).items()}


def save_adapter(causal_lm: Any, folder: Path, *, state: dict[str, Tensor] | None = None) -> None:
    """Write the factors, or those of `state`, as PeftModel.from_pretrained loads them."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = causal_lm.peft_config["default"]
    factors = adapter_state(causal_lm) if state is None else state
    save_file(factors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    content = {**config.to_dict(), "inference_mode": True}
    (folder / "adapter_config.json").write_text(json.dumps(content, indent=2, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else str(value)
