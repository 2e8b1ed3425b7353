"""What the stand-in platform computes of a batch, as the wire describes it: rows, log-probs, rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlctl.types import LossSpec, TrainRow

if TYPE_CHECKING:
    from tests.arctic.platform import Job

KL_NAMES = {"k1": "k1", "kl": "k1", "k2": "k2", "mse": "k2", "k3": "k3", "low_var_kl": "k3"}


def temperature(job: Job, meta: dict[str, Any], post: list[str]) -> float:
    if meta["zorro_train_enable"]:
        return float(job.config["ds_worker_config"]["temperature"])
    return float(meta["temperature"]) if "apply_temperature" in post else 1.0


def balance(batch: dict[str, Tensor], meta: dict[str, Any], ranks: int) -> None:
    """Place whole groups of equal prompts on ranks of equal room, the largest and dearest first, on the cheapest."""
    prompts, mask = batch["prompts"], batch["attention_mask"]
    most = meta.get("zorro_train_max_rollouts", meta["rollout_n"])
    columns, width = prompts.shape[1], meta["max_response_len"]
    if meta["max_token_len_per_gpu"] < columns + width * most:
        raise ValueError("max_token_len is smaller than a group")
    alike: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts.tolist()):
        alike.setdefault(tuple(prompt), []).append(i)
    groups = [rows[i : i + most] for rows in alike.values() for i in range(0, len(rows), most)]
    costs = [int(mask[group[0], :columns].sum() + mask[group, columns:].sum()) for group in groups]
    room, loads = [len(prompts) // ranks] * ranks, [0] * ranks
    for size, cost in sorted(((len(g), c) for g, c in zip(groups, costs, strict=True)), reverse=True):
        rank = next((r for r in sorted(range(ranks), key=lambda r: loads[r]) if room[r] >= size), None)
        if rank is None:
            raise ValueError("a group fits nowhere")
        room[rank] -= size
        loads[rank] += cost


def loss_spec(meta: dict[str, Any]) -> LossSpec:
    actor = meta["actor_config"]
    assert meta["policy_loss_config"]["loss_mode"] == "vanilla"
    return LossSpec(
        clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0,
        kl_coef=actor["kl_loss_coef"] if actor["use_kl_loss"] else 0.0,
        kl_estimator=KL_NAMES[actor["kl_loss_type"]],  # type: ignore[arg-type]
        entropy_coeff=actor["entropy_coeff"], loss_agg_mode=actor["loss_agg_mode"], max_response_length=1,
    )  # fmt: skip


def rows_of(batch: dict[str, Tensor], *, kl: bool) -> list[TrainRow]:
    """The rows of a batch that have a response to train on."""
    columns = batch["prompts"].shape[1]
    rows = []
    for i, mask in enumerate(batch["response_mask"].bool()):
        assert not mask[:columns].any(), "a response begins at column P"
        assert torch.equal(batch["loss_mask"][i].bool(), mask)
        if not mask.any():
            continue
        real = batch["attention_mask"][i].bool()
        assert torch.equal(real[columns:], mask[columns:])
        _must_be_padded_outside(real, columns)
        assert torch.equal(batch["responses"][i], batch["input_ids"][i, columns:])
        advantages = batch["advantages"][i][mask]
        assert not batch["old_log_probs"][i][~mask].any(), "zeros outside the response"
        old = batch["old_log_probs"][i][mask].float().numpy()
        rows.append(
            TrainRow(
                batch["input_ids"][i, :columns][real[:columns]].numpy().astype(np.int32),
                batch["input_ids"][i][mask].numpy().astype(np.int32),
                float(advantages[0]),
                np.zeros(int(mask.sum()), np.float32),
                old,
                batch["ref_log_prob"][i][mask].float().numpy() if kl else None,
                token_advantages=advantages.float().numpy(),
            )
        )
    return rows


def _must_be_padded_outside(real: Tensor, columns: int) -> None:
    """Prompts end at column P, responses begin there."""
    assert torch.equal(real[:columns].long().sort().values, real[:columns].long())
    assert torch.equal(real[columns:].long().sort(descending=True).values, real[columns:].long())


@torch.no_grad()
def scores(job: Job, batch: dict[str, Tensor], meta: dict[str, Any], post: list[str]) -> dict[str, Tensor]:
    """logprobs and entropy [B, S] by a plain padded forward pass, in the column that the zorro flag asks for."""
    mask = batch["attention_mask"]
    positions = batch.get("position_ids")
    if positions is None:
        assert meta["drop_position_ids"]
        positions = (mask.cumsum(-1) - 1).clamp(min=0) * mask
    model = _plain(job)
    model.load_state_dict(job.backend.policy.causal_lm.state_dict())
    logits = model(input_ids=batch["input_ids"], attention_mask=mask, position_ids=positions).logits.float()
    logprobs = torch.log_softmax(logits / temperature(job, meta, post), dim=-1)
    labels = batch["input_ids"].roll(-1, dims=-1)
    chosen = logprobs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    out = {"logprobs": chosen}
    if meta["calculate_entropy"]:
        out["entropy"] = -(logprobs.exp() * logprobs).sum(-1)
    if meta["zorro_train_enable"]:
        columns = batch["prompts"].shape[1]
        keep = mask.bool() & (torch.arange(mask.shape[1]) >= columns)
        return {name: values.roll(1, dims=-1).where(keep, 0.0) for name, values in out.items()}
    return {name: values.where(mask.bool(), float(meta["pad_token_id"])) for name, values in out.items()}


def _plain(job: Job) -> Any:
    from transformers import AutoModelForCausalLM

    if job.plain is None:
        job.plain = AutoModelForCausalLM.from_pretrained(job.config["model_name"], dtype=torch.float32).eval()
    return job.plain


def rate(ds_config: dict[str, Any], update: int) -> float:
    """DeepSpeed's learning rate of the update-th step, 1.."""
    peak = ds_config["optimizer"]["params"]["lr"]
    schedule = ds_config.get("scheduler")
    if schedule is None:
        return float(peak)
    params, done = schedule["params"], update - 2
    warmup, total = params["warmup_num_steps"], params.get("total_num_steps", 0)
    if done < 0:
        return 0.0
    if done < warmup:
        return float(peak * done / warmup)
    if schedule["type"] == "WarmupDecayLR":
        return float(peak * max(0.0, (total - done) / max(1, total - warmup)))
    assert schedule["type"] == "WarmupLR", schedule["type"]
    return float(params["warmup_max_lr"])
