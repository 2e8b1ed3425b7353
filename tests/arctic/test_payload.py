"""Rows as the platform's batches, what is asked for them, and its log-probs back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlctl.backends.arctic import payload
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.errors import BackendError
from rlctl.types import TrainRow
from tests.arctic.computing import balance
from tests.arctic.test_refusals import job


def rows() -> list[TrainRow]:
    def row(prompt: list[int], completion: list[int], advantage: float) -> TrainRow:
        old = np.array([-0.5 * (i + 1) for i in range(len(completion))], np.float32)
        ids = [np.array(each, np.int32) for each in (prompt, completion)]
        return TrainRow(*ids, advantage, np.zeros(len(completion), np.float32), old, old - 1)

    return [row([11], [21, 22, 23], 1.5), row([12, 13], [24], -0.5), row([14], [25, 26], 0.25)]


@pytest.mark.parametrize("zorro", [False, True])
def test_a_payload_is_laid_out_as_the_platform_wants_it(zorro: bool) -> None:
    settings = ArcticSettings(zorro_train=zorro, training_gpus=2, drop_position_ids=False)
    told = replace(job(algorithm__kl_coef=0.1), max_prompt_length=2, max_response_length=3)
    lay = payload.layout(rows(), settings=settings, job=told, pad_id=9, multiple=4)
    loss = told.plan.loss  # type: ignore[union-attr]
    sent = payload.update_payload(lay, settings=settings, job=told, loss=loss, loss_denominator=6.0)
    batch, meta = sent["batch"], sent["meta"]
    assert batch["input_ids"].tolist() == [
        [9, 11, 21, 22, 23], [12, 13, 24, 9, 9], [9, 14, 25, 26, 9], [9, 14, 25, 26, 9],
    ]  # fmt: skip
    assert batch["attention_mask"].tolist()[0] == [0, 1, 1, 1, 1]
    assert batch["position_ids"].tolist()[2] == [0, 0, 1, 2, 0]
    assert batch["prompts"].tolist()[1] == [12, 13]
    assert batch["responses"].tolist()[1] == [24, 9, 9]
    # The fourth row only fills the ranks: it is computed, and teaches nothing.
    assert batch["response_mask"].tolist() == [[0, 0, 1, 1, 1], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0] * 5]
    assert batch["old_log_probs"].tolist()[0] == [0, 0, -0.5, -1.0, -1.5]
    assert batch["ref_log_prob"].tolist()[1] == [0, 0, -1.5, 0, 0]
    assert batch["advantages"].tolist()[:2] == [[0, 0, 1.5, 1.5, 1.5], [0, 0, -0.5, 0, 0]]
    assert torch.equal(batch["loss_mask"], batch["response_mask"])
    assert sent["processing"]["loss_fn"] == "verl_grpo"
    assert sent["processing"]["post"] == ["apply_temperature", "compute_entropy_and_logprobs"]
    assert (meta["batch_num_tokens"], meta["global_batch_size"], meta["rollout_is_weights"]) == (6, 3, None)
    assert isinstance(meta["batch_num_tokens"], int)
    assert (meta["pad_token_id"], meta["max_prompt_len"], meta["max_response_len"]) == (9, 2, 3)
    assert meta["actor_config"]["use_kl_loss"] is True
    assert meta["load_balancer"] is True
    assert not any("." in key for key in (*batch, *meta))
    score = payload.score_payload(lay, settings=settings, job=told, ranks=2)["processing"]
    assert score == {"post": ["compute_entropy_and_logprobs"], "loss_fn": None, "config": {}}


def test_each_token_has_its_own_advantage_where_rows_say_so() -> None:
    settings, told = ArcticSettings(training_gpus=1), job(algorithm__rollout_is="token")
    given = [replace(rows()[0], token_advantages=np.array([3.0, 0.0, -1.0], np.float32)), rows()[1]]
    lay = payload.layout(given, settings=settings, job=told, pad_id=9, multiple=1)
    loss = told.plan.loss  # type: ignore[union-attr]
    sent = payload.update_payload(lay, settings=settings, job=told, loss=loss, loss_denominator=4.0)
    first = lay.prompt_columns
    assert sent["batch"]["advantages"][:, first : first + 3].tolist() == [[3, 0, -1], [-0.5, 0, 0]]


def test_the_balancer_is_asked_for_only_where_it_can_work() -> None:
    def asked(*groups: int, gpus: int = 2, tokens: int = 16384, most: int | None = None) -> bool:
        """Whether for groups of so many rows each."""
        settings = ArcticSettings(training_gpus=gpus, zorro_max_rollouts=most)
        told = replace(job(), max_tokens_per_device=tokens)
        ids, none = np.array([21, 22, 23], np.int32), np.zeros(3, np.float32)
        each = [TrainRow(np.array([i], np.int32), ids, 1.0, none) for i, size in enumerate(groups) for _ in range(size)]
        lay = payload.layout(each, settings=settings, job=told, pad_id=0, multiple=gpus)
        return bool(payload.score_payload(lay, settings=settings, job=told, ranks=gpus)["meta"]["load_balancer"])

    assert asked(4, 4)
    assert asked(8, 8, 8, 8)
    assert asked(2, 4, 2)
    assert not asked(4, 4, gpus=1)
    assert not asked(1, 1, 1, 1, gpus=4)  # as many rows as ranks
    assert not asked(4, 4, tokens=24)  # a group of 8 rows of 1 + 3 tokens needs 25
    # Each rank gets the same number of rows, and groups are not cut for that.
    assert not asked(8, 8, 8)
    assert not asked(4)
    assert not asked(3, 3, 2)
    assert asked(4, most=2)
    assert asked(8, 8, 8, most=4)


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=8), st.integers(2, 4))
def test_groups_that_are_said_to_pack_do(sizes: list[int], ranks: int) -> None:
    share, left = divmod(sum(sizes), ranks)
    if left or not payload._packs(sizes, share):
        return
    prompts = torch.tensor([[i] for i, size in enumerate(sizes) for _ in range(size)])
    batch = {"prompts": prompts, "attention_mask": torch.ones(len(prompts), 2)}
    meta = {"rollout_n": 8, "max_response_len": 1, "max_token_len_per_gpu": 99}
    balance(batch, meta, ranks)  # raises where a group fits nowhere


@pytest.mark.parametrize("zorro", [False, True])
def test_log_probs_are_read_from_the_column_the_zorro_flag_means(zorro: bool) -> None:
    settings = ArcticSettings(zorro_train=zorro)
    told = replace(job(), max_prompt_length=2, max_response_length=3)
    lay = payload.layout(rows(), settings=settings, job=told, pad_id=9, multiple=1)
    table = torch.arange(15, dtype=torch.bfloat16).reshape(3, 5)
    read = payload.response_values({"batch": {"logprobs": table}}, "logprobs", lay=lay, zorro=zorro)
    first = 2 if zorro else 1
    assert [part.tolist() for part in read] == [
        [first, first + 1, first + 2], [5 + first], [10 + first, 11 + first],
    ]  # fmt: skip
    assert read[0].dtype == np.float32
    with pytest.raises(BackendError, match=r"of shape \(2, 5\), not \(3, 5\)"):
        payload.response_values({"batch": {"logprobs": table[:2]}}, "logprobs", lay=lay, zorro=zorro)
    with pytest.raises(BackendError, match="returned no entropy: its keys are"):
        payload.response_values({"batch": {"logprobs": table}}, "entropy", lay=lay, zorro=zorro)
    with pytest.raises(BackendError, match="not finite"):
        payload.response_values({"batch": {"logprobs": table / 0}}, "logprobs", lay=lay, zorro=zorro)
