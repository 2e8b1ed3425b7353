"""Samplers: what vLLM is told, what is taken of its answers, and that stale weights are found."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlctl.backends.ray.rollouts import flops, spread
from rlctl.errors import BackendError
from rlctl.perf import ModelShape
from rlctl.types import Completion, Prompt
from tests import defaults
from tests.backends.test_contract import LOSS, SAMPLING, prompts, rows_of


def done(ids: list[int], logprobs: Any, reason: str = "stop") -> Any:
    return SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason=reason)


def entry(token: int, value: float) -> dict[int, Any]:
    return {token: SimpleNamespace(logprob=value)}


def test_prompts_go_to_samplers_in_turn() -> None:
    assert spread([3, 5, 8], ["a", "b"]) == {3: "a", 5: "b", 8: "a"}


def test_sampling_costs_each_prompt_once_and_no_last_token() -> None:
    shape = ModelShape(body_parameters=10, head_parameters=100, attention_width=1)
    completion = Completion(np.zeros(2, np.int32), np.zeros(2, np.float32), "length")
    # Three prompt tokens and one fed of each completion: 5 tokens; 4 predicted; pairs 6 + 2 x (3 + 1).
    assert flops(shape, [Prompt(np.zeros(3, np.int32), 0)], [[completion] * 2]) == 2 * 10 * 5 + 2 * 100 * 4 + 4 * 14


@pytest.mark.parametrize(
    "logprobs", [None, [], [entry(5, -1.0)], [entry(5, -1.0), None], [entry(5, -1.0), entry(7, 0)]]
)
def test_a_token_without_its_log_prob_is_an_error_with_the_request(logprobs: Any) -> None:
    from rlctl.backends.ray.rollout_engines.vllm import completion

    with pytest.raises(BackendError, match="request 17: vLLM gave 2 tokens and not as many log-probs"):
        completion(done([5, 6], logprobs), request="17")


def test_an_aborted_completion_is_an_error() -> None:
    from rlctl.backends.ray.rollout_engines.vllm import completion

    with pytest.raises(BackendError, match="'abort'"):
        completion(done([5], [entry(5, -1.0)], "abort"), request="17")


@pytest.mark.ray
@pytest.mark.usefixtures("ray_stack")
def test_every_sampling_parameter_is_given_and_no_generation_config_read() -> None:
    from rlctl.backends.ray.rollout_engines.base import EngineSpec
    from rlctl.backends.ray.rollout_engines.vllm import engine_arguments, sampling_parameters

    asked = sampling_parameters(defaults.sampling(temperature=0.7), n=8, seed=3, end_token_ids=(2, 5))
    assert (asked.temperature, asked.top_p, asked.top_k, asked.min_p) == (0.7, 1.0, 0, 0.0) or asked.top_k == -1
    assert (asked.repetition_penalty, asked.presence_penalty, asked.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (asked.n, asked.stop_token_ids, asked.ignore_eos) == (8, [2, 5], True)
    assert 0 <= asked.seed < 2**62
    spec = EngineSpec(Path("m"), "float32", "cpu", 1, 1, 64, 8, 2**20, (2,), False, None, {"block_size": 32})
    arguments = engine_arguments(spec)
    assert arguments["generation_config"] == "vllm"
    assert arguments["logprobs_mode"] == "processed_logprobs"
    assert arguments["block_size"] == 32


@pytest.mark.ray
@pytest.mark.slow
def test_a_sampler_with_other_weights_is_found(shared_ray: Any) -> None:
    running = shared_ray
    backend = running.backend

    async def work() -> Any:
        await backend.load(running.folder)
        rows = rows_of(asked := prompts(1, 2), await backend.generate(asked, n=4, sampling=SAMPLING))
        await backend._must_agree()
        await backend.forward_backward(rows, loss=LOSS, loss_denominator=1.0)
        await backend.optim_step(0.05)
        with pytest.raises(BackendError, match="log-probs of sampler 0 differ from the trainer's"):
            await backend._must_agree()
        await backend.sync_weights()
        await backend._must_agree()

    running.call(work())


@pytest.mark.ray
@pytest.mark.slow
def test_samples_of_a_prompt_differ_and_the_likeliest_tokens_do_not(shared_ray: Any) -> None:
    running = shared_ray

    async def work() -> Any:
        await running.backend.load(running.folder)
        drawn = await running.backend.generate(prompts(1), n=8, sampling=SAMPLING)
        greedy = await running.backend.generate(
            prompts(1), n=3, sampling=defaults.sampling(temperature=0.0, max_new_tokens=8)
        )
        return drawn[0], greedy[0]

    drawn, greedy = running.call(work())
    assert len({tuple(c.token_ids) for c in drawn}) > 4
    assert len(greedy) == 3
    assert len({tuple(c.token_ids) for c in greedy}) == 1
