"""Rows -> the batch that the platform computes on, and its log-probs back.

A batch is dense: prompts padded on the left to P, responses on the right to R, so that column P is the first
token of every response. What belongs to a response token stands in that token's column, zeros elsewhere.

Returned log-probs stand one column earlier (that of the token they were predicted from), unless the server
computes shared prompts (zorro). In padding they are not 0 but the pad id, so only real tokens are read.

Letters: B rows with those added to fill the ranks, P prompt columns, R response columns, S = P + R.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlctl.backends.arctic import jobs
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.errors import BackendError
from rlctl.types import JobSpec, LogProbs, LossSpec, TrainRow

Payload = dict[str, Any]

_KL_NAMES = {"k1": "k1", "k2": "k2", "k3": "low_var_kl"}
SCORE: Payload = {"post": ["compute_entropy_and_logprobs"], "loss_fn": None, "config": {}}
"""`loss_fn` is told although there is none: left out, the server takes one that cannot run."""
SCORE_AT_TEMPERATURE: Payload = {**SCORE, "post": ["apply_temperature", "compute_entropy_and_logprobs"]}
UPDATE: Payload = {"post": ["apply_temperature", "compute_entropy_and_logprobs"], "loss_fn": "verl_grpo", "config": {}}


@dataclass(frozen=True, slots=True)
class Layout:
    """How some rows lie in a batch."""

    rows: Sequence[TrainRow]
    """Those asked for, none with an empty completion, and behind them copies that only fill the ranks."""
    num_real: int
    prompt_columns: int
    response_columns: int
    pad_id: int

    @property
    def columns(self) -> int:
        return self.prompt_columns + self.response_columns


def layout(rows: Sequence[TrainRow], *, settings: ArcticSettings, job: JobSpec, pad_id: int, multiple: int) -> Layout:
    """Lay out rows, filled up to a multiple of ranks x micro-batches with copies of the last one."""
    assert rows, "nothing to lay out"
    filler = [rows[-1]] * (-len(rows) % multiple)
    prompts, responses = max(len(r.prompt_ids) for r in rows), max(len(r.completion_ids) for r in rows)
    if settings.zorro_train:  # patched into the model with these lengths
        prompts, responses = max(prompts, job.max_prompt_length), max(responses, job.max_response_length)
    return Layout([*rows, *filler], len(rows), prompts, responses, pad_id)


def score_payload(lay: Layout, *, settings: ArcticSettings, job: JobSpec, ranks: int) -> Payload:
    """What `fwd_no_grad` wants."""
    # Zorro divides by the temperature in the model, from its worker's configuration.
    scaled = job.temperature != 1 and not settings.zorro_train
    return {
        "batch": _tokens(lay, drop_position_ids=settings.drop_position_ids),
        "meta": _meta(lay, settings=settings, job=job, ranks=ranks),
        "processing": SCORE_AT_TEMPERATURE if scaled else SCORE,
    }


def update_payload(
    lay: Layout, *, settings: ArcticSettings, job: JobSpec, loss: LossSpec, loss_denominator: float
) -> Payload:
    """What `fwd_bwd` wants. Every real row has `old_logprobs`, and `ref_logprobs` where there is a KL term."""
    columns: list[list[LogProbs | None]] = [[row.old_logprobs for row in lay.rows]]
    batch = _tokens(lay, drop_position_ids=settings.drop_position_ids)
    batch["responses"] = batch["input_ids"][:, lay.prompt_columns :].contiguous()
    mask_BS = _response_mask(lay)
    batch |= {"response_mask": mask_BS, "loss_mask": mask_BS.clone()}
    batch["old_log_probs"] = _response_values(lay, columns[0])
    batch["advantages"] = _response_values(lay, [row.advantages for row in lay.rows])
    if loss.kl_coef > 0:
        batch["ref_log_prob"] = _response_values(lay, [row.ref_logprobs for row in lay.rows])
    meta = _meta(lay, settings=settings, job=job, ranks=settings.training_gpus)
    return {"batch": batch, "meta": {**meta, **_loss_meta(lay, loss, loss_denominator)}, "processing": UPDATE}


def _tokens(lay: Layout, *, drop_position_ids: bool) -> dict[str, Tensor]:
    ids_BS = np.full((len(lay.rows), lay.columns), lay.pad_id, dtype=np.int64)
    mask_BS = np.zeros_like(ids_BS)
    for i, row in enumerate(lay.rows):
        start, end = lay.prompt_columns - len(row.prompt_ids), lay.prompt_columns + len(row.completion_ids)
        ids_BS[i, start:end] = np.concatenate([row.prompt_ids, row.completion_ids])
        mask_BS[i, start:end] = 1
    batch = {
        "input_ids": torch.from_numpy(ids_BS),
        "attention_mask": torch.from_numpy(mask_BS),
        "prompts": torch.from_numpy(ids_BS[:, : lay.prompt_columns].copy()),
    }
    if not drop_position_ids:
        batch["position_ids"] = torch.from_numpy((mask_BS.cumsum(axis=1) - 1).clip(min=0) * mask_BS)
    return batch


def _response_mask(lay: Layout) -> Tensor:
    mask_BS = np.zeros((len(lay.rows), lay.columns), dtype=np.int64)
    for i, row in enumerate(lay.rows[: lay.num_real]):  # rows that only fill the ranks teach nothing
        mask_BS[i, lay.prompt_columns : lay.prompt_columns + len(row.completion_ids)] = 1
    return torch.from_numpy(mask_BS)


def _response_values(lay: Layout, values: Sequence[LogProbs | None]) -> Tensor:
    """One value for each response token, in its own column: [B] of [C] -> [B, S] float32."""
    out_BS = np.zeros((len(lay.rows), lay.columns), dtype=np.float32)
    for i, row_values in enumerate(values[: lay.num_real]):
        assert row_values is not None, "log-probs are missing on a row"
        out_BS[i, lay.prompt_columns : lay.prompt_columns + len(row_values)] = row_values
    return torch.from_numpy(out_BS)


def _meta(lay: Layout, *, settings: ArcticSettings, job: JobSpec, ranks: int) -> Payload:
    return {
        "pad_token_id": lay.pad_id,
        "max_prompt_len": lay.prompt_columns,
        "max_response_len": lay.response_columns,
        "max_token_len_per_gpu": job.max_tokens_per_device,
        "rollout_n": jobs.group_size(job),
        "zorro_train_enable": settings.zorro_train,
        "zorro_train_max_rollouts": shared_rows(settings, job),
        "load_balancer": _may_balance(lay, settings=settings, job=job, ranks=ranks),
        "temperature": float(job.temperature),
        "calculate_entropy": True,
        "drop_position_ids": settings.drop_position_ids,
        **jobs.logits(settings),
    }


def shared_rows(settings: ArcticSettings, job: JobSpec) -> int:
    return settings.zorro_max_rollouts or jobs.group_size(job)


def _may_balance(lay: Layout, *, settings: ArcticSettings, job: JobSpec, ranks: int) -> bool:
    """Whether the server's balancer would take this batch: it wants more rows than ranks, groups that pack exactly,
    and room for a group of rows in one rank's token budget."""
    rows, most = len(lay.rows), shared_rows(settings, job)
    fits = lay.prompt_columns + lay.response_columns * most <= job.max_tokens_per_device
    wanted = settings.load_balancer and ranks > 1 and rows > ranks and rows % ranks == 0
    return wanted and fits and _packs(group_sizes(lay.rows, most=most), rows // ranks)


def group_sizes(rows: Sequence[TrainRow], *, most: int) -> list[int]:
    """Rows of each prompt, in pieces of `most`, as the balancer cuts them."""
    counts = Counter(row.prompt_ids.tobytes() for row in rows).values()
    return [min(most, count - start) for count in counts for start in range(0, count, most)]


def _packs(sizes: Sequence[int], share: int) -> bool:
    """Whether whole groups are sure to fill every rank's share exactly; where they do not, the server fails.

    It places one group after the other, the largest first, wherever there is room. If each size divides every larger
    one and the share, the room left anywhere is always a multiple of the next group.
    """
    chain = [share, *sorted(set(sizes), reverse=True)]
    return all(larger % smaller == 0 for larger, smaller in pairwise(chain))


def _loss_meta(lay: Layout, loss: LossSpec, denominator: float) -> Payload:
    return {
        "actor_config": {
            "loss_agg_mode": loss.loss_agg_mode,
            "clip_ratio": loss.clip_ratio_low,
            "clip_ratio_low": loss.clip_ratio_low,
            "clip_ratio_high": loss.clip_ratio_high,
            "clip_ratio_c": loss.clip_ratio_c,
            "entropy_coeff": loss.entropy_coeff,
            "use_kl_loss": loss.kl_coef > 0,
            "kl_loss_coef": loss.kl_coef,
            "kl_loss_type": _KL_NAMES.get(loss.kl_estimator, "low_var_kl"),  # another is refused, or has no weight
        },
        "policy_loss_config": {"loss_mode": "vanilla"},
        "global_batch_size": lay.num_real,
        "batch_num_tokens": int(denominator) if float(denominator).is_integer() else float(denominator),
        "rollout_is_weights": None,
    }


def response_values(reply: Any, name: str, *, lay: Layout, zorro: bool) -> list[LogProbs]:
    """One value for each response token of the real rows, from a reply's `batch[name]` [B, S].

    `zorro` says that values stand in the column of their own token; else in the one before. Raises BackendError when
    the reply is of another form, or a value is not a number.
    """
    values_BS = _table(reply, name, lay=lay)
    first = lay.prompt_columns - (0 if zorro else 1)
    parts = [
        values_BS[i, first : first + len(row.completion_ids)].copy() for i, row in enumerate(lay.rows[: lay.num_real])
    ]
    if not all(np.isfinite(part).all() for part in parts):
        raise BackendError(
            f"the platform's fwd_no_grad returned {name} that are not finite.",
            hint="the weights may have diverged: lower trainer.lr, and start from an earlier checkpoint.",
        )
    return parts


def _table(reply: Any, name: str, *, lay: Layout) -> npt.NDArray[np.float32]:
    batch = reply.get("batch") if isinstance(reply, dict) else None
    if not isinstance(batch, dict) or name not in batch:
        raise BackendError(f"the platform's fwd_no_grad returned no {name}: {_described(reply)}.")
    # bfloat16 has no counterpart in numpy, and rounding happens once, where it was computed.
    values = torch.as_tensor(batch[name]).detach().to("cpu", torch.float32)
    wanted = (len(lay.rows), lay.columns)
    if tuple(values.shape) != wanted:
        raise BackendError(f"the platform's fwd_no_grad returned {name} of shape {tuple(values.shape)}, not {wanted}.")
    table: npt.NDArray[np.float32] = values.numpy()
    return table


def _described(reply: Any) -> str:
    return f"its keys are {sorted(map(str, reply))}" if isinstance(reply, dict) else f"it is {type(reply).__name__}"
