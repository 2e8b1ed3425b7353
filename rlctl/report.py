"""From records to metrics: one flat object a step, with verl's names, every number finite or absent.

Names are listed in docs/metrics.md. Nothing is guessed: a value that cannot be computed is None, with the
reason beside it where there is one (`perf/mfu/actor/reason`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from rlctl.perf import mfu
from rlctl.rewards.outcome import FAILURE_KINDS
from rlctl.step_report import StepReport
from rlctl.types import BackendInfo, EpisodeEnd, OptimStats, Rollout

Metrics = dict[str, Any]


def step_metrics(report: StepReport, info: BackendInfo, *, task: str, epoch: int, seconds: float) -> Metrics:
    """The metrics of one step that took `seconds` in all; `task` names the reward whose value is the score."""
    return {
        "training/global_step": report.step,
        "training/epoch": epoch,
        **_reward_metrics(report, task),
        **_filling_metrics(report),
        **_by_source(report, task),
        **_length_metrics(report),
        **episode_metrics(report.rollouts, seconds=report.seconds.get("environment", 0.0)),
        **_actor_metrics(report),
        **_correction_metrics(report),
        **_overlap_metrics(report),
        **_timing_metrics(report, seconds),
        **_perf_metrics(report, info, seconds),
    }


def _reward_metrics(report: StepReport, task: str) -> Metrics:
    rollouts = report.rollouts
    names = sorted({name for rollout in rollouts for name in rollout.scores})
    num_groups = len(report.groups)
    solved = [_share_solved(group, task) for group in report.groups]
    return {
        "score/mean": mean(r.scores[task] for r in rollouts if task in r.scores),
        "reward/mean": mean(r.reward for r in rollouts if r.reward is not None),
        **{f"reward/{name}/mean": mean(r.scores[name] for r in rollouts if name in r.scores) for name in names},
        **_shaping_metrics(report),
        "reward/failed": sum(r.reward is None for r in rollouts),
        **{f"reward/failures/{kind}": count for kind, count in failures_by_kind(rollouts).items()},
        "reward/shrunk_groups": report.shrunk_groups,
        "reward/frac_zero_signal": ratio(report.zero_signal_groups, num_groups),
        "reward/solved_none": ratio(sum(share == 0 for share in solved), num_groups),
        "reward/solved_some": ratio(sum(0 < share < 1 for share in solved), num_groups),
        "reward/solved_all": ratio(sum(share == 1 for share in solved), num_groups),
        "reward/identical_groups": sum(len({r.text for r in group}) == 1 for group in report.groups),
        "advantages/mean": mean(report.advantages),
        "advantages/min": min(report.advantages, default=None),
        "advantages/max": max(report.advantages, default=None),
    }


def _shaping_metrics(report: StepReport) -> Metrics:
    """What length and KL took off the rewards; nothing where they are left alone."""
    metrics: Metrics = {}
    if any(r.shaping for r in report.rollouts):
        metrics["reward/shaping/mean"] = mean(r.shaping for r in report.rollouts if r.reward is not None)
    if any(r.baseline is not None for r in report.rollouts):
        metrics["reward/baseline/mean"] = mean(group[0].baseline for group in report.groups)
    if (kl := report.kl_in_reward) is not None:
        metrics["reward/kl/mean"] = ratio(kl.token_sum, kl.tokens)
        metrics["actor/reward_kl_penalty"] = kl.mean_of_completions
        metrics["actor/reward_kl_penalty_coeff"] = kl.coef
    return metrics


def _filling_metrics(report: StepReport) -> Metrics:
    """What dynamic sampling did; nothing where it is off."""
    if report.filled is None:
        return {}
    return {
        "rollout/refills": report.filled.refills,
        "rollout/sampled_groups": len(report.groups),
        "rollout/replaced_groups": report.filled.replaced_groups,
        "rollout/missing_groups": report.filled.missing_groups,
        "rollout/surplus_groups": report.filled.surplus_groups,
    }


def _by_source(report: StepReport, task: str) -> Metrics:
    """Where a step has problems of several sources: each one's groups, score, reward and signal."""
    sources = sorted({group[0].problem.source for group in report.groups})
    metrics: Metrics = {}
    for source in sources if len(sources) > 1 else ():
        groups = [group for group in report.groups if group[0].problem.source == source]
        rollouts = [rollout for group in groups for rollout in group]
        equal = sum(len({r.reward for r in group if r.reward is not None}) < 2 for group in groups)
        metrics |= {
            f"data/{source}/groups": len(groups),
            f"data/{source}/score/mean": mean(r.scores[task] for r in rollouts if task in r.scores),
            f"data/{source}/reward/mean": mean(r.reward for r in rollouts if r.reward is not None),
            f"data/{source}/frac_zero_signal": ratio(equal, len(groups)),
            f"data/{source}/response_length/mean": mean(len(r.completion.token_ids) for r in rollouts),
        }
    return metrics


def failures_by_kind(rollouts: Iterable[Rollout]) -> dict[str, int]:
    """How many calls of rewards failed, for every kind there is."""
    counted = Counter(kind for rollout in rollouts for kind in rollout.failures)
    return {kind: counted[kind] for kind in FAILURE_KINDS}


def troubles(report: StepReport) -> list[str]:
    """What a person should be told of a step beside its metrics, a line each."""
    lines = without_reward(report.rollouts)
    if len(report.groups) > 1 and all(len({r.text for r in group}) == 1 for group in report.groups):
        lines.append("the completions of each prompt are all the same text")
    return lines


def without_reward(rollouts: Iterable[Rollout]) -> list[str]:
    """How many completions count for nothing, of which kind, and the first reason; no line where none does."""
    failed = [rollout for rollout in rollouts if rollout.reward is None]
    if not failed:
        return []
    kinds = ", ".join(f"{n} {kind}" for kind, n in failures_by_kind(failed).items() if n)
    many = (
        "1 completion has no reward and is" if len(failed) == 1 else f"{len(failed)} completions have no reward and are"
    )
    return [f"{many} left out ({kinds}): {failed[0].note}"]


def _share_solved(group: Sequence[Rollout], task: str) -> float:
    """Share of a group's completions with a full score of the task; a failed reward solves nothing."""
    return sum(rollout.scores.get(task, 0.0) >= 1.0 for rollout in group) / len(group)


def _length_metrics(report: StepReport) -> Metrics:
    lengths = [len(r.completion.token_ids) for r in report.rollouts]
    return {
        "response_length/mean": mean(lengths),
        "response_length/min": min(lengths, default=None),
        "response_length/max": max(lengths, default=None),
        "response_length/clip_ratio": ratio(sum(r.completion.truncated for r in report.rollouts), len(lengths)),
        "prompt_length/mean": mean(len(group[0].prompt.token_ids) for group in report.groups),
    }


def episode_metrics(rollouts: Sequence[Rollout], *, seconds: float) -> Metrics:
    """What an environment did in its `seconds`; nothing where none answers."""
    episodes = [rollout.episode for rollout in rollouts if rollout.episode is not None]
    if not episodes:
        return {}
    turns = [episode.num_turns for episode in episodes]
    own = sorted({name for episode in episodes for name in episode.metrics})
    endings = Counter(episode.ending for episode in episodes)
    return {
        "num_turns/mean": mean(turns),
        "num_turns/min": min(turns),
        "num_turns/max": max(turns),
        "environment/tool_calls/mean": mean(episode.tool_calls for episode in episodes),
        "environment/tool_errors/mean": mean(episode.tool_errors for episode in episodes),
        "environment/observation_tokens/mean": mean(episode.observation_tokens for episode in episodes),
        "environment/answers_cut/mean": mean(episode.answers_cut for episode in episodes),
        "environment/reward/mean": mean(episode.reward for episode in episodes),
        **{f"environment/ended_by/{ending}": ratio(endings[ending], len(episodes)) for ending in get_args(EpisodeEnd)},
        **{
            f"environment/metrics/{name}/mean": mean(episode.metrics.get(name, 0.0) for episode in episodes)
            for name in own
        },
        "timing_s/environment": seconds,
    }


def _actor_metrics(report: StepReport) -> Metrics:
    total, num_updates = report.loss, len(report.losses)
    gap = report.rollout_gap
    return {
        "actor/loss": ratio(total.loss, num_updates),
        "actor/pg_loss": ratio(total.pg_loss, num_updates),
        "actor/kl_loss": ratio(total.kl_loss, num_updates),
        "actor/ppo_kl": ratio(total.ppo_kl_sum, total.tokens),
        "actor/entropy": ratio(total.entropy_sum, total.tokens),
        "actor/pg_clipfrac": ratio(total.clipped_tokens, total.tokens),
        "actor/ratio_deviation_first": report.losses[0].max_ratio_deviation if report.losses else None,
        "actor/ratio_deviation_max": total.max_ratio_deviation if report.losses else None,
        "actor/grad_norm": mean(update.grad_norm for update in report.updates),
        "actor/lr": report.lr,
        "actor/updates": sum(update.stepped for update in report.updates),
        "actor/skipped_updates": sum(not update.stepped for update in report.updates),
        "actor/empty_updates": report.empty_updates,
        "actor/weights_changed": _most_changed(report.updates),
        "actor/masked_truncated_rows": report.masked_rows,
        "actor/train_rows": sum(loss.rows for loss in report.losses),
        "training/rollout_probs_diff_mean": gap[0] if gap else None,
        "training/rollout_probs_diff_max": gap[1] if gap else None,
        "training/weights_version": report.sync.version if report.sync else None,
    }


def _correction_metrics(report: StepReport) -> Metrics:
    """How far the sampler was from the trainer, and its weights; nothing where the trainer did not score the samples.

    Weights are those before they are bounded.
    """
    found = report.correction
    if found is None:
        return {}
    metrics: Metrics = {
        "rollout_corr/kl": ratio(found.kl_sum, found.tokens),
        "rollout_corr/k3_kl": ratio(found.k3_sum, found.tokens),
    }
    if found.weight_sum is not None and found.outside is not None:
        metrics |= {
            "rollout_corr/rollout_is_mean": ratio(found.weight_sum, found.tokens),
            "rollout_corr/rollout_is_min": found.weight_min,
            "rollout_corr/rollout_is_max": found.weight_max,
            "rollout_corr/rollout_is_frac_outside": ratio(found.outside, found.tokens),
        }
    return metrics


def _overlap_metrics(report: StepReport) -> Metrics:
    """How old the samples were, and which side waited for the other; nothing where they take turns."""
    overlap = report.overlap
    if overlap is None:
        return {}
    return {
        "training/staleness_mean": mean(report.staleness),
        "training/staleness_max": max(report.staleness, default=None),
        "timing_s/wait_for_samples": max(0.0, overlap.seconds - overlap.training),
        "timing_s/wait_for_update": max(0.0, overlap.seconds - overlap.sampling),
        "perf/overlap": overlap.share,
    }


def _most_changed(updates: Sequence[OptimStats]) -> float | None:
    known = [update.changed_fraction for update in updates if update.changed_fraction is not None]
    return max(known, default=None if updates else 0.0)


PHASES = ("gen", "reward", "old_log_prob", "ref", "update_actor", "update_weights")


def _timing_metrics(report: StepReport, seconds: float) -> Metrics:
    phases = {f"timing_s/{phase}": report.seconds.get(phase, 0.0) for phase in PHASES}
    return {**phases, "timing_s/step": seconds}


def _perf_metrics(report: StepReport, info: BackendInfo, seconds: float) -> Metrics:
    total = report.loss
    update_seconds = report.seconds.get("update_actor", 0.0)
    peak: Mapping[str, Any] = {
        "peak_flops": info.peak_flops,
        "num_devices": info.num_devices,
        "peak_source": info.peak_source,
    }
    actor = mfu(flops=total.flops, seconds=update_seconds, **peak)
    step = mfu(flops=total.flops + report.generation.flops, seconds=seconds, **peak)
    tokens = sum(len(r.prompt.token_ids) + len(r.completion.token_ids) for r in report.rollouts)
    memory = [u.max_memory_bytes for u in report.updates if u.max_memory_bytes is not None]
    return {
        "perf/mfu/actor": actor.fraction if report.losses else None,
        "perf/mfu/actor/reason": actor.reason if report.losses else "nothing was trained on",
        "perf/mfu/step": step.fraction,
        "perf/mfu/step/reason": step.reason,
        "perf/flops/actor": total.flops,
        "perf/flops/gen": report.generation.flops,
        "perf/peak_flops_per_device": info.peak_flops,
        "perf/num_devices": info.num_devices,
        "perf/tflops_per_device": _per_device(total.flops, update_seconds, info),
        "perf/tokens_per_s": ratio(tokens, seconds),
        "perf/tokens_per_s_per_device": ratio(tokens, seconds * info.num_devices),
        "perf/sampled_tokens_per_s": ratio(report.generation.tokens, report.seconds.get("gen", 0.0)),
        "perf/dedup_factor": ratio(total.tokens_delivered, total.tokens_computed),
        "perf/max_memory_allocated_gb": max(memory) / 2**30 if memory else None,
    }


def _per_device(flops: float, seconds: float, info: BackendInfo) -> float | None:
    """TFLOP/s of one device over the update."""
    per_second = ratio(flops, seconds * info.num_devices)
    return None if not per_second else per_second / 1e12


def evaluation_metrics(groups: Sequence[Sequence[Rollout]], *, task: str, seconds: float) -> Metrics:
    """val-core and val-aux metrics of one evaluation, by source of the problems: [P][N] rollouts."""
    metrics: Metrics = {"timing_s/testing": seconds}
    for source in sorted({group[0].problem.source for group in groups}):
        metrics |= _source_metrics(source or "data", [g for g in groups if g[0].problem.source == source], task)
    return metrics


def _source_metrics(source: str, groups: Sequence[Sequence[Rollout]], task: str) -> Metrics:
    rollouts = [rollout for group in groups for rollout in group]
    n = len(groups[0])
    others = sorted({name for rollout in rollouts for name in rollout.scores} - {task})
    return {
        # Over problems, as the intervals of `rlctl eval` are, also where some rewards of a group failed.
        f"val-core/{source}/acc/mean@{n}": mean(mean(r.scores.get(task) for r in group) for group in groups),
        f"val-core/{source}/reward/mean@{n}": mean(mean(r.reward for r in group) for group in groups),
        **{
            f"val-core/{source}/pass@{k}": mean(solved_by(group, task, k) for group in groups) for k in powers_of_two(n)
        },
        **{
            f"val-aux/{source}/{name}/mean@{n}": mean(r.scores[name] for r in rollouts if name in r.scores)
            for name in others
        },
        **_played_metrics(source, rollouts),
        f"val-aux/{source}/num_problems": len(groups),
        f"val-aux/{source}/failed": sum(r.reward is None for r in rollouts),
        f"val-aux/{source}/response_length/mean": mean(len(r.completion.token_ids) for r in rollouts),
        f"val-aux/{source}/response_length/clip_ratio": ratio(
            sum(r.completion.truncated for r in rollouts), len(rollouts)
        ),
    }


def _played_metrics(source: str, rollouts: Sequence[Rollout]) -> Metrics:
    """Turns and tools of an evaluation; nothing where no environment answers."""
    found = episode_metrics(rollouts, seconds=0.0)
    shown = ("num_turns/mean", "environment/tool_calls/mean", "environment/tool_errors/mean")
    return {f"val-aux/{source}/{key.removeprefix('environment/')}": found[key] for key in shown if found}


def solved_by(group: Sequence[Rollout], task: str, k: int) -> float | None:
    """pass@k of one problem, from the completions whose reward did not fail; None where these are fewer than k."""
    scores = [rollout.scores[task] for rollout in group if task in rollout.scores]
    return pass_at_k(len(scores), sum(score >= 1.0 for score in scores), k) if len(scores) >= k else None


def powers_of_two(n: int) -> list[int]:
    return [2**i for i in range(1, n.bit_length()) if 2**i <= n]


def pass_at_k(n: int, solved: int, k: int) -> float:
    """Chance that at least one of k of the n completions is right, unbiased.

    Source: Chen et al. 2021, https://arxiv.org/abs/2107.03374, equation 1.
    """
    if n - solved < k:
        return 1.0
    return 1.0 - math.prod((n - solved - i) / (n - i) for i in range(k))


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are there; None of none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
