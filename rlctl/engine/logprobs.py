"""Log-probs of chosen tokens and the gradient of a loss on them, a tile of logits at a time.

[tokens, vocabulary] logits are the largest tensor of training (16k tokens x 152k words: 10 GB in float32). Here a
tile of them lives at a time, and only once: the loss of its tokens is taken while it is there, and turned into the
gradient in place, so that nothing is computed again in a backward pass. Within a tile, a few rows at a time go
through softmax, so that on a CPU they stay in its cache. In float32 all equals the untiled way to rounding.

With z = (h W^T + b) / t at temperature t, p = softmax(z), y the target, H = -sum p log p:
    log p_y = z_y - logsumexp(z)          d(log p_y)/dz = onehot(y) - p
                                          dH/dz         = -p (log p + H)

Letters: T tokens, D hidden width, V vocabulary, s tokens that go through softmax at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from rlctl.engine import kernels
from rlctl.engine.draw import TILE
from rlctl.engine.optimizer import add_into

Loss = TypeVar("Loss")


@dataclass(frozen=True, slots=True)
class Head:
    """What turns hidden states into logits at a temperature, and how many tokens at a time; None is all."""

    weight_VD: nn.Parameter
    bias_V: nn.Parameter | None
    temperature: float
    tile_tokens: int | None

    def tiles(self, tokens: int) -> Iterator[slice]:
        step = self.tile_tokens or max(tokens, 1)
        return (slice(start, min(start + step, tokens)) for start in range(0, tokens, step))

    def logits(self, hidden_TD: Tensor, *, memory: Tensor) -> Tensor:
        """Not yet divided by the temperature, in the type of the weights, in as many rows of that memory."""
        z_TV = torch.mm(hidden_TD, self.weight_VD.T, out=memory[: len(hidden_TD)])
        return z_TV if self.bias_V is None else z_TV.add_(self.bias_V)

    def memory(self, tokens: int) -> Tensor:
        """Of one tile: fresh memory for each costs as much as filling it."""
        rows = min(self.tile_tokens or tokens, tokens)
        return self.weight_VD.new_empty(rows, len(self.weight_VD), requires_grad=False)


@torch.no_grad()
def token_logprobs(hidden_TD: Tensor, head: Head, targets_T: Tensor) -> Tensor:
    """[T] log-probs of the targets, float32 nats."""
    logprobs_T = torch.empty(len(hidden_TD), device=hidden_TD.device)
    memory = head.memory(len(hidden_TD))
    for tile in head.tiles(len(hidden_TD)):
        logits_tV = head.logits(hidden_TD[tile], memory=memory)
        logprobs_T[tile] = _statistics(logits_tV, targets_T[tile], head.temperature, with_entropy=False)[0]
    return logprobs_T


@dataclass(frozen=True, slots=True)
class Backward(Generic[Loss]):
    """What `loss_backward` found."""

    logprobs_T: Tensor
    entropy_T: Tensor
    losses: list[Loss]
    """What the loss function gave, one a tile."""
    grad_hidden_TD: Tensor


LossOfTile = Callable[[slice, Tensor, Tensor], tuple[Tensor, Loss]]
"""(which tokens, their log-probs, their entropy) -> (a scalar to differentiate, anything to keep)."""
Foresee = Callable[[Tensor], None]
"""Is told the log-probs of all tokens before a loss is asked for any of them."""


@torch.no_grad()
def loss_backward(
    hidden_TD: Tensor, head: Head, targets_T: Tensor, loss: LossOfTile[Loss], foresee: Foresee | None = None
) -> Backward[Loss]:
    """Differentiate a loss that is a sum over tokens; adds the gradient of the head's weights to them.

    With `foresee`, for a loss of tokens that depends on others, several tiles of logits are computed once more.
    """
    tokens = len(hidden_TD)
    in_one_tile = head.tile_tokens is None or head.tile_tokens >= tokens
    if foresee is not None and not in_one_tile:
        foresee(token_logprobs(hidden_TD, head, targets_T))
    logprobs_T, entropy_T = (torch.empty(tokens, device=hidden_TD.device) for _ in range(2))
    grad_hidden = torch.empty_like(hidden_TD)
    weight_grad, bias_grad = (_Gradient(p) for p in (head.weight_VD, head.bias_V))
    losses = []
    memory = head.memory(tokens)
    for tile in head.tiles(tokens):
        h_tD, y_t = hidden_TD[tile], targets_T[tile]
        z_tV = head.logits(h_tD, memory=memory)
        logprobs_T[tile], entropy_T[tile], lse_t = _statistics(z_tV, y_t, head.temperature, with_entropy=True)
        if foresee is not None and in_one_tile:
            foresee(logprobs_T)
        to_logprob_t, to_entropy_t, kept = _differentiated(loss, tile, logprobs_T[tile], entropy_T[tile])
        losses.append(kept)
        _to_gradient(z_tV, y_t, lse_t, entropy_T[tile], to_logprob_t, to_entropy_t, head.temperature)
        torch.mm(z_tV, head.weight_VD, out=grad_hidden[tile])
        weight_grad.add(lambda out, z=z_tV, h=h_tD: torch.mm(z.T, h, out=out))  # type: ignore[misc]
        bias_grad.add(lambda out, z=z_tV: torch.sum(z, 0, out=out))  # type: ignore[misc]
    for gradient in (weight_grad, bias_grad):
        gradient.finish()
    return Backward(logprobs_T, entropy_T, losses, grad_hidden)


def _statistics(z_tV: Tensor, y_t: Tensor, temperature: float, *, with_entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(log-probs of the targets, entropy or nothing, log-sum-exp), all [t] in float32, of a tile of logits."""
    kernel = kernels.logits(z_tV.dtype) if z_tV.device.type == "cpu" else None
    if kernel is not None:
        outcome = tuple(torch.empty(len(z_tV), dtype=torch.float32) for _ in range(3))
        given = (z_tV, y_t, *outcome)
        kernel.statistics(*(x.data_ptr() for x in given), *z_tV.shape, temperature)
        return outcome  # type: ignore[return-value]
    logprobs, entropies, sums = [], [], []
    for part in _parts(z_tV):
        z_sV = _scaled(z_tV[part], temperature)
        most_s1 = z_sV.amax(-1, keepdim=True)
        z_sV = z_sV.sub_(most_s1)
        chosen_s = z_sV.gather(1, y_t[part, None])[:, 0]
        weights_sV = z_sV.exp() if with_entropy else z_sV.exp_()
        total_s = weights_sV.sum(-1)
        logprobs.append(chosen_s - total_s.log())
        sums.append(most_s1[:, 0] + total_s.log())
        if with_entropy:
            # A weight of 0 comes from a logit of -inf: 0 * -inf is 0 here.
            mean_s = torch.linalg.vecdot(weights_sV, z_sV.nan_to_num_(neginf=0.0)) / total_s
            entropies.append(total_s.log() - mean_s)
    return torch.cat(logprobs), torch.cat(entropies) if with_entropy else z_tV.new_empty(0), torch.cat(sums)


def _to_gradient(
    z_tV: Tensor,
    y_t: Tensor,
    lse_t: Tensor,
    entropy_t: Tensor,
    to_logprob_t: Tensor,
    to_entropy_t: Tensor | None,
    temperature: float,
) -> None:
    """Turn a tile of logits into the gradient of the loss by them, in place."""
    kernel = kernels.logits(z_tV.dtype) if z_tV.device.type == "cpu" else None
    if kernel is not None:
        given = (z_tV, y_t, lse_t, entropy_t, to_logprob_t)
        to_entropy = None if to_entropy_t is None else to_entropy_t.data_ptr()
        kernel.to_gradient(*(x.data_ptr() for x in given), to_entropy, *z_tV.shape, temperature)
        return
    for part in _parts(z_tV):
        logp_sV = _scaled(z_tV[part], temperature)
        logp_sV = logp_sV.sub_(lse_t[part, None])
        factor_s = -to_logprob_t[part, None]
        if to_entropy_t is None:
            grad_sV = logp_sV.exp_().mul_(factor_s)
        else:
            p_sV = logp_sV.exp()
            spread_sV = logp_sV.nan_to_num_(neginf=0.0).add_(entropy_t[part, None]).mul_(to_entropy_t[part, None])
            grad_sV = p_sV.mul_(factor_s - spread_sV)
        grad_sV.scatter_add_(1, y_t[part, None], to_logprob_t[part, None])
        z_tV[part] = grad_sV.div_(temperature) if temperature != 1.0 else grad_sV


def _parts(z_tV: Tensor) -> Iterator[slice]:
    """A few rows at a time."""
    rows = max(1, TILE.get(z_tV.device.type, TILE["cpu"]) // z_tV.shape[1])
    return (slice(start, start + rows) for start in range(0, len(z_tV), rows))


def _scaled(z_sV: Tensor, temperature: float) -> Tensor:
    """A float32 copy at the temperature."""
    copy = z_sV.to(torch.float32, copy=True)
    return copy if temperature == 1.0 else copy.div_(temperature)


def _differentiated(
    loss: LossOfTile[Loss], tile: slice, logprobs_t: Tensor, entropy_t: Tensor
) -> tuple[Tensor, Tensor | None, Loss]:
    """(d loss / d log-prob [t], d loss / d entropy [t] or None, what the loss keeps)."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (logprobs_t, entropy_t)]
        total, kept = loss(tile, *leaves)
        to_logprob, to_entropy = torch.autograd.grad(total, leaves, allow_unused=True)
    to_logprob = torch.zeros_like(logprobs_t) if to_logprob is None else to_logprob
    # Of a plain sum, autograd gives one number expanded, which a kernel cannot read.
    return to_logprob.contiguous(), None if to_entropy is None else to_entropy.contiguous(), kept


class _Gradient:
    """Adds to a parameter's gradient in float32: to `main_grad`, where an optimizer keeps one, else to `grad`."""

    def __init__(self, parameter: nn.Parameter | None) -> None:
        self.parameter = parameter if parameter is not None and parameter.requires_grad else None
        self.sum: Tensor | None = getattr(self.parameter, "main_grad", None)
        self.term: Tensor | None = None

    def add(self, into: Callable[[Tensor], object]) -> None:
        """`into` writes a term into the memory that it is given."""
        if self.parameter is None:
            return
        if self.sum is None:
            self.sum = torch.zeros_like(self.parameter, dtype=torch.float32)
        if self.term is None:
            self.term = torch.empty_like(self.parameter, requires_grad=False)
        into(self.term)
        add_into(self.sum, self.term)

    def finish(self) -> None:
        parameter = self.parameter
        if parameter is None or self.sum is None or hasattr(parameter, "main_grad"):
            return
        grad = self.sum.to(parameter.dtype)
        parameter.grad = grad if parameter.grad is None else parameter.grad + grad
