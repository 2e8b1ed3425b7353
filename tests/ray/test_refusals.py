"""What a cluster cannot do is told at once, in a sentence: on the tests' cluster of 8 CPUs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlctl.errors import BackendError, BackendUnavailable, ConfigError, ModelError, RlctlError
from tests import defaults
from tests.backends.test_contract import JOB

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def refused(llama: Path, *, job: dict[str, Any] | None = None, **settings: Any) -> RlctlError:
    """The error with which a start ends."""
    from rlctl.backends.ray.backend import RayBackend
    from rlctl.backends.ray.settings import RaySettings

    backend = RayBackend(
        RaySettings.model_validate({"device": "cpu", "kv_cache_gb": 0.25, **settings}),
        replace(JOB, model=str(llama), **(job or {})),
    )

    async def start() -> RlctlError:
        try:
            await backend.start()
        except RlctlError as error:
            return error
        finally:
            await backend.close()
        pytest.fail("it started")

    return asyncio.run(start())


def test_too_few_cpus(llama: Path) -> None:
    start = time.monotonic()
    error = refused(llama, trainer_ranks=20)
    assert isinstance(error, BackendUnavailable)
    assert "needs 20 CPU in 20 bundles" in error.message
    assert time.monotonic() - start < 300  # at once, and not after request_timeout_s


def test_gpus_where_there_are_none(llama: Path) -> None:
    error = refused(llama, device="cuda", trainer_ranks=8, sampler_replicas=8)
    assert isinstance(error, BackendUnavailable)
    assert "needs 8 GPU" in error.message
    assert "and 0 GPU" in error.message


def test_a_misspelt_vllm_argument(llama: Path) -> None:
    error = refused(llama, vllm={"max_num_batched_token": 9})
    assert isinstance(error, ConfigError)
    assert "vllm.max_num_batched_token is no engine argument" in error.message
    assert "Did you mean max_num_batched_tokens?" in error.message


def test_a_misspelt_deepspeed_key(llama: Path) -> None:
    error = refused(llama, deepspeed={"zero_optimization": {"reduce_bucket_sizes": 9}})
    assert isinstance(error, ConfigError)
    assert "Did you mean reduce_bucket_size?" in error.message


def test_heads_that_cannot_be_split(llama: Path) -> None:
    error = refused(llama, tensor_parallel_size=3)
    assert isinstance(error, ModelError)
    assert "does not divide the model's 4 attention heads" in error.message
    assert error.hint == "it can be 1, 2, 4."


def test_offload_without_a_gpu(llama: Path) -> None:
    assert "moves memory off GPUs" in refused(llama, offload="optimizer").message


def test_sequences_longer_than_the_context(llama: Path) -> None:
    error = refused(llama, job={"max_response_length": 4096})
    assert isinstance(error, RlctlError)
    assert "the model's context is 512" in error.message


def test_lora_with_weights_that_are_cut(llama: Path) -> None:
    from rlctl.types import LoraSpec

    error = refused(llama, job={"lora": LoraSpec(4, 8.0, ("all-linear",))}, zero_stage=3)
    assert "zero_stage = 2" in error.hint


def test_filters_that_bias_log_probs() -> None:
    from rlctl.backends.ray.rollouts import must_be_unfiltered

    with pytest.raises(BackendError, match="not those of the full vocabulary"):
        must_be_unfiltered(defaults.sampling(top_p=0.9))
    must_be_unfiltered(defaults.sampling(temperature=0.0, top_p=0.9))
