"""Weights from GPU to GPU, by the transfer engines that vLLM brings: nothing passes through a machine's memory.

    cuda_ipc   colocated: the sampler's process opens the trainer's memory on the GPU that they share
    nccl       apart: rank 0 broadcasts to every process of every sampler

On the trainers' side vLLM's engine goes through the weights, on all ranks alike (with ZeRO-3 each is gathered as it is
its turn); rank 0 drives the samplers, whose actors answer the calls of vLLM's own Ray client (`Sampler`). Which way is
taken is a pure function of settings and device; what needs a GPU is vLLM's.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
import torch
from torch import Tensor

from rlctl.backends.ray.settings import RaySettings
from rlctl.backends.ray.sync import Manifest
from rlctl.errors import ConfigError

Way = Literal["shared_memory", "cuda_ipc", "nccl"]

ENGINES: dict[Way, str] = {"cuda_ipc": "ipc", "nccl": "nccl"}
"""vLLM's names."""


def way(settings: RaySettings, *, device: str) -> Way:
    """How weights travel. Raises ConfigError when the way asked for is not there on these devices."""
    wanted = settings.weight_sync
    if device != "cuda":
        return _only("shared_memory", wanted, "this run has no GPUs")
    if wanted == "shared_memory":
        return "shared_memory"
    if settings.colocate:
        return _only("cuda_ipc", wanted, "colocated, trainer and sampler are on one GPU, where NCCL has one process")
    return _only("nccl", wanted, "apart, a sampler cannot open memory of another GPU's process")


def _only(possible: Way, wanted: str, reason: str) -> Way:
    if wanted not in ("auto", possible):
        raise ConfigError(
            f'remote_backend.ray.weight_sync = "{wanted}" cannot be: {reason}.', hint=f'"auto" takes {possible} here.'
        )
    return possible


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the processes of an NCCL group find each other, and how many they are."""

    host: str
    port: int
    world: int


def meeting(samplers: int, *, width: int) -> Meeting:
    """A place on this machine for rank 0 and the `width` processes of every sampler."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return Meeting(ray.util.get_node_ip_address(), port, first_rank(samplers, width=width))


def first_rank(place: int, *, width: int) -> int:
    """The rank of a sampler's first process in that group: behind rank 0 of the trainers and the samplers before."""
    return 1 + place * width


class Sender:
    """A trainer rank's end; `send` must be called on all ranks together."""

    def __init__(
        self,
        chosen: Way,
        *,
        settings: RaySettings,
        rank: int,
        samplers: Sequence[Any],
        forms: Manifest,
        weights: Callable[[], Iterator[tuple[str, Tensor]]],
    ) -> None:
        from vllm.distributed.weight_transfer.clients import RayVLLMWeightSyncClient

        client = RayVLLMWeightSyncClient(list(samplers))
        place = meeting(len(samplers), width=settings.tensor_parallel_size)
        self._engine = _engine(chosen, rank=rank, place=place, client=client, source=source(forms, weights))

    def send(self) -> None:
        self._engine.send_weights()


def _engine(chosen: Way, *, rank: int, place: Meeting, client: Any, source: Any) -> Any:
    if chosen == "cuda_ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCTrainerWeightTransferEngine

        told = IPCTrainerInitInfo(packed=True, rank=rank)
        return IPCTrainerWeightTransferEngine.trainer_init(told, client=client, source=source)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

    group = NCCLTrainerInitInfo(
        master_address=place.host, master_port=place.port, world_size=place.world, packed=True, rank=rank
    )
    return NCCLTrainerWeightTransferEngine.trainer_init(group, client=client, source=source)


def source(forms: Manifest, weights: Callable[[], Iterator[tuple[str, Tensor]]]) -> Any:
    """What vLLM's trainer engine goes through: `forms` tells the names, in the order in which `weights` gives them."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Weights(WeightSource):  # type: ignore[misc]
        def metadata(self) -> list[Any]:
            return [ParamMeta(name, getattr(torch, form.dtype), form.shape) for name, form in forms.items()]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return weights()

    return Weights()
