"""The platform's metrics -> LossStats and OptimStats.

Metrics of an update are means over its response tokens, as one number each; those of a step are one number, or one
for each rank. What the platform does not tell stays None or not a number; nothing is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlctl.backends.arctic.payload import Layout
from rlctl.errors import BackendError
from rlctl.perf import ModelShape
from rlctl.types import Completion, LogProbs, LossSpec, LossStats, OptimStats, Prompt


def loss_stats(
    reply: Any,
    *,
    lay: Layout,
    loss: LossSpec,
    loss_denominator: float,
    shape: ModelShape | None,
    zorro: bool,
    entropy_sum: float | None,
) -> LossStats:
    """What an update did. Raises BackendError when its loss is not finite: the gradient then holds no number either.

    `entropy_sum` is what scoring told of these rows, None where they were not scored.
    """
    metrics = _metrics(reply, "fwd_bwd")
    tokens = sum(len(row.completion_ids) for row in lay.rows[: lay.num_real])
    weight = tokens / loss_denominator
    loss_mean = _number(metrics, "loss")
    if not math.isfinite(loss_mean):
        raise BackendError(
            f"the platform's fwd_bwd returned the loss {loss_mean}; a step would spoil the weights, and its client "
            "cannot clear the gradient.",
            hint="lower trainer.lr, and start from an earlier checkpoint.",
        )
    clipped = _number(metrics, "actor/pg_clipfrac") + _number(metrics, "actor/pg_clipfrac_lower", absent=0.0)
    if entropy_sum is None:
        entropy_sum = _number(metrics, "actor/entropy_loss", absent=math.nan) * tokens
    computed = _num_computed(lay, zorro=zorro)
    return LossStats(
        loss=loss_mean * weight,
        pg_loss=_number(metrics, "actor/pg_loss") * weight,
        kl_loss=loss.kl_coef * _number(metrics, "kl_loss") * weight if loss.kl_coef > 0 else 0.0,
        tokens=tokens,
        rows=lay.num_real,
        entropy_sum=entropy_sum,
        ppo_kl_sum=_number(metrics, "actor/ppo_kl") * tokens,
        clipped_tokens=round(clipped * tokens),
        max_ratio_deviation=None,
        **_gap(lay),
        tokens_delivered=sum(len(r.prompt_ids) + len(r.completion_ids) for r in lay.rows[: lay.num_real]),
        tokens_computed=computed,
        flops=_train_flops(lay, shape=shape, zorro=zorro),
    )


def _gap(lay: Layout) -> dict[str, float]:
    """Sampler against trainer, from the log-probs before the update."""
    gaps = [np.abs(np.exp(r.rollout_logprobs) - np.exp(_known(r.old_logprobs))) for r in lay.rows[: lay.num_real]]
    every = np.concatenate(gaps)
    return {"rollout_probs_diff_sum": float(every.sum()), "rollout_probs_diff_max": float(every.max(initial=0.0))}


def _known(logprobs: LogProbs | None) -> LogProbs:
    assert logprobs is not None, "rows are scored before they are trained on"
    return logprobs


def _num_computed(lay: Layout, *, zorro: bool) -> int:
    completions = sum(len(row.completion_ids) for row in lay.rows)
    prompts = [row.prompt_ids for row in lay.rows]
    if zorro:
        prompts = list({prompt.tobytes(): prompt for prompt in prompts}.values())
    return completions + sum(map(len, prompts))


def _train_flops(lay: Layout, *, shape: ModelShape | None, zorro: bool) -> float:
    """Of the real rows: those that only fill the ranks are no work of the run."""
    if shape is None:
        return math.nan
    real = Layout(lay.rows[: lay.num_real], lay.num_real, lay.prompt_columns, lay.response_columns, lay.pad_id)
    predicted = sum(len(row.completion_ids) for row in real.rows)
    return shape.train_flops(
        tokens=_num_computed(real, zorro=zorro), predicted=predicted, pairs=_pairs(real, zorro=zorro)
    )


def _pairs(lay: Layout, *, zorro: bool) -> int:
    pairs = 0
    seen: set[bytes] = set()
    for row in lay.rows:
        prompt, completion = len(row.prompt_ids), len(row.completion_ids)
        if not (zorro and row.prompt_ids.tobytes() in seen):
            pairs += prompt * (prompt + 1) // 2
            seen.add(row.prompt_ids.tobytes())
        pairs += completion * prompt + completion * (completion + 1) // 2
    return pairs


def generate_flops(shape: ModelShape | None, prompts: Sequence[Prompt], groups: Sequence[list[Completion]]) -> float:
    """Forward FLOPs of sampling, each prompt once; the last token of a completion is never an input."""
    if shape is None:
        return math.nan
    tokens = predicted = pairs = 0
    for prompt, group in zip(prompts, groups, strict=True):
        length = len(prompt.token_ids)
        tokens += length
        pairs += length * (length + 1) // 2
        for fed in (len(c.token_ids) - 1 for c in group):
            tokens += fed
            predicted += fed + 1
            pairs += fed * length + fed * (fed + 1) // 2
    return shape.forward_flops(tokens=tokens, predicted=predicted, pairs=pairs)


def optim_stats(reply: Any) -> OptimStats:
    """What a step did. Raises BackendError when it was taken on a gradient that is not finite.

    The rate is the platform's own, which its scheduler has for the update that follows.
    """
    metrics = _metrics(reply, "step")
    told = metrics.get("grad_norm") is not None  # DeepSpeed does not always report one
    norm = _number(metrics, "grad_norm") if told else math.nan
    if told and not math.isfinite(norm):
        raise BackendError(
            f"the platform stepped on a gradient of norm {norm}; its weights cannot be trusted any more.",
            hint="lower trainer.lr, and start from an earlier checkpoint.",
        )
    return OptimStats(grad_norm=norm, lr=_number(metrics, "last_lr"), stepped=True, changed_fraction=None)


def _metrics(reply: Any, method: str) -> Mapping[str, Any]:
    metrics = reply.get("metrics") if isinstance(reply, Mapping) else None
    if not isinstance(metrics, Mapping):
        raise BackendError(f"the platform's {method} returned no metrics: {str(reply)[:120]}.")
    return metrics


def _number(metrics: Mapping[str, Any], name: str, *, absent: float | None = None) -> float:
    """A metric, or the mean of what each rank says of it. Raises BackendError when it is missing or no number."""
    value = metrics.get(name, absent)
    values = [value] if isinstance(value, (int, float)) else _listed(value)
    if not values or not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        raise BackendError(f"the platform's metrics have no number {name!r}; they are {', '.join(sorted(metrics))}.")
    return math.fsum(values) / len(values)


def _listed(value: Any) -> list[Any]:
    if hasattr(value, "tolist"):  # a tensor
        value = value.tolist()
    return [value] if isinstance(value, (int, float)) else list(value) if isinstance(value, (list, tuple)) else []
