"""vLLM as a rollout engine: its async engine in the sampler's actor, tokens in and tokens out.

What of vLLM's defaults would change a result is set against them: the model's generation_config is not read
(`generation_config = "vllm"`), log-probs are those after the temperature (`logprobs_mode`), only our end tokens end a
completion, and every request has a seed. Of a request with `n`, vLLM gives sample i the seed plus i.
Weights begin as dummies: the trainer's arrive before the first token, through the model's own loader.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from rlctl.backends.ray.installed import require
from rlctl.backends.ray.rollout_engines.base import EngineDied, EngineSpec, RolloutEngine
from rlctl.backends.ray.sync import Received, Tensors
from rlctl.errors import BackendError, ConfigError
from rlctl.presets import did_you_mean
from rlctl.seeds import sample_seed
from rlctl.types import Completion, LogProbs, Prompt, Sampling, TokenIds

WORKER_EXTENSION = "rlctl.backends.ray.rollout_engines.vllm_worker.WeightReceiver"
COLOCATED_SHARE = 0.4
"""Of a GPU's memory, for a sampler that shares it with a trainer, which keeps its weights and moments there."""


CPU_BATCH_TOKENS = 4096
"""Tokens of one pass through the model on a CPU."""


class VllmEngine(RolloutEngine):
    """An AsyncLLM."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._spec: EngineSpec | None = None
        self._requests = 0

    @staticmethod
    def check(overrides: dict[str, Any]) -> None:
        require("vllm")
        from vllm.engine.arg_utils import AsyncEngineArgs

        known = [field.name for field in fields(AsyncEngineArgs)]
        for key in overrides:
            if key not in known:
                raise ConfigError(
                    f"remote_backend.ray.vllm.{key} is no engine argument of vLLM's.{did_you_mean(key, known)}",
                    hint="they are the fields of vllm.AsyncEngineArgs; `vllm serve --help` explains them.",
                )

    async def start(self, spec: EngineSpec) -> None:
        _prepare_environment(spec)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._spec = spec
        try:
            self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(spec)))
        except (ValueError, RuntimeError, TypeError, AssertionError, OSError) as error:
            raise ConfigError(
                f"vLLM does not start: {type(error).__name__}: {str(error).strip().splitlines()[0]}",
                hint="its own words stand above; remote_backend.ray.vllm overrides its arguments.",
            ) from error

    async def generate(self, prompt: Prompt, *, n: int, sampling: Sampling) -> list[Completion]:
        assert self._spec is not None
        greedy = sampling.temperature == 0
        parameters = sampling_parameters(
            sampling, n=1 if greedy else n, seed=prompt.seed, end_token_ids=self._spec.end_token_ids
        )
        self._requests += 1
        name = f"{self._requests}"
        last: Any = None
        try:
            async for output in self._engine.generate(
                {"prompt_token_ids": prompt.token_ids.tolist()}, parameters, request_id=name
            ):
                last = output
        except _dead() as error:
            raise EngineDied(f"vLLM's engine died: {error}.") from error
        completions = [completion(output, request=name) for output in sorted(last.outputs, key=lambda o: o.index)]
        return completions * n if greedy else completions

    async def load(self, tensors: Tensors) -> Received:
        files = [str(file) for file in tensors.files]
        manifest = {name: [list(r.shape), r.dtype, r.checksum] for name, r in tensors.manifest.items()}
        try:
            counts = await self._engine.collective_rpc("receive_weights", args=(files, manifest))
        except _dead() as error:
            raise EngineDied(f"vLLM's engine died while it took weights: {error}.") from error
        await self._forget()
        return Received(expected=len(tensors.manifest), sent=min(counts))

    async def _forget(self) -> None:
        if not await self._engine.reset_prefix_cache():
            raise BackendError(
                "vLLM did not empty its prefix cache, so keys and values of the old weights would be used.",
                hint="was something still being sampled?",
            )

    async def open_transfer(self, told: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=told))

    async def begin_weights(self) -> None:
        await self._engine.start_weight_update()

    async def take_weights(self, told: Any) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._engine.update_weights(WeightTransferUpdateRequest(update_info=told))

    async def end_weights(self) -> None:
        await self._engine.finish_weight_update()
        await self._forget()

    async def score(self, token_ids: TokenIds) -> LogProbs:
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False, ignore_eos=True)
        ids = token_ids.tolist()
        last: Any = None
        self._requests += 1
        async for output in self._engine.generate(
            {"prompt_token_ids": ids}, parameters, request_id=f"score-{self._requests}"
        ):
            last = output
        told = [entry[token].logprob for token, entry in zip(ids[1:], last.prompt_logprobs[1:], strict=True)]
        return np.array(told, dtype=np.float32)

    async def sleep(self) -> None:
        if self._spec is not None and self._spec.sleeps:
            await self._engine.sleep(level=1)

    async def wake(self) -> None:
        if self._spec is not None and self._spec.sleeps:
            await self._engine.wake_up()

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None


def _prepare_environment(spec: EngineSpec) -> None:
    """What vLLM reads from the environment only, before it is imported in its own processes."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # A forked process would hold the actor's sockets and pipes open after its death.
    os.environ["VLLM_WORKER_MULTIPROCESSING_METHOD"] = "spawn"
    if spec.device == "cpu":
        # vLLM binds each of its processes to all cores from the first on; two replicas would share the first ones.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ["OMP_NUM_THREADS"] = str(spec.threads)


def engine_arguments(spec: EngineSpec) -> dict[str, Any]:
    """vLLM's engine arguments for a replica, the user's over ours."""
    ours: dict[str, Any] = {
        "model": str(spec.folder),
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": spec.dtype,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_num_seqs,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "worker_extension_cls": WORKER_EXTENSION,
        "enable_sleep_mode": spec.sleeps,
        "disable_log_stats": True,
        "seed": 0,
    }
    if spec.device == "cpu":
        ours |= {
            "kv_cache_memory_bytes": spec.kv_cache_bytes,
            "enforce_eager": True,
            # A prompt cut in two draws a token too many, which vLLM takes back from a seeded generator only on a GPU.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_BATCH_TOKENS, spec.max_model_len),
        }
    elif spec.sleeps:
        ours["gpu_memory_utilization"] = COLOCATED_SHARE
    if spec.transfer is not None:
        from vllm.config import WeightTransferConfig

        ours["weight_transfer_config"] = WeightTransferConfig(backend=spec.transfer)
    return {**ours, **spec.overrides}


def sampling_parameters(sampling: Sampling, *, n: int, seed: int, end_token_ids: Sequence[int]) -> Any:
    """Every parameter that a generation_config could fill is given."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=n,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        # Below 2**62, since vLLM adds the sample's number to it and torch takes 63 bits.
        seed=sample_seed(seed, 0) >> 2,
        max_tokens=sampling.max_new_tokens,
        logprobs=0,
        ignore_eos=True,
        stop_token_ids=sorted({*end_token_ids, *sampling.stop_token_ids}),
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def completion(output: Any, *, request: str) -> Completion:
    """A completion of ours from one of vLLM's. Raises BackendError when a token has no log-prob."""
    ids, told = list(output.token_ids), output.logprobs or []
    if len(told) != len(ids) or any(not entry or token not in entry for token, entry in zip(ids, told, strict=False)):
        raise BackendError(f"request {request}: vLLM gave {len(ids)} tokens and not as many log-probs.")
    if output.finish_reason not in ("stop", "length"):
        raise BackendError(f"request {request}: vLLM ended a completion with {output.finish_reason!r}.")
    # Rounding can put the log-prob of a certain token a little above 0.
    logprobs = np.minimum([entry[token].logprob for token, entry in zip(ids, told, strict=True)], 0.0)
    return Completion(np.array(ids, dtype=np.int32), logprobs.astype(np.float32), output.finish_reason)


def _dead() -> type[Exception]:
    from vllm.v1.engine.exceptions import EngineDeadError

    dead: type[Exception] = EngineDeadError
    return dead
