"""Which way weights go, and that what we say to vLLM's transfer engines is what they ask for; the rest needs GPUs."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
import torch

from rlctl.backends.ray.settings import RaySettings
from rlctl.backends.ray.sync import TensorRecord
from rlctl.errors import ConfigError


@pytest.mark.parametrize(
    ("device", "colocate", "wanted", "expected"),
    [
        ("cpu", True, "auto", "shared_memory"),
        ("cpu", False, "shared_memory", "shared_memory"),
        ("cuda", True, "auto", "cuda_ipc"),
        ("cuda", True, "cuda_ipc", "cuda_ipc"),
        ("cuda", False, "auto", "nccl"),
        ("cuda", False, "nccl", "nccl"),
        ("cuda", True, "shared_memory", "shared_memory"),
        ("cuda", False, "shared_memory", "shared_memory"),
    ],
)
@pytest.mark.usefixtures("ray_stack")
def test_the_way_follows_devices_and_colocation(device: str, colocate: bool, wanted: str, expected: str) -> None:
    from rlctl.backends.ray.transfer import way

    assert way(RaySettings(colocate=colocate, weight_sync=wanted), device=device) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "colocate", "wanted", "told"),
    [
        ("cpu", True, "cuda_ipc", "no GPUs"),
        ("cpu", False, "nccl", "no GPUs"),
        ("cuda", True, "nccl", "on one GPU"),
        ("cuda", False, "cuda_ipc", "another GPU's process"),
    ],
)
@pytest.mark.usefixtures("ray_stack")
def test_a_way_that_is_not_there_is_refused_with_the_one_that_is(
    device: str, colocate: bool, wanted: str, told: str
) -> None:
    from rlctl.backends.ray.transfer import way

    with pytest.raises(ConfigError, match=told) as error:
        way(RaySettings(colocate=colocate, weight_sync=wanted), device=device)  # type: ignore[arg-type]
    assert '"auto" takes' in (error.value.hint or "")


@pytest.mark.usefixtures("ray_stack")
def test_ranks_of_samplers_follow_the_trainer_without_gaps() -> None:
    from rlctl.backends.ray.transfer import first_rank

    # Trainer 0; three samplers of two processes each: 1 2, 3 4, 5 6; seven in all.
    assert [first_rank(place, width=2) for place in range(4)] == [1, 3, 5, 7]


@pytest.mark.usefixtures("ray_stack")
def test_samplers_answer_every_call_of_vllms_client() -> None:
    from vllm.distributed.weight_transfer.base import VLLMWeightSyncClient

    from rlctl.backends.ray.sampler import Sampler

    calls = [name for name, _ in inspect.getmembers(VLLMWeightSyncClient, inspect.isfunction) if name[0] != "_"]
    assert len(calls) == 4
    assert [name for name in calls if not inspect.iscoroutinefunction(getattr(Sampler, name, None))] == []


@pytest.mark.usefixtures("ray_stack")
def test_vllms_engines_take_what_they_are_told() -> None:
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    from rlctl.backends.ray.transfer import ENGINES

    for backend in ENGINES.values():
        WeightTransferConfig(backend=backend)
        assert backend in WeightTransferEngineFactory._registry
    assert {"packed", "rank"} <= {f.name for f in fields(IPCTrainerInitInfo)}
    assert {"master_address", "master_port", "world_size", "packed", "rank"} <= {
        f.name for f in fields(NCCLTrainerInitInfo)
    }


@pytest.mark.usefixtures("ray_stack")
def test_the_source_gives_what_it_announces_each_time_it_is_asked() -> None:
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

    from rlctl.backends.ray.transfer import source

    weights = {"a.weight": torch.ones(2, 3, dtype=torch.bfloat16), "b.bias": torch.zeros(4)}
    forms = {name: TensorRecord(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in weights.items()}
    made = source(forms, lambda: iter(weights.items()))
    for _ in range(2):
        sent = dict(NCCLTrainerWeightTransferEngine._checked_iter(made, made.metadata()))
        assert sent.keys() == weights.keys()
    wrong = source({"a.weight": TensorRecord((3, 2), "bfloat16")}, lambda: iter(weights.items()))
    with pytest.raises(ValueError, match="disagrees"):
        dict(NCCLTrainerWeightTransferEngine._checked_iter(wrong, wrong.metadata()))
