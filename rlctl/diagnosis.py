"""What a run's metrics say is going wrong: each finding in one line with its figures, and what to do about it.

A pure function of the records of `metrics.jsonl`, for the live view, reports and whoever reads a run later. It speaks
of means over the last steps, since one step of a few groups says little; and it is silent where a figure is absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Metrics = Mapping[str, Any]

WINDOW = 5
"""Steps that a finding speaks of. With 32 groups each, the standard error of a share of groups is at most 0.04."""

FEWEST_STEPS = 3
"""Steps before anything is said that chance could cause. What is wrong by construction is told at the first."""

MISMATCH_LIMIT = 0.01
"""Mean |sampler's - trainer's probability| of a sampled token. Rounding to bfloat16 on both sides makes 0.008
(rlctl/verdict.py), so that more than this is another computation: other weights, another template, another filter."""

ENTROPY_LEFT = 0.1
"""Share of the entropy of the first steps below which it has collapsed. Of runs with four model families, 94 % of the
entropy was gone where 93 % of the gain had come: what comes after that is little.
Source: Cui et al. 2025, https://arxiv.org/abs/2505.22617, section 2."""

TRUNCATED_LIMIT = 0.2
"""Share of completions cut at the limit. Their score says "too long" and nothing of the reasoning before it; from a
fifth on that is a large part of the signal. Source of the harm: DAPO, https://arxiv.org/abs/2503.14476, section 3.4."""

DEAD_GROUPS_LIMIT = 0.8
"""Share of groups whose rewards are all equal. With a fifth of a batch left to learn from, the noise of its gradient is
that of a batch a fifth as large, sqrt(5) = 2.2 times as much, for the same sampling.
Source of the harm: DAPO, section 3.2."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: `key` for programs, `text` with the figures, and the `cure`."""

    key: str
    text: str
    cure: str

    @property
    def line(self) -> str:
        return f"{self.text}; {self.cure}"


def diagnose(history: Sequence[Metrics], *, max_response_length: int | None = None) -> list[Finding]:
    """What is wrong with a run, the gravest first; nothing where nothing is. `history`: records of its steps, in order.

    Records without a step's metrics, as that of the evaluation before training, say nothing.
    """
    steps = [record for record in history if "score/mean" in record or "timing_s/step" in record]
    recent = steps[-WINDOW:]
    looks: list[Callable[[], Finding | None]] = [
        lambda: _refused_updates(recent),
        lambda: _mismatch(recent),
        lambda: _all_zero(recent),
        lambda: _entropy_collapse(steps),
        lambda: _length_limit(recent, max_response_length),
        lambda: _dead_groups(recent),
    ]
    return [finding for look in looks if (finding := look()) is not None]


def numbers(history: Sequence[Metrics], key: str) -> list[float]:
    """The metric's values that are there and finite."""
    return [number for record in history if (number := _number(record.get(key))) is not None]


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _last(values: Sequence[Any]) -> str:
    return f"the last {len(values)} steps" if len(values) > 1 else "the last step"


def _refused_updates(recent: Sequence[Metrics]) -> Finding | None:
    refused = sum(numbers(recent, "actor/skipped_updates"))
    if not refused:
        return None
    tried = refused + sum(numbers(recent, "actor/updates"))
    return Finding(
        "refused_updates",
        f"{refused:.0f} of {tried:.0f} updates of {_last(recent)} were refused: their gradient was not finite",
        "lower trainer.lr; the rows are in the run's dumps folder (rlctl debug replay)",
    )


def _mismatch(recent: Sequence[Metrics]) -> Finding | None:
    gaps = numbers(recent, "training/rollout_probs_diff_mean")
    if not gaps or _mean(gaps) <= MISMATCH_LIMIT:
        return None
    return Finding(
        "mismatch",
        f"sampler and trainer disagree: probabilities differ by {_mean(gaps):.2g} on average over {_last(gaps)} "
        f"(limit {MISMATCH_LIMIT:g})",
        "compare dtypes, weights and sampling filters of the two: rlctl smoke, rlctl check-backend --live",
    )


def _all_zero(recent: Sequence[Metrics]) -> Finding | None:
    """No completion has any score; a mean of 0 over scores of both signs is told apart by its solved groups."""
    scores, unsolved = numbers(recent, "score/mean"), numbers(recent, "reward/solved_none")
    if len(scores) < FEWEST_STEPS or any(scores) or any(share < 1 for share in unsolved):
        return None
    return Finding(
        "all_zero_rewards",
        f"every score of {_last(scores)} is 0",
        "read samples.jsonl: is the answer in a form that the reward does not read (rlctl reward check), cut off, or "
        "are the problems too hard for this model",
    )


def _entropy_collapse(steps: Sequence[Metrics]) -> Finding | None:
    entropies = numbers(steps, "actor/entropy")
    if len(entropies) < 2 * WINDOW:
        return None
    first, last = _mean(entropies[:WINDOW]), _mean(entropies[-WINDOW:])
    if last >= ENTROPY_LEFT * first:
        return None
    return Finding(
        "entropy_collapse",
        f"entropy has collapsed: {last:.2g} nats a token over {_last(entropies[-WINDOW:])}, {_percent(last / first)} "
        f"of the {first:.2g} at the start",
        "if the score has stopped rising, raise algorithm.clip_ratio_high (DAPO: 0.28) or algorithm.entropy_coeff, or "
        "lower trainer.lr",
    )


def _length_limit(recent: Sequence[Metrics], limit: int | None) -> Finding | None:
    shares = numbers(recent, "response_length/clip_ratio")
    if len(shares) < FEWEST_STEPS or _mean(shares) < TRUNCATED_LIMIT:
        return None
    at = f" at {limit:,} tokens" if limit is not None else ""
    return Finding(
        "length_limit",
        f"{_percent(_mean(shares))} of the completions of {_last(shares)} were cut{at}",
        "raise rollout.max_response_length, or ask for shorter answers in the prompt",
    )


def _dead_groups(recent: Sequence[Metrics]) -> Finding | None:
    """Not where every score is 0: that is the same finding, told before with its own cure."""
    flat = numbers(recent, "reward/frac_zero_signal")
    if len(flat) < FEWEST_STEPS or _mean(flat) < DEAD_GROUPS_LIMIT or _all_zero(recent) is not None:
        return None
    shares = {kind: numbers(recent, f"reward/solved_{kind}") for kind in ("all", "none")}
    solved, unsolved = (_mean(values) if values else 0.0 for values in shares.values())
    return Finding(
        "dead_groups",
        f"{_percent(_mean(flat))} of the groups of {_last(flat)} teach nothing ({_percent(solved)} solved by all "
        f"samples, {_percent(unsolved)} by none)",
        _cure_of_dead_groups(easy=solved >= unsolved, refilled=bool(numbers(recent, "rollout/refills"))),
    )


def _cure_of_dead_groups(*, easy: bool, refilled: bool) -> str:
    data = "take harder problems" if easy else "take easier problems, or raise rollout.n"
    if refilled:
        return f"{data}: replacing them costs most of the sampling"
    return f"{data}, or let them rest (data.curriculum.enabled) or be replaced (algorithm.filter_groups)"
