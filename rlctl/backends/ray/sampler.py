"""One replica that samples: a rollout engine in a Ray actor, with what is the same for every engine around it.

The actor is async: many prompts are in flight at a time, and the engine batches them.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlctl.backends.ray import model_config, rollout_engines, sync, transfer
from rlctl.backends.ray.guard import Guard, descendants
from rlctl.backends.ray.rollout_engines.base import EngineSpec, RolloutEngine
from rlctl.backends.ray.settings import RaySettings
from rlctl.backends.ray.stacks import Whereabouts, whereabouts
from rlctl.types import Completion, JobSpec, LogProbs, Prompt, Sampling, TokenIds


@dataclass(frozen=True, slots=True)
class Replica:
    """Which replica this is, and what it has."""

    index: int
    device: str
    threads: int
    run_id: str

    @property
    def name(self) -> str:
        return f"sampler {self.index}"


LOOK_SECONDS = 0.5
"""Between two looks for new processes of an engine that is starting."""


class Sampler:
    """The methods of a sampler actor."""

    def __init__(self, settings: RaySettings, job: JobSpec, replica: Replica) -> None:
        self.settings, self.job, self.replica = settings, job, replica
        self.folder = sync.folder_of(replica.run_id, who=f"{replica.name} {os.getpid()}")
        self.guard = Guard(self.folder)
        self.engine: RolloutEngine = rollout_engines.load(settings.rollout_engine)()
        self.expected: sync.Manifest = {}
        self.place = 0
        """Among the samplers that are there: a dead one leaves no gap."""

    async def whereabouts(self) -> Whereabouts:
        """The machine and process of this actor, which from now on tells its stacks."""
        return whereabouts()

    async def check(self) -> None:
        """Raises ConfigError when a setting cannot be used here, before anything is loaded."""
        self.engine.check(self.settings.vllm)
        model_config.must_split(model_config.read(self.job.model), self.settings.tensor_parallel_size)

    async def start(self, dtype: str) -> None:
        """Build the engine from the model's config, and learn which weights it will need."""
        config = model_config.read(self.job.model)
        self.expected = model_config.weights(config, dtype)
        self.folder.mkdir(parents=True, exist_ok=True)
        config.dtype = dtype
        config.save_pretrained(self.folder)
        colocated_on_gpu = self.replica.device == "cuda" and self.settings.colocate
        with self._watched():
            await self.engine.start(
                EngineSpec(
                    folder=self.folder,
                    dtype=dtype,
                    device=self.replica.device,
                    tensor_parallel_size=self.settings.tensor_parallel_size,
                    threads=self.replica.threads,
                    max_model_len=self.job.max_prompt_length + self.job.max_response_length,
                    max_num_seqs=self.settings.max_num_seqs,
                    kv_cache_bytes=int(self.settings.kv_cache_gb * 2**30),
                    end_token_ids=self.job.end_token_ids,
                    sleeps=colocated_on_gpu,
                    transfer=transfer.ENGINES.get(transfer.way(self.settings, device=self.replica.device)),
                    overrides=self.settings.vllm,
                )
            )

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Tell the guard of the engine's processes as they come: a start takes long, and may be killed in it."""
        done = threading.Event()

        def look() -> None:
            while not done.wait(LOOK_SECONDS):
                self.guard.watch(descendants(os.getpid()))

        # A thread: the engine's constructor holds up the event loop.
        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        finally:
            done.set()
            looking.join()
            self.guard.watch(descendants(os.getpid()))

    async def generate(self, prompt: Prompt, *, n: int, sampling: Sampling) -> list[Completion]:
        return await self.engine.generate(prompt, n=n, sampling=sampling)

    async def load(self, tensors: sync.Tensors, *contents: Any) -> sync.Received:
        """Take weights from files of this machine, or from the `contents` of each where they lie on another.

        Raises BackendError when names, shapes, dtypes or values are not those that were sent or are needed.
        """
        self.must_take(tensors.manifest)
        if contents:
            tensors = self._written_here(tensors, contents)
        try:
            received = await self.engine.load(tensors)
        finally:
            if contents:
                for file in tensors.files:
                    file.unlink(missing_ok=True)
        return sync.Received(expected=len(self.expected), sent=received.sent)

    def must_take(self, forms: sync.Manifest) -> None:
        """Raises BackendError when weights of these names and forms are not those that this model needs."""
        sync.require_same(forms, self.expected)

    async def expects(self, forms: sync.Manifest, place: int) -> sync.Received:
        """Before weights come from GPU to GPU: whether they are those that are needed, and which sampler this is."""
        self.must_take(forms)
        self.place = place
        return sync.Received(expected=len(self.expected), sent=len(forms))

    # The next four are what vLLM's RayVLLMWeightSyncClient calls.
    async def init_weight_transfer_engine(self, request: Any) -> None:
        width = self.settings.tensor_parallel_size
        told = dict(request.init_info)
        if "rank_offset" in told:
            # The client tells every replica that it is the first one.
            told["rank_offset"] = transfer.first_rank(self.place, width=width)
        await self.engine.open_transfer(told)

    async def start_weight_update(self) -> None:
        await self.engine.begin_weights()

    async def update_weights(self, request: Any) -> None:
        await self.engine.take_weights(request.update_info)

    async def finish_weight_update(self) -> None:
        await self.engine.end_weights()

    def _written_here(self, tensors: sync.Tensors, contents: tuple[Any, ...]) -> sync.Tensors:
        files = []
        for file, content in zip(tensors.files, contents, strict=True):
            files.append(self.folder / file.name)
            content.tofile(files[-1])
        return sync.Tensors(tuple(files), tensors.manifest, tensors.version)

    async def score(self, token_ids: TokenIds) -> LogProbs:
        return await self.engine.score(token_ids)

    async def sleep(self) -> None:
        await self.engine.sleep()

    async def wake(self) -> None:
        await self.engine.wake()

    async def close(self) -> None:
        """End the engine and clear up."""
        self.guard.watch(descendants(os.getpid()))
        self.engine.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.guard.release()


def probe_ids(vocab_size: int) -> TokenIds:
    """The fixed text on which sampler and trainer are compared: 24 tokens, always the same for a vocabulary."""
    ids: TokenIds = np.random.default_rng(0).integers(0, vocab_size, 24, dtype=np.int32)
    return ids
