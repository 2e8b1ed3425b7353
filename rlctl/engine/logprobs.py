"""Log-probs and entropy of chosen tokens from hidden states, a tile of logits at a time.

[tokens, vocabulary] logits are the largest tensor of training (16k tokens x 152k words: 10 GB in
float32). Here a tile of them lives at a time; the backward pass computes each tile again and writes the
gradient by hand. In float32 the values and gradients equal the untiled ones to rounding.

With z = h W^T + b over temperature t, p = softmax(z), y the target, H = -sum p log p:
    log p_y = z_y - logsumexp(z)          d(log p_y)/dz = onehot(y) - p
                                          dH/dz         = -p (log p + H)

Letters: T tokens, D hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def token_logprobs(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    *,
    bias_V: Tensor | None = None,
    temperature: float = 1.0,
    tile_tokens: int | None,
) -> tuple[Tensor, Tensor]:
    """(log-probs [T], entropy [T]) in float32 nats at the temperature; `tile_tokens` None keeps all logits."""
    if tile_tokens is None:
        return _untiled(hidden_TD, weight_VD, targets_T, bias_V, temperature)
    result: tuple[Tensor, Tensor] = _Tiled.apply(hidden_TD, weight_VD, bias_V, targets_T, temperature, tile_tokens)  # type: ignore[no-untyped-call]
    return result


def _untiled(h: Tensor, w: Tensor, targets_T: Tensor, bias: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    logp_TV = _logits(h, w, bias, temperature).log_softmax(-1)
    entropy_T = -(logp_TV.exp() * logp_TV).sum(-1)
    return logp_TV.gather(1, targets_T[:, None])[:, 0], entropy_T


def _logits(h: Tensor, w: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = torch.nn.functional.linear(h, w, bias).float()
    return logits if temperature == 1.0 else logits / temperature


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, w: Tensor, bias: Tensor | None, targets_T: Tensor, temperature: float, tile: int
    ) -> tuple[Tensor, Tensor]:
        logprobs_T = torch.empty(len(h), device=h.device)
        entropy_T = torch.empty(len(h), device=h.device)
        for start in range(0, len(h), tile):
            part = slice(start, start + tile)
            logp = _logits(h[part], w, bias, temperature).log_softmax(-1)
            logprobs_T[part] = logp.gather(1, targets_T[part, None])[:, 0]
            entropy_T[part] = -torch.einsum("tv,tv->t", logp.exp(), logp)
        ctx.save_for_backward(h, w, bias, targets_T, entropy_T)
        ctx.temperature, ctx.tile = temperature, tile
        return logprobs_T, entropy_T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        h, w, bias, targets_T, entropy_T = ctx.saved_tensors
        grad_logprobs_T, grad_entropy_T = grads
        grad_h = torch.empty_like(h)
        # Summed over tiles in float32: in bfloat16 the result would depend on the size of the tile.
        grad_w = torch.zeros(w.shape, device=w.device) if ctx.needs_input_grad[1] else None
        grad_b = torch.zeros(w.shape[0], device=w.device) if bias is not None else None
        for start in range(0, len(h), ctx.tile):
            part = slice(start, start + ctx.tile)
            logp = _logits(h[part], w, bias, ctx.temperature).log_softmax(-1)
            p = logp.exp()
            grad_z = torch.zeros_like(p)
            if grad_logprobs_T is not None:
                grad_z.scatter_(1, targets_T[part, None], 1.0).sub_(p).mul_(grad_logprobs_T[part, None])
            if grad_entropy_T is not None and bool(grad_entropy_T[part].any()):
                grad_z -= grad_entropy_T[part, None] * p * (logp + entropy_T[part, None])
            grad_z = (grad_z / ctx.temperature).to(h.dtype)
            grad_h[part] = grad_z @ w
            if grad_w is not None:
                grad_w += grad_z.T @ h[part]
            if grad_b is not None:
                grad_b += grad_z.float().sum(0)
        return (
            grad_h,
            None if grad_w is None else grad_w.to(w.dtype),
            None if grad_b is None else grad_b.to(bias.dtype),
            None,
            None,
            None,
        )
