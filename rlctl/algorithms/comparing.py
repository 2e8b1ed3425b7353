"""From rollouts to rows with advantages: which completions are compared, with what, and which of them are trained on.

What is compared and what is trained on differ: a truncated completion counts for its siblings' baseline also where the
settings leave it out of the update. Groups of equal rewards are left out before anything is computed of them, unless
the settings keep them or the estimator learns from them.

Letters: P problems of the step, n completions of one, C tokens of a completion. What is told of tokens is told of those
that the policy wrote; an environment's, between them, have no advantage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from rlctl.algorithms.advantages import Advantage, Group, Values
from rlctl.algorithms.estimators import Estimator
from rlctl.algorithms.kl_in_reward import KlControl, kl_penalties
from rlctl.errors import ConfigError
from rlctl.rollouts import counted, has_signal
from rlctl.step_report import KlInReward
from rlctl.types import KlEstimator, Rollout, TrainRow

LARGEST_ADVANTAGE = float(np.finfo(np.float32).max)
"""What a row can hold."""


@dataclass(frozen=True, slots=True)
class AdvantageSpec:
    """How rewards become advantages, and which rows they are trained on."""

    estimator: Estimator
    norm_adv_by_std: bool
    drop_zero_signal_groups: bool
    mask_truncated: bool = False
    kl_coef: float = 0.0
    """Weight of the KL taken off the reward of each token; 0 takes nothing off."""
    kl_penalty: KlEstimator = "k1"
    kl_control: KlControl | None = None
    """What steers that weight from step to step; None leaves it."""

    @property
    def token_advantages(self) -> bool:
        return self.estimator.gives_tokens_their_own(kl_in_reward=self.kl_coef > 0)


@dataclass(frozen=True, slots=True)
class Compared:
    """Minibatches of rows with advantages, and what was left out of them or taken off their rewards."""

    batches: list[list[TrainRow]]
    masked_rows: int
    kl_in_reward: KlInReward | None


def comparable(group: Sequence[Rollout], spec: AdvantageSpec) -> list[Rollout]:
    """The completions of one group that are compared: [n] -> [0..n], none where there is nothing to learn."""
    kept = counted(group)
    flat = not has_signal(group) and not spec.estimator.keeps_flat_groups
    if spec.drop_zero_signal_groups and flat:
        return []
    if spec.estimator.needs_baseline and any(rollout.baseline is None for rollout in kept):
        return []
    return kept


def plain_rows(group: Sequence[Rollout]) -> list[TrainRow]:
    """The rows of rollouts, whose advantages are not known yet."""
    return [
        TrainRow(
            r.prompt.token_ids,
            r.completion.token_ids,
            0.0,
            r.completion.logprobs,
            policy_mask=r.completion.policy_mask,
            policy_version=r.policy_version,
        )
        for r in group
    ]


def with_advantages(
    batches: Sequence[Sequence[TrainRow]], groups: Sequence[Sequence[Rollout]], spec: AdvantageSpec
) -> Compared:
    """Minibatches of the groups' rows, in the same order, with their advantages; log-probs where KL needs them.

    Raises ConfigError when the estimator, which may be a plugin's, gives something else than P x n finite advantages.
    """
    rows = iter([row for batch in batches for row in batch])
    rows_of = [list(islice(rows, len(group))) for group in groups]
    kind, in_reward = spec.kl_penalty, spec.kl_coef > 0
    penalties = [[kl_penalties(row, kind) for row in own] for own in rows_of] if in_reward else None
    compared = [
        _group(group, own, penalties[i] if penalties else None, spec)
        for i, (group, own) in enumerate(zip(groups, rows_of, strict=True))
        if group
    ]
    advantages = iter(_checked(spec, compared))
    truncated = iter([rollout.completion.truncated for group in groups for rollout in group])
    done = [list(_trained(batch, advantages, truncated, spec)) for batch in batches]
    kl = None if penalties is None else _measured([values for own in penalties for values in own], spec.kl_coef)
    return Compared(done, sum(map(len, batches)) - sum(map(len, done)), kl)


def _measured(penalties: Sequence[Values], coef: float) -> KlInReward:
    filled = [values for values in penalties if len(values)]
    return KlInReward(
        coef=coef,
        token_sum=math.fsum(float(values.sum()) for values in filled),
        tokens=sum(map(len, filled)),
        mean_sum=math.fsum(float(values.mean()) for values in filled),
        completions=len(filled),
    )


def _group(
    group: Sequence[Rollout], rows: Sequence[TrainRow], penalties: Sequence[Values] | None, spec: AdvantageSpec
) -> Group:
    return Group(
        rewards=[rollout.reward for rollout in group if rollout.reward is not None],
        lengths=[row.trained_tokens for row in rows],
        parts=[[*rollout.parts, *rollout.length_parts] for rollout in group],
        baseline=group[0].baseline,
        penalties=None if penalties is None else [spec.kl_coef * values for values in penalties],
    )


def _trained(
    batch: Sequence[TrainRow], advantages: Iterator[Advantage], truncated: Iterator[bool], spec: AdvantageSpec
) -> Iterator[TrainRow]:
    for row in batch:
        advantage, cut = next(advantages), next(truncated)
        if not (cut and spec.mask_truncated):
            yield _with_advantage(row, advantage)


def _with_advantage(row: TrainRow, advantage: Advantage) -> TrainRow:
    if not isinstance(advantage, np.ndarray):
        return replace(row, advantage=float(advantage))
    mean = float(advantage.mean()) if len(advantage) else 0.0
    return replace(row, advantage=mean, token_advantages=row.spread(advantage.astype(np.float32)))


def _checked(spec: AdvantageSpec, groups: Sequence[Group]) -> list[Advantage]:
    """The estimator's advantages, all in one list."""
    found = _called(spec, groups)
    wanted, sizes = [len(group.rewards) for group in groups], [len(values) for values in found]
    if sizes != wanted:
        counts = f"{sum(sizes)} advantages in {len(sizes)} groups for {sum(wanted)} rewards in {len(wanted)}"
        raise _broken(spec, f"returned {counts}")
    # Log-probs that are not finite are the model's fault: the update will be refused, and the run knows what to do.
    known = all(np.isfinite(values).all() for group in groups for values in group.penalties or ())
    lengths = [length for group in groups for length in group.lengths]
    flat = [value for values in found for value in values]
    for value, length in zip(flat, lengths, strict=True):
        if known and not (np.abs(value) <= LARGEST_ADVANTAGE).all():
            raise _broken(
                spec, f"returned {value}, which is not finite" + " in float32" * bool(np.isfinite(value).all())
            )
        if value.ndim and not spec.token_advantages:
            raise _broken(spec, "gives tokens advantages of their own, but is registered without by_token")
        if value.shape not in ((), (length,)):
            raise _broken(spec, f"returned advantages of shape {value.shape} for {length} tokens")
    return [value if value.ndim else float(value) for value in flat]


def _called(spec: AdvantageSpec, groups: Sequence[Group]) -> list[list[Values]]:
    """What the estimator gives, as arrays. A plugin's may raise anything, and give anything."""
    function = spec.estimator.load()
    try:
        return [[np.asarray(v, np.float64) for v in g] for g in function(groups, scale=spec.norm_adv_by_std)]
    # All of them, and SystemExit too, which would end the run without a word.
    except (TypeError, ValueError) as error:
        raise _broken(spec, f"failed, or gave what is no list of lists of numbers: {error}") from error
    except (Exception, SystemExit) as error:
        raise _broken(spec, f"raised {type(error).__name__}: {error}") from error


def _broken(spec: AdvantageSpec, what: str) -> ConfigError:
    return ConfigError(
        f"advantage estimator {spec.estimator.name!r} {what}.",
        hint="it must give one finite number, or one a token, for each completion.",
    )
