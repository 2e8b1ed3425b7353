"""The actor of one DeepSpeed rank: it meets the others, loads the model, and gives its weights away and back.

Runs in a Ray actor, one call at a time. All ranks get each call together. What they compute is `sharded.py`.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import ray.util
import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlctl.backends.ray import checkpoints, model_config, sync, transfer, zero
from rlctl.backends.ray.extensions import building
from rlctl.backends.ray.guard import Guard
from rlctl.backends.ray.settings import RaySettings
from rlctl.backends.ray.sharded import Rank, ShardedPolicy
from rlctl.backends.ray.stacks import Whereabouts, whereabouts
from rlctl.engine import lora
from rlctl.engine.limits import compute_dtype, must_fit_context
from rlctl.engine.model import Policy, load_policy, wrap
from rlctl.engine.peak import device_peak
from rlctl.errors import CheckpointError, NonFiniteWeights
from rlctl.perf import ModelShape
from rlctl.types import BackendInfo, JobSpec, LogProbs, LossSpec, LossStats, OptimStats, TrainRow


@dataclass(frozen=True, slots=True)
class Started:
    """What a rank tells of the model when it holds it."""

    info: BackendInfo
    shape: ModelShape | None


class TrainerRank:
    """The methods of a trainer actor; each is called on all ranks together."""

    def __init__(self, settings: RaySettings, job: JobSpec, rank: Rank) -> None:
        self.settings, self.job, self.rank = settings, job, rank
        self.folder = sync.folder_of(rank.run_id, who=f"{rank.name} {os.getpid()}")
        self.guard = Guard(self.folder)
        self.sender: transfer.Sender | None = None
        self.copied: checkpoints.Content | None = None

    def whereabouts(self) -> Whereabouts:
        """The machine and process of this actor, which from now on tells its stacks."""
        return whereabouts()

    def visible_devices(self) -> str:
        """The GPUs that Ray has given to this rank, as CUDA_VISIBLE_DEVICES names them."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def check(self) -> str:
        """The name of the compute dtype. Raises ConfigError, ModelError before anything is loaded."""
        zero.check_config(self.settings)
        config = model_config.read(self.job.model)
        must_fit_context(config, self.job.max_prompt_length + self.job.max_response_length)
        num_parameters = model_config.num_parameters(config)
        dtype = compute_dtype(self.settings.dtype, torch.device(self.rank.device), num_parameters)
        return str(dtype).removeprefix("torch.")

    def open_store(self) -> tuple[str, int]:
        """Rank 0 listens on a port that the system chooses, for the ranks to meet at: (its machine, the port)."""
        host = ray.util.get_node_ip_address()
        self.store = TCPStore(host, 0, self.rank.world, is_master=True, wait_for_workers=False)
        return host, self.store.port

    def start(self, address: tuple[str, int], dtype: str) -> Started:
        """Meet the other ranks, load the model and shard it. Raises ModelError, ConfigError."""
        torch.set_num_threads(self.rank.threads)
        self.device = _device(self.rank)
        self.dtype = getattr(torch, dtype)
        self._join(address)
        policy = load_policy(self.job.model, device=torch.device("cpu"))
        num_parameters = sum(p.numel() for p in policy.causal_lm.parameters())
        if self.job.lora is not None:
            lora.inject(policy.causal_lm, self.job.lora)
            policy = wrap(policy.causal_lm)
        # Before ZeRO-3 cuts the head, whose rows are the vocabulary.
        started = Started(self._info(policy, num_parameters), policy.shape)
        self.sharded = ShardedPolicy(
            policy, settings=self.settings, job=self.job, rank=self.rank, device=self.device, dtype=self.dtype
        )
        if self.job.needs_reference and self.job.lora is None:
            self.sharded.add_reference(load_policy(self.job.model, device=torch.device("cpu")))
        return started

    def log_probs(self, rows: list[TrainRow], *, reference: bool, temperature: float | None = None) -> list[LogProbs]:
        return self.sharded.log_probs(rows, reference=reference, temperature=temperature)

    def forward_backward(self, rows: list[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        return self.sharded.forward_backward(rows, loss=loss, loss_denominator=loss_denominator)

    def optim_step(self, lr: float) -> OptimStats:
        return self.sharded.optim_step(lr)

    def _join(self, address: tuple[str, int]) -> None:
        import deepspeed

        rank = self.rank
        os.environ |= {"RANK": str(rank.rank), "WORLD_SIZE": str(rank.world), "LOCAL_RANK": "0"}
        if rank.rank:
            self.store = TCPStore(*address, rank.world, is_master=False)
        torch.distributed.init_process_group(
            "nccl" if rank.device == "cuda" else "gloo",
            store=self.store,
            rank=rank.rank,
            world_size=rank.world,
            timeout=timedelta(seconds=self.settings.request_timeout_s),
        )
        with building():
            deepspeed.init_distributed(dist_init_required=False)

    def _info(self, policy: Policy, num_parameters: int) -> BackendInfo:
        peak, source = device_peak(self.device, self.dtype) if self.rank.rank == 0 else (None, "rank 0 knows")
        known = policy.shape is not None
        return BackendInfo(
            device=torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            num_devices=self.rank.world,
            dtype=str(self.dtype).removeprefix("torch."),
            peak_flops=peak if known else None,
            peak_source=source if known else policy.shape_note,
            vocab_size=policy.vocab_size,
            num_parameters=num_parameters,
            max_context=policy.max_context,
        )

    def export(self) -> sync.Tensors | None:
        """Write the whole compute weights, LoRA merged, into this machine's shared memory; rank 0 tells where."""
        weights = self._plain_weights()
        if self.rank.rank:
            zero.collected(weights, keep=False)
            return None
        return sync.write(self.folder, weights, version=self.sharded.version)

    def _plain_weights(self, *, on: str = "cpu") -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor on that device) under the names of the Hugging Face checkpoint."""
        if self.job.lora is None:
            return zero.full_weights(self.sharded.named, on=on)
        merged = checkpoints.merged(self.sharded.policy.causal_lm, self.sharded.named)
        return ((name, tensor.to(on)) for name, tensor in merged.items())

    def forms(self) -> sync.Manifest:
        """Names, shapes and dtypes of what `send` sends, in its order."""
        return {name: sync.record_of(tensor, checksum=False) for name, tensor in self._plain_weights(on="meta")}

    def open_transfer(self, chosen: transfer.Way, samplers: list[Any]) -> None:
        """Meet the samplers for weights that go from GPU to GPU; with NCCL, all of them at once."""
        self.sender = transfer.Sender(
            chosen,
            settings=self.settings,
            rank=self.rank.rank,
            samplers=samplers,
            forms=self.forms(),
            weights=lambda: self._plain_weights(on="cuda"),
        )

    def send(self) -> int:
        """Send the whole compute weights to the samplers; the number of this version."""
        assert self.sender is not None, "open_transfer comes first"
        self.sender.send()
        return self.sharded.version

    def content(self, file: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A written file, for a machine that does not share this one's memory."""
        return np.fromfile(file, dtype=np.uint8)

    def discard(self) -> None:
        """Remove what `export` wrote."""
        for file in self.folder.glob("*.safetensors"):
            file.unlink(missing_ok=True)

    def copy(self) -> None:
        """Gather model and optimizer, whole, so that any number of ranks can load them; rank 0 keeps the copy."""
        if not self.sharded.all_finite():
            raise NonFiniteWeights(
                "a weight is not finite, so nothing was saved.", hint="earlier checkpoints are untouched."
            )
        keep = self.rank.rank == 0
        weights = zero.collected(zero.full_weights(self.sharded.named), keep=keep)
        masters = zero.collected(zero.full_masters(self.sharded.trained), keep=keep)
        moments = zero.collected(zero.full_moments(self.sharded.trained), keep=keep) if self.sharded.version else {}
        if keep:
            lr = float(self.sharded.engine.optimizer.param_groups[0]["lr"])
            state = checkpoints.trainer_state(masters, moments, job=self.job, version=self.sharded.version, lr=lr)
            causal_lm = self.sharded.policy.causal_lm
            self.copied = checkpoints.content(causal_lm, weights=weights, trainer=state, job=self.job)

    def write(self, path: Path) -> None:
        """Write the copy that `copy` made, on rank 0, and let it go. Raises CheckpointError."""
        assert self.copied is not None, "copy comes first"
        content, self.copied = self.copied, None
        checkpoints.write(path, self.sharded.policy.causal_lm, content)

    def load(self, path: Path) -> None:
        """Continue from what `save` wrote, here or by the local backend, with any number of ranks."""
        try:
            state = torch.load(path / "trainer.pt", map_location="cpu", weights_only=True, mmap=True)
            self.sharded.take_masters(state["masters"])
            checkpoints.restore_moments(self.sharded.engine, self.sharded.trained, state)
            self.sharded.version = int(state["version"])
        except (OSError, RuntimeError, KeyError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(
                f"{path} cannot be read: {type(error).__name__}: {str(error).splitlines()[0]}",
                hint="every machine with a trainer rank must see the checkpoint under this path.",
            ) from error

    def close(self) -> None:
        """Leave the process group and clear up."""
        self.guard.release()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _device(rank: Rank) -> torch.device:
    """Ray shows an actor its own devices only, so a rank's is always the first."""
    if rank.device == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)
