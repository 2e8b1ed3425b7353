"""The policy as one torch module whose forward is a micro-batch: what DeepSpeed wraps and shards.

ZeRO takes gradients from autograd's own hooks, once for each parameter and backward pass, and its stage 3 gathers a
parameter when the module that owns it is called. The engine's `loss_backward` does neither: it multiplies by the head's
weights directly and adds to their gradient tile by tile, which for tied embeddings would be a second gradient of one
parameter. So the head is called as a module, and an autograd function hands both gradients that `loss_backward` found,
of the hidden states and of the head, back through autograd: the same numbers, one gradient a parameter.

Letters: T completion tokens of a micro-batch, D hidden width, V vocabulary.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rlctl.engine.logprobs import Backward, Foresee, Head, LossOfTile, loss_backward, token_logprobs
from rlctl.engine.loss import LossTerms
from rlctl.engine.model import Policy
from rlctl.engine.packing import PackedBatch
from rlctl.engine.update import Compute


@dataclass
class HeadTask:
    """What the head is asked for: the log-probs of tokens, or with `loss` a loss on them and its gradient."""

    compute: Compute
    loss: LossOfTile[LossTerms] | None = None
    foresee: Foresee | None = None
    outcome: Backward[LossTerms] | None = None
    """Written by the forward pass when there is a loss."""


class Learner(nn.Module):
    """A policy, called with a micro-batch and a task for its head."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        # The engine's own layers read weights and write gradients past the modules, where ZeRO sees neither.
        self.policy = replace(policy, llama=None)
        self.causal_lm = policy.causal_lm
        self.head = _answering_head(policy.causal_lm)

    def forward(self, batch: PackedBatch, task: HeadTask, until_backward: ExitStack) -> Tensor:
        """A scalar loss, or [T] log-probs; attention's layout stays open until `until_backward` is closed."""
        hidden_TD, targets_T = until_backward.enter_context(self.policy.packed_hidden(batch))
        answer: Tensor = self.head(hidden_TD, targets_T, task)
        return answer


def _answering_head(causal_lm: Any) -> Any:
    """The model's output layer, which from now on answers tasks in place of giving logits."""
    head = causal_lm.get_output_embeddings()
    head.forward = partial(_answer, head)
    return head


def _answer(head: Any, hidden_TD: Tensor, targets_T: Tensor, task: HeadTask) -> Tensor:
    """The forward of the head module: here ZeRO-3 has gathered its weights."""
    bias_V = getattr(head, "bias", None)
    if task.loss is None:
        return token_logprobs(hidden_TD, _head(head.weight, bias_V, task), targets_T)
    loss: Tensor = _LossOnHidden.apply(hidden_TD, head.weight, bias_V, targets_T, task)  # type: ignore[no-untyped-call]
    return loss


def _head(weight_VD: nn.Parameter, bias_V: nn.Parameter | None, task: HeadTask) -> Head:
    return Head(weight_VD, bias_V, task.compute.temperature, task.compute.tile_tokens)


class _LossOnHidden(torch.autograd.Function):
    """The loss of a micro-batch by its hidden states and the head's weights, differentiated in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: nn.Parameter,
        bias_V: nn.Parameter | None,
        targets_T: Tensor,
        task: HeadTask,
    ) -> Tensor:
        assert task.loss is not None
        weight, bias = _collector(weight_VD), _collector(bias_V)
        assert weight is not None
        outcome = loss_backward(hidden_TD.detach(), _head(weight, bias, task), targets_T, task.loss, task.foresee)
        task.outcome = outcome
        ctx.save_for_backward(outcome.grad_hidden_TD, *(getattr(p, "main_grad", None) for p in (weight, bias)))
        return torch.stack([terms.total.detach() for terms in outcome.losses]).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (factor,) = grads
        hidden, weight, bias = (g if g is None else g.mul_(factor) for g in ctx.saved_tensors)
        return hidden, weight, bias, None, None


def _collector(p: nn.Parameter | None) -> nn.Parameter | None:
    """A stand-in with the parameter's values whose gradient is summed in float32 beside it, not in the parameter."""
    if p is None:
        return None
    stand_in = nn.Parameter(p.detach(), requires_grad=p.requires_grad)
    if p.requires_grad:
        stand_in.main_grad = torch.zeros(p.shape, device=p.device)  # type: ignore[attr-defined]
    return stand_in
