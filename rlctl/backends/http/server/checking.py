"""What a request must be like to reach the hosted backend, beyond having the right types.

A run of rlctl never asks for anything else. But a backend takes ids and lengths as they come, and a wrong one would end
the process (an id beyond the vocabulary, in a kernel) or fill the machine, so that the next client finds no server.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from rlctl.algorithms import losses
from rlctl.backends.http import messages
from rlctl.backends.http.codec import WireError
from rlctl.types import BackendInfo, JobSpec, LossSpec, Sampling, TokenIds, TrainRow

MOST_BYTES = 2**33
"""Memory that the completions of one call may take: more than a step of 1,024 x 16 x 64k tokens needs."""
LONGEST = 2**24
"""Tokens of a row where the model tells no context length."""
MOST_SAMPLES = 2**20
SEEDS = 2**64
LARGEST = float(np.finfo(np.float32).max)


def must_make_sense(request: Any, *, job: JobSpec, info: BackendInfo | None, plays_episodes: bool) -> None:
    """Raises WireError, naming what is wrong. `info` is None before the start, when only `start` is taken.

    `plays_episodes` is that of the hosted backend.
    """
    _numbers_must_be_finite(request)
    if info is None:
        return
    longest = info.max_context or LONGEST
    if not plays_episodes:
        _must(not _is_of_an_episode(request), "turns with an environment, which the hosted backend cannot play")
    if isinstance(request, messages.Generate):
        _sampling(request, longest=longest)
        for prompt in request.prompts:
            _ids(prompt.token_ids, "a prompt", info)
            _must(0 <= prompt.seed < SEEDS, f"a seed is {prompt.seed}, of 64 bits")
    elif isinstance(request, messages.LogProbsOf | messages.ForwardBackward):
        for row in request.rows:
            _row(row, info, longest=longest)
    if isinstance(request, messages.LogProbsOf):
        _must(job.needs_reference or not request.reference, "the job has no reference policy")
    elif isinstance(request, messages.ForwardBackward):
        _must(request.loss_denominator > 0, f"loss_denominator is {request.loss_denominator}, above 0")
        _loss(request.loss, request.rows, job)
    elif isinstance(request, messages.OptimStep):
        _must(request.lr >= 0, f"lr is {request.lr}, at least 0")


def job_must_make_sense(job: JobSpec) -> None:
    """Raises WireError."""
    _numbers_must_be_finite(job)
    _must(job.temperature > 0, f"temperature is {job.temperature}, above 0")
    for name in ("max_tokens_per_device", "max_prompt_length", "max_response_length"):
        _must(0 < getattr(job, name) <= LONGEST, f"{name} is {getattr(job, name)}, between 1 and {LONGEST:,}")
    _must(all(0 <= each < 2**31 for each in job.end_token_ids), "an end token is no token")
    _must(all(0 <= beta < 1 for beta in job.betas), f"betas are {job.betas}, in [0, 1)")
    _must(job.grad_clip > 0, f"grad_clip is {job.grad_clip}, above 0")
    _must(job.weight_decay >= 0, f"weight_decay is {job.weight_decay}, at least 0")
    _must(job.lora is None or 0 < job.lora.rank <= MOST_SAMPLES, "lora.rank is no rank")


def _is_of_an_episode(request: Any) -> bool:
    if isinstance(request, messages.Generate):
        return bool(request.sampling.stop_token_ids)
    rows = request.rows if isinstance(request, messages.LogProbsOf | messages.ForwardBackward) else ()
    return any(row.policy_mask is not None for row in rows)


def _sampling(request: messages.Generate, *, longest: int) -> None:
    asked: Sampling = request.sampling
    _must(0 < request.n <= MOST_SAMPLES, f"n is {request.n}, between 1 and {MOST_SAMPLES:,}")
    _must(asked.temperature >= 0, f"temperature is {asked.temperature}, at least 0")
    _must(0 < asked.top_p <= 1, f"top_p is {asked.top_p}, in (0, 1]")
    _must(0 <= asked.min_p <= 1, f"min_p is {asked.min_p}, in [0, 1]")
    _must(asked.top_k == -1 or 0 < asked.top_k < 2**31, f"top_k is {asked.top_k}, -1 or above 0")
    _must(0 < asked.max_new_tokens <= longest, f"max_new_tokens is {asked.max_new_tokens}, between 1 and {longest:,}")
    needed = 8 * len(request.prompts) * request.n * asked.max_new_tokens
    _must(needed <= MOST_BYTES, f"{len(request.prompts)} x {request.n} x {asked.max_new_tokens} tokens are too many")
    for prompt in request.prompts:
        _must(len(prompt.token_ids) <= longest, f"a prompt has {len(prompt.token_ids):,} tokens, at most {longest:,}")


def _row(row: TrainRow, info: BackendInfo, *, longest: int) -> None:
    _ids(row.prompt_ids, "a prompt", info)
    _ids(row.completion_ids, "a completion", info)
    total = len(row.prompt_ids) + len(row.completion_ids)
    _must(total <= longest, f"a row has {total:,} tokens, at most {longest:,}")
    for name in (
        "rollout_logprobs",
        "old_logprobs",
        "ref_logprobs",
        "token_advantages",
        "selected",
        "policy_mask",
        "policy_mask",
    ):
        values = getattr(row, name)
        _must(
            values is None or len(values) == len(row.completion_ids),
            f"{name} are not as many as the {len(row.completion_ids)} tokens of their completion",
        )


def _loss(loss: LossSpec, rows: Sequence[TrainRow], job: JobSpec) -> None:
    """Raises ConfigError for a loss of no name."""
    _must(0 <= loss.clip_ratio_low < 1, f"clip_ratio_low is {loss.clip_ratio_low}, in [0, 1)")
    _must(loss.clip_ratio_high >= 0, f"clip_ratio_high is {loss.clip_ratio_high}, at least 0")
    _must(loss.kl_coef >= 0, f"kl_coef is {loss.kl_coef}, at least 0")
    _must(0 < loss.max_response_length <= LONGEST, "max_response_length is no length")
    _must(len({row.old_logprobs is None for row in rows}) <= 1, "old_logprobs are on some rows only")
    if loss.kl_coef > 0:
        _must(all(row.ref_logprobs is not None for row in rows), "kl_coef is above 0, and a row has no ref_logprobs")
    if losses.registry.get(loss.policy_loss).selection:
        _must(all(row.selected is not None for row in rows), f"{loss.policy_loss} needs selected, and a row has none")


def _ids(ids: TokenIds, whose: str, info: BackendInfo) -> None:
    _must(len(ids) > 0, f"{whose} has no token")
    low, high = int(np.min(ids)), int(np.max(ids))
    _must(
        low >= 0 and high < info.vocab_size, f"{whose} has the token {low if low < 0 else high}, of {info.vocab_size:,}"
    )


def _must(holds: bool, what: str) -> None:  # reads as the sentence it is
    if not holds:
        raise WireError(f"{what}: that is not what a run asks for.")


def _numbers_must_be_finite(record: Any) -> None:
    """As the float32 numbers that they become."""
    for name, number in _floats(record):
        _must(math.isfinite(number) and abs(number) <= LARGEST, f"{name} is {number}, a finite number")


def _floats(record: Any, name: str = "the message") -> Iterator[tuple[str, float]]:
    """Every number of a record that is no integer, with its name.

    Not what rows hold: backends take those that are not finite, and refuse the update.
    """
    if isinstance(record, TrainRow):
        return
    if isinstance(record, float):
        yield name, record
    elif isinstance(record, msgspec.Struct):
        for each in record.__struct_fields__:
            yield from _floats(getattr(record, each), each)
    elif dataclasses.is_dataclass(record):
        for field in dataclasses.fields(record):
            yield from _floats(getattr(record, field.name), field.name)
    elif isinstance(record, list | tuple):
        for each in record:
            yield from _floats(each, name)
