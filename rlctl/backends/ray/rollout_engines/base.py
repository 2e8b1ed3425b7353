"""What a rollout engine must do, whatever it is built on. It lives in one actor, on the actor's event loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.backends.ray.sync import Received, Tensors
from rlctl.backends.ray.waiting import Died
from rlctl.types import Completion, LogProbs, Prompt, Sampling, TokenIds


class EngineDied(Died):
    """The engine's own processes are gone; the replica can do nothing more."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What to start: a folder with the model's config, and the limits of one replica."""

    folder: Path
    dtype: str
    device: str
    tensor_parallel_size: int
    threads: int
    max_model_len: int
    max_num_seqs: int
    kv_cache_bytes: int
    end_token_ids: tuple[int, ...]
    sleeps: bool
    """Whether memory is given back between sampling phases."""
    transfer: str | None
    """The way weights come from GPU to GPU, by vLLM's name for it; None: only in files."""
    overrides: dict[str, Any]


class RolloutEngine(ABC):
    """One replica: it samples, takes weights, and gives its memory back while others compute."""

    @staticmethod
    @abstractmethod
    def check(overrides: dict[str, Any]) -> None:
        """Raises ConfigError when an override is no argument of the engine's."""

    @abstractmethod
    async def start(self, spec: EngineSpec) -> None:
        """Build the engine with weights of no meaning; the first `load` brings the right ones."""

    @abstractmethod
    async def generate(self, prompt: Prompt, *, n: int, sampling: Sampling) -> list[Completion]:
        """`n` completions of one prompt."""

    @abstractmethod
    async def load(self, tensors: Tensors) -> Received:
        """Take these weights, and forget what was cached under the old ones. Raises BackendError."""

    @abstractmethod
    async def open_transfer(self, told: dict[str, Any]) -> None:
        """Meet the trainer's end of a transfer from GPU to GPU; `told` is what vLLM's trainer engine says of it."""

    @abstractmethod
    async def begin_weights(self) -> None:
        """Weights come now, in pieces."""

    @abstractmethod
    async def take_weights(self, told: Any) -> None:
        """One piece, described by `told`."""

    @abstractmethod
    async def end_weights(self) -> None:
        """That was the last; forget what was cached under the old ones. Raises BackendError."""

    @abstractmethod
    async def score(self, token_ids: TokenIds) -> LogProbs:
        """Log-probs of each token but the first at temperature 1, computed without any cache."""

    @abstractmethod
    async def sleep(self) -> None:
        """Give device memory back, if the engine was started to."""

    @abstractmethod
    async def wake(self) -> None:
        """Take it again."""

    @abstractmethod
    def stop(self) -> None:
        """End the engine and its processes."""
