"""AdamW on float32 master weights, with the compute weights as a rounded copy.

bfloat16 weights alone lose an update of 1e-6: half a unit in the last place of 1.0 is 4e-3. Gradients of
micro-batches are summed in float32 too, so that their number does not change the result.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rlctl.engine import kernels
from rlctl.errors import CheckpointError, NonFinite
from rlctl.types import JobSpec, OptimStats


class MasterOptimizer:
    """Owns a float32 master of each trained parameter of `module`, which is turned to `dtype` in place."""

    def __init__(self, module: nn.Module, *, dtype: torch.dtype, job: JobSpec) -> None:
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.names = list(trained)
        self.compute = list(trained.values())
        for p in module.parameters():
            if not p.requires_grad:
                p.data = p.data.to(dtype)
        self.masters = [nn.Parameter(p.detach().float().clone()) for p in self.compute]
        for p, master in zip(self.compute, self.masters, strict=True):
            p.data = p.data.to(dtype)
            # Megatron's name for a float32 sum of gradients beside a parameter of lower precision.
            p.main_grad = master.grad = torch.zeros_like(master)  # type: ignore[attr-defined]
            p.register_post_accumulate_grad_hook(_collect)  # type: ignore[no-untyped-call]
        self.grad_clip = job.grad_clip
        self.adamw = torch.optim.AdamW(self.masters, lr=0.0, betas=job.betas, weight_decay=job.weight_decay, fused=True)
        self._dtype = dtype
        self._kernel = kernels.adamw(dtype) if self.masters and self.masters[0].device.type == "cpu" else None
        self.version = 0
        """Updates taken."""

    @torch.no_grad()
    def step(self, lr: float, *, loss_is_finite: bool = True) -> OptimStats:
        """Clip and step, unless loss or gradient are not finite; the gradient is gone afterwards either way.

        Raises NonFinite before a weight that is not a number reaches sampler or checkpoint.
        """
        norm = float(torch.nn.utils.get_total_norm([master.grad for master in self.masters]))  # type: ignore[misc]
        stepped = loss_is_finite and math.isfinite(norm)
        changed = 0.0
        if stepped:
            for group in self.adamw.param_groups:
                group["lr"] = lr
            self._update(clip=min(1.0, self.grad_clip / (norm + 1e-6)))
            changed = self._publish()
            self.version += 1
        if self._kernel is None or not stepped:
            self.discard()
        return OptimStats(grad_norm=norm, lr=lr, stepped=stepped, changed_fraction=changed)

    def discard(self) -> None:
        """Drop the gradient that has accumulated."""
        self.adamw.zero_grad(set_to_none=False)

    def _update(self, *, clip: float) -> None:
        """One AdamW update of the masters, with gradients multiplied by `clip`."""
        if self._kernel is None:
            torch._foreach_mul_([master.grad for master in self.masters if master.grad is not None], clip)
            self.adamw.step()
            broken = [not bool(torch.isfinite(master).all()) for master in self.masters]
        else:
            broken = [_stepped(self._kernel, self.adamw, master, clip=clip) > 0 for master in self.masters]
        for name, not_finite in zip(self.names, broken, strict=True):
            if not_finite:
                raise NonFinite(
                    f"the update at learning rate {self.adamw.param_groups[0]['lr']:g} made the weight {name} infinite "
                    "or not a number.",
                    hint="lower trainer.lr; checkpoints of earlier steps are untouched.",
                )

    def _publish(self) -> float:
        """Round the masters into the compute weights; the share of values that changed."""
        changed = total = 0
        for p, master in zip(self.compute, self.masters, strict=True):
            if self._kernel is not None and p.dtype == self._dtype and p.is_contiguous():
                changed += self._kernel.publish(master.data_ptr(), p.data_ptr(), p.numel())
            else:
                rounded = master.to(p.dtype)
                changed += int((rounded != p).sum())
                p.copy_(rounded)
            total += p.numel()
        return changed / total

    def all_finite(self) -> bool:
        return all(bool(torch.isfinite(master).all()) for master in self.masters)

    def master_state(self) -> dict[str, Tensor]:
        return {name: master.detach() for name, master in zip(self.names, self.masters, strict=True)}

    def state(self) -> dict[str, Any]:
        """Moments and step counts by parameter, and the number of updates."""
        return {"adamw": self.adamw.state_dict(), "version": self.version}

    @torch.no_grad()
    def restore(self, masters: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Take masters and moments back, each in its own dtype. Raises CheckpointError where the model is another."""
        self._must_be_mine(masters)
        for name, master in zip(self.names, self.masters, strict=True):
            master.copy_(masters[name])
        self.adamw.load_state_dict(state["adamw"])
        self.version = int(state["version"])
        self._publish()

    def _must_be_mine(self, masters: dict[str, Tensor]) -> None:
        mine = {name: tuple(master.shape) for name, master in zip(self.names, self.masters, strict=True)}
        saved = {name: tuple(tensor.shape) for name, tensor in masters.items()}
        other = [name for name in {**mine, **saved} if mine.get(name) != saved.get(name)]
        if other:
            raise CheckpointError(
                f"{len(other)} weights of the checkpoint are not this model's, first {other[0]}: "
                f"{saved.get(other[0], 'missing')} there, {mine.get(other[0], 'missing')} here.",
                hint="model.path or model.lora name another model than the one that was trained.",
            )


def _stepped(kernel: kernels.Functions, adamw: torch.optim.AdamW, master: nn.Parameter, *, clip: float) -> int:
    """Update one master, with the state where torch's AdamW keeps it; how many of its values are not finite."""
    (options,) = adamw.param_groups
    state = adamw.state[master]
    if not state:
        state |= {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(master),
            "exp_avg_sq": torch.zeros_like(master),
        }
    state["step"] += 1
    updates, (beta1, beta2) = float(state["step"]), options["betas"]
    assert master.grad is not None
    arrays = (master, master.grad, state["exp_avg"], state["exp_avg_sq"])
    return kernel.adamw(
        *(x.data_ptr() for x in arrays), master.numel(), clip, options["lr"], options["weight_decay"],
        1 - beta1, beta2, 1 - beta2, options["eps"], 1 - beta1**updates, 1 - beta2**updates,
    )  # fmt: skip


def _collect(p: Tensor) -> None:
    """Add a parameter's gradient to its float32 sum; there is none where the backward pass did so itself."""
    if p.grad is None:
        return
    add_into(p.main_grad, p.grad)  # type: ignore[attr-defined]
    p.grad = None


def add_into(total: Tensor, term: Tensor) -> None:
    """total += term, for a term of lower precision.

    On a CPU by a kernel, or in pieces, since torch first makes a float32 copy of the term: of a megabyte it stays in
    the cache.
    """
    if term.device.type != "cpu" or not (total.is_contiguous() and term.is_contiguous()):
        total.add_(term)
        return
    kernel = kernels.logits(term.dtype)
    if kernel is not None:
        kernel.add_into(total.data_ptr(), term.data_ptr(), term.numel())
        return
    for part, more in zip(total.view(-1).split(_PIECE), term.view(-1).split(_PIECE), strict=True):  # type: ignore[no-untyped-call]
        part.add_(more)


_PIECE = 2**18
"""Numbers, 1 MB in float32."""
