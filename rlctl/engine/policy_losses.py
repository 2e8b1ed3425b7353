"""The policy losses: what a token adds to the loss, before it is weighed and summed in `loss.py`.

Each is a function of some tokens of a micro-batch, (`Tokens`, `LossSpec`) -> (loss [t], whether a bound cut its
gradient [t]). What needs a whole completion is the mean over its tokens of a row function of log-ratio and advantage:
it is known before any token of it is asked for, and has no gradient. The token's own part, which has, makes up for it:
exp(m + x - sg(x)) is exp(m) in value, and its gradient by x is that of the geometric mean, times the tokens of the
completion. So a loss is a sum over tokens whatever it is made of, and logits may be computed a tile at a time.

Names, formulas in one line and papers are in `algorithms/losses.py`. Letters: t some tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlctl.algorithms import losses
from rlctl.errors import BackendError
from rlctl.types import LossSpec

SEQUENCE_LOG_LIMIT = 10.0
"""Upper bound of the log of a completion's ratio, as in verl."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Some tokens as a policy loss sees them, all [t]; only `logprobs` and `log_ratio` have a gradient."""

    logprobs: Tensor
    log_ratio: Tensor
    """Of the current policy to the one before the update, within +-20."""
    advantages: Tensor
    row_mean: Tensor | None = None
    """The mean of the loss's row function over the token's completion."""
    selected: Tensor | None = None
    """Tokens that the driver has chosen."""

    @property
    def ratio(self) -> Tensor:
        return self.log_ratio.exp()


LossFunction = Callable[[Tokens, LossSpec], tuple[Tensor, Tensor]]
RowFunction = Callable[[Tensor, Tensor, LossSpec], Tensor]
"""(log-ratio, advantages, spec) -> what the mean over a completion is taken of, all [t]."""


def loss_function(spec: LossSpec) -> LossFunction:
    """The function of the loss that is asked for. Raises ConfigError when there is none of that name."""
    function: LossFunction = losses.registry.load(spec.policy_loss)
    if function.__module__ != __name__:
        return _guarded(function, spec.policy_loss)
    return sequence_vanilla if function is vanilla and spec.importance_sampling == "sequence" else function


def _guarded(function: LossFunction, name: str) -> LossFunction:
    """A plugin's loss, which may raise anything and give anything."""

    def guarded(tokens: Tokens, spec: LossSpec) -> tuple[Tensor, Tensor]:
        try:
            loss, clipped = function(tokens, spec)
            shapes = (tuple(loss.shape), tuple(clipped.shape))
        # SystemExit too, which would end the run without a word.
        except (Exception, SystemExit) as error:
            raise BackendError(f"policy loss {name!r} failed: {type(error).__name__}: {error}.") from error
        if shapes != (tuple(tokens.logprobs.shape),) * 2:
            raise BackendError(
                f"policy loss {name!r} gave shapes {shapes[0]} and {shapes[1]} for {len(tokens.logprobs)} tokens.",
                hint="it must give (loss, whether a bound cut its gradient), a value for each token.",
            )
        if tokens.logprobs.requires_grad and not loss.requires_grad:
            raise BackendError(
                f"policy loss {name!r} has no gradient.",
                hint="it must be made of tokens.logprobs, log_ratio or ratio, and not be detached.",
            )
        return loss, clipped

    return guarded


def row_function(spec: LossSpec) -> RowFunction | None:
    """What of each token that loss needs the mean of over a completion; None where it looks at single tokens."""
    if spec.policy_loss == "vanilla" and spec.importance_sampling == "sequence":
        return log_ratio
    function: RowFunction | None = losses.registry.get(spec.policy_loss).load_row_function()
    return function


def vanilla(tokens: Tokens, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate, with the dual clip where there is one."""
    return clipped_surrogate(tokens.ratio, tokens.advantages, spec)


def sequence_vanilla(tokens: Tokens, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """The same with the ratio of the whole completion."""
    return clipped_surrogate(_sequence_ratio(tokens), tokens.advantages, spec)


def gspo(tokens: Tokens, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """The clipped surrogate of the completion's ratio, without a dual clip."""
    return _clipped(_sequence_ratio(tokens), tokens.advantages, spec)


def log_ratio(log_ratio_t: Tensor, advantages_t: Tensor, spec: LossSpec) -> Tensor:
    return log_ratio_t


def _sequence_ratio(tokens: Tokens) -> Tensor:
    """The geometric mean of the completion's ratios in value, the token's own in gradient (verl's form of GSPO)."""
    assert tokens.row_mean is not None
    own = tokens.logprobs - tokens.logprobs.detach()
    return (own + tokens.row_mean).clamp(max=SEQUENCE_LOG_LIMIT).exp()


def cispo(tokens: Tokens, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """The policy gradient weighed by a ratio that is clipped and held fixed: no token loses its gradient.

    The upper bound is 1 + clip_ratio_high (verl, NeMo-RL, slime, SkyRL), not clip_ratio_high itself (TRL).
    """
    ratio = tokens.ratio.detach()
    bounded = ratio.clamp(1 - spec.clip_ratio_low, 1 + spec.clip_ratio_high)
    return -bounded * tokens.advantages * tokens.logprobs, ratio != bounded


def gmpo(tokens: Tokens, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """The geometric mean of ratios that are each clipped, in the log, on the side where clipping costs."""
    assert tokens.row_mean is not None
    bounded = clipped_log_ratio(tokens.log_ratio, tokens.advantages, spec)
    mean = (bounded - bounded.detach() + tokens.row_mean).exp()
    return -tokens.advantages * mean, (bounded != tokens.log_ratio).detach()


def clipped_log_ratio(log_ratio_t: Tensor, advantages_t: Tensor, spec: LossSpec) -> Tensor:
    """min(sign log r, sign clip(log r, -low, high)) by the sign of the advantage, back in its own sign."""
    # A token whose weight is 0 has an advantage of 0 or -0: its part in the mean is bounded on the same side as ever.
    sign = torch.ones_like(advantages_t).copysign(advantages_t)
    bounded = log_ratio_t.clamp(-spec.clip_ratio_low, spec.clip_ratio_high)
    return sign * torch.minimum(sign * log_ratio_t, sign * bounded)


def sapo(tokens: Tokens, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """A smooth gate in place of the clip: its slope is 1 at ratio 1 and falls off on both sides."""
    positive = tokens.advantages > 0
    tau = torch.where(positive, spec.tau_pos, spec.tau_neg).to(tokens.advantages.dtype)
    gate = torch.sigmoid(tau * (tokens.ratio - 1)) * 4 / tau
    return -gate * tokens.advantages, torch.zeros_like(positive)


def policy_gradient(tokens: Tokens, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """REINFORCE: no ratio, no bound."""
    return -tokens.advantages * tokens.logprobs, torch.zeros_like(tokens.advantages, dtype=torch.bool)


def clip_cov(tokens: Tokens, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """The clipped surrogate, without gradient at the selected tokens. No dual clip."""
    assert tokens.selected is not None
    loss, clipped = _clipped(tokens.ratio, tokens.advantages, spec)
    return loss.masked_fill(tokens.selected, 0.0), clipped | tokens.selected


def kl_cov(tokens: Tokens, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """The ratio times the advantage, without a bound; the selected tokens are held back by |log-ratio|.

    The bound of the log-ratio is for its exponential: it takes no gradient from the penalty.
    """
    assert tokens.selected is not None
    log_ratio = tokens.log_ratio.detach()
    own = tokens.logprobs - tokens.logprobs.detach()
    held = spec.ppo_kl_coef * (log_ratio.abs() + log_ratio.sign() * own)
    return -tokens.advantages * tokens.ratio + held * tokens.selected, tokens.selected


def clipped_surrogate(ratio_T: Tensor, advantages_T: Tensor, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """(loss [T], whether the clip cut its gradient [T]) of the clipped policy gradient."""
    loss_T, clipped_T = _clipped(ratio_T, advantages_T, spec)
    if spec.clip_ratio_c is not None:
        ceiling = -advantages_T * spec.clip_ratio_c
        negative = advantages_T < 0
        clipped_T = clipped_T | (negative & (loss_T > ceiling))
        loss_T = torch.where(negative, torch.minimum(loss_T, ceiling), loss_T)
    return loss_T, clipped_T.detach()


def _clipped(ratio_T: Tensor, advantages_T: Tensor, spec: LossSpec) -> tuple[Tensor, Tensor]:
    plain = -advantages_T * ratio_T
    bounded = -advantages_T * ratio_T.clamp(1 - spec.clip_ratio_low, 1 + spec.clip_ratio_high)
    return torch.maximum(plain, bounded), (bounded > plain).detach()
