"""What a vLLM sampler takes of a GPU: a share of the device, of which keys and values are what weights leave."""

from __future__ import annotations

from rlctl.backends.ray.settings import RaySettings
from rlctl.errors import ConfigError
from rlctl.planning.memory import Ask, Phase, Role

APART_SHARE = 0.92
"""vLLM's `gpu_memory_utilization` where rlctl and the user set none (vLLM 0.32, `config/cache.py`)."""
PACKED_BUFFER_BYTES = 2**30
"""vLLM's packed buffers of a weight transfer (0.32, `distributed/weight_transfer/packed_tensor.py`): with NCCL two."""

AWAKE: tuple[Phase, ...] = ("start", "sample", "sync")


def share_of(settings: RaySettings) -> float:
    """Share of a GPU that vLLM takes. Raises ConfigError for one that is no share."""
    from rlctl.backends.ray.rollout_engines.vllm import COLOCATED_SHARE

    share = settings.vllm.get("gpu_memory_utilization", COLOCATED_SHARE if settings.colocate else APART_SHARE)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise ConfigError(
            f"remote_backend.ray.vllm: gpu_memory_utilization = {share!r} must be above 0 and at most 1.",
            hint="it is the share of a GPU that a sampler takes.",
        )
    return float(share)


def sampler_roles(ask: Ask, *, item_bytes: int) -> list[Role]:
    """The roles of one device of a sampler."""
    settings: RaySettings = ask.settings
    weights = _weights(ask, item_bytes)
    phases: tuple[Phase, ...] = (
        AWAKE if settings.colocate else ("start", "sample", "score", "update", "step", "sync", "save")
    )
    split = f" on {settings.tensor_parallel_size} devices" if settings.tensor_parallel_size > 1 else ""
    share = share_of(settings)
    cache = None if ask.machine.memory_bytes is None else max(0.0, share * ask.machine.memory_bytes - weights)
    told = f"{share:g} of the device is vLLM's, less its weights"
    if cache is not None:
        tokens = cache / (_kv_bytes(ask, item_bytes) or 1)
        told += f"; at most {tokens:,.0f} tokens"
    ways = 1 if settings.colocate else 2
    buffers = float(ways * min(PACKED_BUFFER_BYTES, item_bytes * ask.model.parameters))
    roles = [
        Role("sampler weights", weights, phases, f"{item_bytes} bytes a parameter{split}"),
        Role("KV cache and work", cache, phases, told),
    ]
    if settings.weight_sync != "shared_memory":
        roles.append(Role("weight-sync buffers", buffers, ("sync",), "packed by vLLM, 1 GiB each"))
    return roles


def sampler_complaint(ask: Ask, *, item_bytes: int) -> str:
    """Why vLLM could not start: its share must hold weights, and keys and values of one longest sequence."""
    if ask.machine.memory_bytes is None:
        return ""
    share = share_of(ask.settings)
    needed = _weights(ask, item_bytes) + _kv_bytes(ask, item_bytes) * ask.max_model_tokens
    given = share * ask.machine.memory_bytes
    if needed <= given:
        return ""
    return (
        f"vLLM's share of {share:g} is {given / 2**30:.3g} GiB; weights and keys and values of one sequence of "
        f"{ask.max_model_tokens:,} tokens take {needed / 2**30:.3g}: raise tensor_parallel_size or "
        "vllm.gpu_memory_utilization of remote_backend.ray"
    )


def _weights(ask: Ask, item_bytes: int) -> float:
    width: int = ask.settings.tensor_parallel_size
    return item_bytes * ask.model.parameters / width


def _kv_bytes(ask: Ask, item_bytes: int) -> float:
    """Of one token on one device; a key head is never split, but repeated on more devices than there are heads."""
    split: int = min(ask.settings.tensor_parallel_size, ask.model.kv_heads)
    return item_bytes * ask.model.kv_numbers_per_token / split
