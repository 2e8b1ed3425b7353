"""A copy of the model and its optimizer, to be written as a checkpoint while training goes on.

`trainer.pt` holds float32 masters by name, AdamW's state dict, the number of updates and torch's random state; beside
it stands a Hugging Face folder of the compute weights. The copy lies in host memory: no more than masters, two moments
and compute weights of other types than float32.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlctl import durable
from rlctl.engine import lora
from rlctl.engine.limits import name_dtype
from rlctl.engine.optimizer import MasterOptimizer

TRAINER = "trainer.pt"


@dataclass(frozen=True, slots=True)
class LocalSnapshot:
    """What a checkpoint will hold; `adapter` are the factors of LoRA, None without."""

    causal_lm: Any
    dtype: torch.dtype
    weights: dict[str, Tensor]
    adapter: dict[str, Tensor] | None
    trainer: dict[str, Any]

    def write(self, path: Path) -> Mapping[str, str]:
        from safetensors import SafetensorError

        try:
            path.mkdir(parents=True, exist_ok=True)
            self.causal_lm.save_pretrained(path, state_dict=dict(self.weights))
            if self.adapter is not None:
                lora.save_adapter(self.causal_lm, path / "adapter", state=self.adapter)
            name_dtype(path / "config.json", self.dtype)
            with durable.hashed(path / TRAINER) as file:
                torch.save(self.trainer, file)  # type: ignore[arg-type]  # it writes and flushes, no more
            must_be_whole(path)
        except (RuntimeError, SafetensorError, ValueError) as error:
            # What torch and safetensors make of a full disk, and what a file that was cut short is to a JSON reader.
            raise OSError((str(error) or type(error).__name__).splitlines()[0]) from error
        return {TRAINER: file.sha256}


def take(causal_lm: Any, optimizer: MasterOptimizer, *, dtype: torch.dtype, with_lora: bool) -> LocalSnapshot:
    """Copy what training changes; frozen weights are the model's own."""
    copied = _Copies()
    masters = {name: copied(tensor) for name, tensor in optimizer.master_state().items()}
    trained = dict(zip(optimizer.names, optimizer.compute, strict=True))
    for name, p in trained.items():
        if p.dtype == torch.float32:
            # The compute weights are the masters, to the bit.
            copied.same(p, masters[name])
    state = lora.merged_state(causal_lm) if with_lora else causal_lm.state_dict()
    changing = {p.data_ptr() for p in trained.values()}
    weights = {name: copied(t) if t.data_ptr() in changing else t for name, t in state.items()}
    trainer = {"masters": masters, **_copied(optimizer.state(), copied), "rng": torch.get_rng_state()}
    adapter = {name: copied(t) for name, t in lora.adapter_state(causal_lm).items()} if with_lora else None
    return LocalSnapshot(causal_lm, dtype, weights, adapter, trainer)


class _Copies:
    """Copies in host memory, one for each storage: tied weights stay tied."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, torch.Size], Tensor] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        key = (tensor.data_ptr(), tensor.shape)
        if key not in self._made or not tensor.numel():
            self._made[key] = tensor.detach().to("cpu", copy=True)
        return self._made[key]

    def same(self, tensor: Tensor, made: Tensor) -> None:
        self._made[(tensor.data_ptr(), tensor.shape)] = made


def _copied(tree: Any, copied: _Copies) -> Any:
    if isinstance(tree, Tensor):
        return copied(tree)
    if isinstance(tree, dict):
        return {key: _copied(value, copied) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_copied(value, copied) for value in tree)
    return copy.copy(tree)


def must_be_whole(folder: Path) -> None:
    """Raises OSError when a file that a library wrote by itself is cut short."""
    from safetensors import safe_open

    for file in durable.files_in(folder):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="numpy"):  # its header tells the length of the whole
                pass
        elif file.suffix == ".json":
            try:
                json.loads(file.read_bytes())
            except ValueError as error:
                raise OSError(f"{file.name} does not read back as it was written") from error
