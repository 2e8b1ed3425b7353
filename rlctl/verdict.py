"""Does training work here: the checks of `rlctl smoke`, each with its reason.

A verdict is about the machinery: that weights move, that sampler and trainer agree, that rewards are numbers.
It does not ask for a loss above 0 (on-policy it is 0 by construction) nor for a score that rises in six steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlctl.report import mean
from rlctl.step_report import StepReport
from rlctl.types import BackendInfo


@dataclass(frozen=True, slots=True)
class Limits:
    """How far two computations of one log-prob may lie apart, by the dtype of the compute weights."""

    ratio: float
    """Largest |ratio - 1| of a token at the first update, scored twice by the trainer."""
    gap_mean: float
    """Mean over tokens of |sampler's - trainer's probability|."""
    gap_max: float


LIMITS = {"float32": Limits(ratio=1e-3, gap_mean=1e-5, gap_max=1e-3)}
ROUNDED = Limits(ratio=0.25, gap_mean=0.02, gap_max=0.3)
"""For bfloat16. At a logit of 16 its spacing is 1/8, so the ratio of a single token may be off by e^(1/8); a 135 M
model on a cpu has a mean gap of 0.008, of which either side differs from float32 by 0.006."""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    holds: bool
    reason: str


def judge(reports: Sequence[StepReport], info: BackendInfo, *, wanted_steps: int) -> list[Check]:
    """All checks, in the order of a step. A check that could not be made does not hold."""
    limits = LIMITS.get(info.dtype, ROUNDED)
    return [
        _all_steps_ran(reports, wanted_steps),
        _rewards_are_finite(reports),
        _rewards_vary(reports),
        _some_group_has_signal(reports),
        _sampler_agrees_with_trainer(reports, limits),
        _ratio_begins_at_one(reports, limits),
        _gradients_are_finite(reports),
        _weights_changed(reports),
        _names_were_synced(reports),
    ]


def _all_steps_ran(reports: Sequence[StepReport], wanted: int) -> Check:
    return Check("all steps ran", len(reports) == wanted, f"{len(reports)} of {wanted}")


def _rewards_are_finite(reports: Sequence[StepReport]) -> Check:
    rollouts = [rollout for report in reports for rollout in report.rollouts]
    failed = [r for r in rollouts if r.reward is None or not math.isfinite(r.reward)]
    reason = f"{len(rollouts) - len(failed)} of {len(rollouts)} rewards are numbers"
    return Check(
        "every reward finite", bool(rollouts) and not failed, f"{reason}: {failed[0].note}" if failed else reason
    )


def _rewards_vary(reports: Sequence[StepReport]) -> Check:
    rewards = [r.reward for report in reports for r in report.rollouts if r.reward is not None]
    if not rewards:
        return Check("rewards vary", False, "no reward at all")
    reason = f"rewards from {min(rewards):g} to {max(rewards):g}, mean {mean(rewards):.3f}"
    return Check("rewards vary", min(rewards) < max(rewards), reason)


def _some_group_has_signal(reports: Sequence[StepReport]) -> Check:
    groups = sum(len(report.groups) for report in reports)
    flat = sum(report.zero_signal_groups for report in reports)
    reason = f"{groups - flat} of {groups} groups have different rewards"
    return Check("signal to learn from", flat < groups, reason)


def _sampler_agrees_with_trainer(reports: Sequence[StepReport], limits: Limits) -> Check:
    gaps = [report.rollout_gap for report in reports if report.rollout_gap is not None]
    name = "sampler agrees with trainer"
    if not gaps:
        return Check(name, False, "nothing was trained on, so nothing could be compared")
    worst_mean, worst = max(gap[0] for gap in gaps), max(gap[1] for gap in gaps)
    reason = (
        f"probabilities differ by {worst_mean:.2g} on average (limit {limits.gap_mean:g}), "
        f"{worst:.2g} at most (limit {limits.gap_max:g})"
    )
    return Check(name, worst_mean <= limits.gap_mean and worst <= limits.gap_max, reason)


def _ratio_begins_at_one(reports: Sequence[StepReport], limits: Limits) -> Check:
    name = "ratio 1 at the first update"
    firsts = [report.losses[0] for report in reports if report.losses]
    if not firsts:
        return Check(name, False, "nothing was trained on, so there was no ratio")
    known = [loss.max_ratio_deviation for loss in firsts if loss.max_ratio_deviation is not None]
    if len(known) == len(firsts):
        return Check(name, max(known) <= limits.ratio, f"max |ratio - 1| is {max(known):.2g} (limit {limits.ratio:g})")
    drift = max(abs(loss.ppo_kl_sum) / max(loss.tokens, 1) for loss in firsts)
    reason = f"mean log-ratio is {drift:.2g} (limit {limits.ratio:g}); this backend tells no maximum"
    return Check(name, drift <= limits.ratio, reason)


def _gradients_are_finite(reports: Sequence[StepReport]) -> Check:
    updates = [update for report in reports for update in report.updates]
    skipped = sum(not update.stepped for update in updates)
    norms = [update.grad_norm for update in updates if update.stepped]
    reason = f"{len(updates)} updates, {skipped} skipped"
    if norms:
        reason += f", grad norm {min(norms):.3g} to {max(norms):.3g}"
    return Check("gradients finite and not zero", bool(norms) and not skipped and max(norms) > 0, reason)


def _weights_changed(reports: Sequence[StepReport]) -> Check:
    name = "weights changed at the first update"
    first = next((report for report in reports if report.updates), None)
    if first is None:
        return Check(name, False, "there was no update")
    known = [update.changed_fraction for update in first.updates if update.changed_fraction is not None]
    if not known:
        moved = all(update.stepped and update.grad_norm > 0 and update.lr > 0 for update in first.updates)
        reason = "this backend's weights cannot be seen; gradient and learning rate"
        return Check(name, moved, f"{reason} were {'above 0' if moved else '0 or no number'} at step {first.step}")
    return Check(name, max(known) > 0, f"{100 * max(known):.3g} % of the values, at step {first.step}")


def _names_were_synced(reports: Sequence[StepReport]) -> Check:
    name = "every weight reached the sampler"
    if not reports:
        return Check(name, False, "no sync")
    syncs = [report.sync for report in reports if report.sync is not None]
    if not syncs:
        return Check(name, False, "no sync")
    last = syncs[-1]
    updates = sum(update.stepped for report in reports for update in report.updates)
    reason = f"version {last.version} after {updates} updates"
    if last.names_expected is None:
        return Check(name, last.version >= updates, f"the backend's own service sends them and names none, {reason}")
    whole = all(sync.names_sent == (sync.names_expected or None) for sync in syncs)
    reason = f"{last.names_sent} of {last.names_expected} names, {reason}"
    return Check(name, whole and last.version >= updates, reason)
