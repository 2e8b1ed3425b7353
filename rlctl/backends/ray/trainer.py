"""One DeepSpeed rank: micro-batches of its rows through the engine, and its part of every collective.

Runs in a Ray actor, one call at a time. All ranks get each call together. They agree on the number of micro-batches,
and a rank with fewer computes more of weight zero: ZeRO reduces and gathers in every pass, so the others would wait for
one that it left out.

Letters: R rows, C completion tokens of a row, T completion tokens of a micro-batch.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.util
import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlctl.backends.ray import checkpoints, model_config, sync, transfer, zero
from rlctl.backends.ray.guard import Guard
from rlctl.backends.ray.learner import HeadTask, Learner
from rlctl.backends.ray.settings import RaySettings
from rlctl.engine import lora
from rlctl.engine.checkpointing import checkpoint_layers
from rlctl.engine.limits import compute_dtype, max_memory_bytes, must_fit_context
from rlctl.engine.model import Policy, load_policy, wrap
from rlctl.engine.packing import PackedBatch, pack
from rlctl.engine.peak import device_peak
from rlctl.engine.update import Compute, TokenLoss, micro_batch_stats
from rlctl.errors import BackendError, CheckpointError
from rlctl.perf import ModelShape
from rlctl.types import BackendInfo, JobSpec, LogProbs, LossSpec, LossStats, OptimStats, TrainRow

_ONE = np.zeros(1, np.float32)
EMPTY = TrainRow(np.zeros(1, np.int32), np.zeros(1, np.int32), 0.0, _ONE, _ONE, _ONE)
"""The row of a micro-batch that is computed only because other ranks compute one."""


@dataclass(frozen=True, slots=True)
class Rank:
    """Which rank this is, and what it has."""

    rank: int
    world: int
    device: str
    threads: int
    run_id: str

    @property
    def name(self) -> str:
        return f"trainer rank {self.rank}"


@dataclass(frozen=True, slots=True)
class Started:
    """What a rank tells of the model when it holds it."""

    info: BackendInfo
    shape: ModelShape | None


class TrainerRank:
    """The methods of a trainer actor; each is called on all ranks together."""

    def __init__(self, settings: RaySettings, job: JobSpec, rank: Rank) -> None:
        self.settings, self.job, self.rank = settings, job, rank
        self.compute = Compute(
            temperature=job.temperature,
            max_tokens=job.max_tokens_per_device,
            tile_tokens=settings.logits_tile_tokens if settings.tiled_logits_compute else None,
        )
        self.folder = sync.folder_of(rank.run_id, who=f"{rank.name} {os.getpid()}")
        self.guard = Guard(self.folder)
        self.version = 0
        self.reference: Any = None
        self.sender: transfer.Sender | None = None

    def machine(self) -> str:
        """Ray's name of the machine this actor runs on."""
        node: str = ray.get_runtime_context().get_node_id()
        return node

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
        self._shard(policy)
        if self.job.needs_reference and self.job.lora is None:
            self._load_reference()
        return started

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

    def _shard(self, policy: Policy) -> None:
        self.policy = policy
        causal_lm: Any = policy.causal_lm
        self.trained = {name: p for name, p in causal_lm.named_parameters() if p.requires_grad}
        # DeepSpeed makes its masters from weights that it has rounded; these are what the model's files hold.
        masters = {name: p.detach().float().clone() for name, p in self.trained.items()}
        if self.settings.gradient_checkpointing:
            policy = self.policy = checkpoint_layers(policy)
        config = zero.config(self.settings, self.job, dtype=self.dtype)
        self.engine = zero.initialize(Learner(policy), config)
        self.named = dict(causal_lm.named_parameters())
        if self.dtype != torch.float32:
            zero.set_masters(self.trained, masters)

    def _load_reference(self) -> None:
        policy = load_policy(self.job.model, device=torch.device("cpu"))
        policy.causal_lm.requires_grad_(False)
        if self.settings.zero_stage == 3:
            config = zero.config(self.settings, self.job, dtype=self.dtype)
            self.reference = zero.initialize(Learner(policy), zero.forward_only(config))
        else:
            # Parameters alone: buffers, such as rotary frequencies, stay in float32.
            for p in policy.causal_lm.parameters():
                p.data = p.data.to(self.dtype)
            self.reference = Learner(policy).to(self.device)

    @torch.no_grad()
    def log_probs(self, rows: list[TrainRow], *, reference: bool, temperature: float | None = None) -> list[LogProbs]:
        """[R] rows -> [R] of [C], float32 nats; at the job's temperature unless another is given."""
        compute = self.compute if temperature is None else replace(self.compute, temperature=temperature)
        module = self.engine if not reference or self.job.lora is not None else self.reference
        result = [np.zeros(0, dtype=np.float32) for _ in rows]
        filled = [position for position, row in enumerate(rows) if len(row.completion_ids)]
        off = lora.switched_off(self.policy.causal_lm) if reference and self.job.lora is not None else nullcontext()
        with off:
            for batch in self._in_step([rows[position] for position in filled]):
                with ExitStack() as until_end:
                    logprobs_T = module(batch or _empty(), HeadTask(compute), until_end)
                if batch is not None:
                    ends = np.cumsum(batch.completion_lengths_R)[:-1]
                    for position, part in zip(batch.rows, np.split(logprobs_T.cpu().numpy(), ends), strict=True):
                        result[filled[position]] = part.copy()
        return result

    def forward_backward(self, rows: list[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        """Add the gradient of these rows to that of the update; see `Backend.forward_backward`."""
        stats = LossStats()
        filled = [row for row in rows if len(row.completion_ids)]
        for batch in self._in_step(filled):
            mine = [EMPTY] if batch is None else [filled[position] for position in batch.rows]
            done = self._micro_batch(batch or _empty(), mine, loss, loss_denominator)
            if batch is not None:
                stats += done
        return stats

    def _in_step(self, rows: list[TrainRow]) -> list[PackedBatch | None]:
        """This rank's micro-batches, filled up with None to the largest number that any rank has."""
        batches: list[PackedBatch | None] = [*pack(rows, max_tokens=self.compute.max_tokens)]
        most = torch.tensor(len(batches), device=self.device)
        torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
        return batches + [None] * (int(most) - len(batches))

    def _micro_batch(self, batch: PackedBatch, rows: list[TrainRow], loss: LossSpec, denominator: float) -> LossStats:
        tokens = TokenLoss(self.policy, batch, rows, loss, denominator)
        if rows[0] is EMPTY:
            tokens.weights = torch.zeros_like(tokens.weights)
        task = HeadTask(self.compute, tokens.loss)
        with ExitStack() as until_backward:
            total = self.engine(batch, task, until_backward)
            self.engine.backward(total * self.rank.world)
        assert task.outcome is not None
        return micro_batch_stats(self.policy, batch, rows, task.outcome)

    def optim_step(self, lr: float) -> OptimStats:
        """Clip, step and zero; nothing changes when the gradient's norm is not finite."""
        share = zero.own_share(list(self.trained.values()), rank=self.rank.rank, world=self.rank.world)
        before = [values.clone() for _, values in share]
        zero.set_lr(self.engine, lr)
        self.engine.step()
        stepped = bool(self.engine.was_step_applied())
        norm = float(self.engine.get_global_grad_norm())
        if stepped:
            self.version += 1
            self._must_be_finite(lr)
        share = zero.own_share(list(self.trained.values()), rank=self.rank.rank, world=self.rank.world)
        changed = sum(int((old != new).sum()) for old, (_, new) in zip(before, share, strict=True))
        total = sum(old.numel() for old in before)
        counts = self._summed(torch.tensor([changed, total], dtype=torch.float64))
        return OptimStats(
            grad_norm=norm if stepped else float("nan"),
            lr=lr,
            stepped=stepped,
            changed_fraction=float(counts[0] / counts[1]),
            max_memory_bytes=max_memory_bytes(self.device),
        )

    def _summed(self, values: Tensor) -> Tensor:
        values = values.to(self.device)
        torch.distributed.all_reduce(values)
        return values.cpu()

    def _must_be_finite(self, lr: float) -> None:
        """Raises BackendError, on every rank, before a weight that is not a number reaches sampler or checkpoint."""
        if not self._all_finite():
            raise BackendError(
                f"the update at learning rate {lr:g} made a weight infinite or not a number.",
                hint="lower trainer.lr; checkpoints of earlier steps are untouched.",
            )

    def _all_finite(self) -> bool:
        share = zero.own_share(list(self.trained.values()), rank=self.rank.rank, world=self.rank.world)
        broken = sum(int((~torch.isfinite(values)).sum()) for _, values in share)
        return float(self._summed(torch.tensor([float(broken)]))[0]) == 0

    def export(self) -> sync.Tensors | None:
        """Write the whole compute weights, LoRA merged, into this machine's shared memory; rank 0 tells where."""
        weights = self._plain_weights()
        if self.rank.rank:
            zero.collected(weights, keep=False)
            return None
        return sync.write(self.folder, weights, version=self.version)

    def _plain_weights(self, *, on: str = "cpu") -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor on that device) under the names of the Hugging Face checkpoint."""
        if self.job.lora is None:
            return zero.full_weights(self.named, on=on)
        merged = checkpoints.merged(self.policy.causal_lm, self.named)
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
        return self.version

    def content(self, file: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A written file, for a machine that does not share this one's memory."""
        return np.fromfile(file, dtype=np.uint8)

    def discard(self) -> None:
        """Remove what `export` wrote."""
        for file in self.folder.glob("*.safetensors"):
            file.unlink(missing_ok=True)

    def save(self, path: Path) -> None:
        """Write model and optimizer, whole, so that any number of ranks can load them; rank 0 writes."""
        if not self._all_finite():
            raise CheckpointError(
                f"a weight is not finite, so {path} was not written.", hint="earlier checkpoints are untouched."
            )
        keep = self.rank.rank == 0
        weights = zero.collected(zero.full_weights(self.named), keep=keep)
        masters = zero.collected(zero.full_masters(self.trained), keep=keep)
        moments = zero.collected(zero.full_moments(self.trained), keep=keep) if self.version else {}
        if keep:
            lr = float(self.engine.optimizer.param_groups[0]["lr"])
            state = checkpoints.trainer_state(masters, moments, job=self.job, version=self.version, lr=lr)
            checkpoints.write(path, self.policy.causal_lm, weights=weights, state=state, job=self.job)

    def load(self, path: Path) -> None:
        """Continue from what `save` wrote, here or by the local backend, with any number of ranks."""
        try:
            state = torch.load(path / "trainer.pt", map_location="cpu", weights_only=True, mmap=True)
            zero.set_masters(self.trained, state["masters"])
            # An update at learning rate 0 rounds the masters into the compute weights, and makes AdamW's moments.
            self._micro_batch(_empty(), [EMPTY], checkpoints.NO_LOSS, 1.0)
            zero.set_lr(self.engine, 0.0)
            self.engine.step()
            checkpoints.restore_moments(self.engine, self.trained, state)
            self.version = int(state["version"])
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


def _empty() -> PackedBatch:
    (batch,) = pack([EMPTY], max_tokens=2)
    return batch


def _device(rank: Rank) -> torch.device:
    """Ray shows an actor its own devices only, so a rank's is always the first."""
    if rank.device == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)
