"""A policy that ZeRO has cut over the ranks: forward, backward and step, each in step with the other ranks.

They agree on the number of micro-batches, and a rank with fewer computes more of weight zero: ZeRO reduces and gathers
in every pass, so the others would wait for one that it left out.

Letters: R rows, C completion tokens of a row, T completion tokens of a micro-batch.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlctl.backends.ray import checkpoints, zero
from rlctl.backends.ray.learner import HeadTask, Learner
from rlctl.backends.ray.settings import RaySettings
from rlctl.engine import lora
from rlctl.engine.checkpointing import checkpoint_layers
from rlctl.engine.limits import max_memory_bytes
from rlctl.engine.model import Policy
from rlctl.engine.packing import PackedBatch, pack
from rlctl.engine.update import Compute, TokenLoss, micro_batch_stats, put_by_row
from rlctl.errors import NonFinite
from rlctl.types import JobSpec, LogProbs, LossSpec, LossStats, OptimStats, TrainRow

_ONE = np.zeros(1, np.float32)
EMPTY = TrainRow(
    np.zeros(1, np.int32), np.zeros(1, np.int32), 0.0, _ONE, _ONE, _ONE, selected=np.zeros(1, dtype=np.bool_)
)
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


class ShardedPolicy:
    """This rank's part of the policy, and of the reference if the job needs one; the same calls come on all ranks."""

    def __init__(
        self,
        policy: Policy,
        *,
        settings: RaySettings,
        job: JobSpec,
        rank: Rank,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.settings, self.job, self.rank, self.device, self.dtype = settings, job, rank, device, dtype
        self.compute = Compute(
            temperature=job.temperature,
            max_tokens=job.max_tokens_per_device,
            tile_tokens=settings.logits_tile_tokens if settings.tiled_logits_compute else None,
        )
        self.reference: Any = None
        self.version = 0
        self._shard(policy)

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

    @torch.no_grad()
    def log_probs(self, rows: list[TrainRow], *, reference: bool, temperature: float | None = None) -> list[LogProbs]:
        """[R] rows -> [R] of [C], float32 nats; at the job's temperature unless another is given."""
        compute = self.compute if temperature is None else replace(self.compute, temperature=temperature)
        module = self.engine if not reference or self.job.lora is not None else self.reference
        result = [np.zeros(len(row.completion_ids), dtype=np.float32) for row in rows]
        filled = [position for position, row in enumerate(rows) if row.trained_tokens]
        off = lora.switched_off(self.policy.causal_lm) if reference and self.job.lora is not None else nullcontext()
        with off:
            for batch in self._in_step([rows[position] for position in filled]):
                with ExitStack() as until_end:
                    logprobs_T = module(batch or _empty(), HeadTask(compute), until_end)
                if batch is not None:
                    put_by_row(result, logprobs_T.cpu().numpy(), rows, [filled[position] for position in batch.rows])
        return result

    def forward_backward(self, rows: list[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        """Add the gradient of these rows to that of the update; see `Backend.forward_backward`."""
        stats = LossStats()
        filled = [row for row in rows if row.trained_tokens]
        for batch in self._in_step(filled):
            mine = [EMPTY] if batch is None else [filled[position] for position in batch.rows]
            done = self._micro_batch(batch or _empty(), mine, loss, loss_denominator)
            if batch is not None:
                stats += done
        return stats

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
        task = HeadTask(self.compute, tokens.loss, tokens.foresee)
        with ExitStack() as until_backward:
            total = self.engine(batch, task, until_backward)
            self.engine.backward(total * self.rank.world)
        assert task.outcome is not None
        return micro_batch_stats(self.policy, batch, rows, task.outcome)

    def _summed(self, values: Tensor) -> Tensor:
        values = values.to(self.device)
        torch.distributed.all_reduce(values)
        return values.cpu()

    def _must_be_finite(self, lr: float) -> None:
        """Raises NonFinite, on every rank, before a weight that is not a number reaches sampler or checkpoint."""
        if not self.all_finite():
            raise NonFinite(
                f"the update at learning rate {lr:g} made a weight infinite or not a number.",
                hint="lower trainer.lr; checkpoints of earlier steps are untouched.",
            )

    def all_finite(self) -> bool:
        share = zero.own_share(list(self.trained.values()), rank=self.rank.rank, world=self.rank.world)
        broken = sum(int((~torch.isfinite(values)).sum()) for _, values in share)
        return float(self._summed(torch.tensor([float(broken)]))[0]) == 0

    def add_reference(self, policy: Policy) -> None:
        """The policy that `log_probs(reference=True)` asks, never trained."""
        policy.causal_lm.requires_grad_(False)
        if self.settings.zero_stage == 3:
            config = zero.config(self.settings, self.job, dtype=self.dtype)
            self.reference = zero.initialize(Learner(policy), zero.forward_only(config))
        else:
            # Parameters alone: buffers, such as rotary frequencies, stay in float32.
            for p in policy.causal_lm.parameters():
                p.data = p.data.to(self.dtype)
            self.reference = Learner(policy).to(self.device)

    def take_masters(self, masters: dict[str, Tensor]) -> None:
        """Continue from these float32 masters: the compute weights follow, and AdamW's moments are made."""
        zero.set_masters(self.trained, masters)
        # An update at learning rate 0 rounds the masters into the compute weights.
        self._micro_batch(_empty(), [EMPTY], checkpoints.NO_LOSS, 1.0)
        zero.set_lr(self.engine, 0.0)
        self.engine.step()


def _empty() -> PackedBatch:
    (batch,) = pack([EMPTY], max_tokens=2)
    return batch
