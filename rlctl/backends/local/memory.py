"""What the local backend holds, and which of its settings hold less: the `memory` part of its registration.

One process on one device: compute weights, float32 masters, gradients and moments stay through a run; sampler and
trainer take turns. On a CPU the machine's memory is the device's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlctl.backends.local.settings import LocalSettings
from rlctl.engine import kernels, prepacked, sampler
from rlctl.engine.decode import KvShape
from rlctl.engine.draw import TILE
from rlctl.engine.limits import compute_dtype
from rlctl.planning import engine_memory as engine
from rlctl.planning.memory import ORDER, RUNNING, Ask, Change, Phase, Place, Role, halved

ALWAYS: tuple[Phase, ...] = RUNNING


class LocalMemory:
    """See `rlctl.planning.memory.MemoryPlanner`."""

    def places(self, ask: Ask) -> Sequence[Place]:
        machine = ask.machine
        mine = [*_loading(ask), *_trainer(ask), *_update(ask), *_sampler(ask)]
        if machine.kind == "cpu":
            mine += _snapshot(ask)
        device = Place(
            "cpu" if machine.kind == "cpu" else machine.name,
            1,
            machine.memory_bytes,
            machine.memory_source,
            tuple(mine),
        )
        if machine.kind == "cpu":
            return [device]
        host = Place("host", 1, machine.host_bytes, "--memory-gb says how much the machine has", tuple(_snapshot(ask)))
        return [device, host]

    def changes(self, ask: Ask) -> Sequence[Change]:
        settings: LocalSettings = ask.settings
        found = []
        if settings.tiled_logits_compute:
            tiles = halved(settings.logits_tile_tokens, least=64)
            found.append(_change("tile", "local.logits_tile_tokens", tiles, "a little speed at the output head"))
        else:
            found.append(_change("tile", "local.tiled_logits_compute", [True], "a little speed at the output head"))
        seqs = halved(settings.max_num_seqs, least=ask.work.largest_group)
        found.append(_change("sampling", "local.max_num_seqs", seqs, "sampling speed: fewer completions at a time"))
        caches = halved(settings.kv_cache_gb, least=_least_cache(ask) / 2**30)
        found.append(_change("sampling", "local.kv_cache_gb", caches, "sampling speed: fewer completions at a time"))
        if not settings.gradient_checkpointing:
            costs = "a third more time of the update, the same result"
            found.append(_change("checkpointing", "local.gradient_checkpointing", [True], costs))
        return found

    def notes(self, ask: Ask) -> Sequence[str]:
        devices = ask.machine.num_devices
        if devices is None or devices < 2:
            return []
        return [f"the local backend uses 1 of {devices} GPUs; --backend ray uses several"]


def _change(order: str, name: str, values: Sequence[object], costs: str) -> Change:
    return Change(ORDER[order], tuple({name: value} for value in values), costs)


def dtype_of(ask: Ask) -> torch.dtype:
    return compute_dtype(ask.settings.dtype, torch.device(ask.machine.kind), ask.model.parameters)


def engine_of(ask: Ask) -> engine.Engine:
    settings: LocalSettings = ask.settings
    dtype = dtype_of(ask)
    taken_apart = ask.machine.kind == "cpu" and ask.model.llama_shaped and ask.job.lora is None
    return engine.Engine(
        model=ask.model,
        item_bytes=dtype.itemsize,
        packed_layers=taken_apart and kernels.everywhere(),
        checkpointing=settings.gradient_checkpointing,
        logits_tile=settings.logits_tile_tokens if settings.tiled_logits_compute else None,
        flash=engine.flashes(ask.model, on_gpu=ask.machine.kind == "cuda", item_bytes=dtype.itemsize),
        lora=ask.job.lora,
    )


def _trained(ask: Ask) -> int:
    return ask.model.parameters if ask.job.lora is None else ask.model.lora_parameters(ask.job.lora)


def _count(number: float) -> str:
    return f"{number / 1e9:.3g} G" if number >= 1e9 else f"{number / 1e6:.3g} M"


def _loading(ask: Ask) -> list[Role]:
    """`LocalBackend._start`: the model comes in float32; a reference is turned to the compute dtype before masters."""
    whole = ask.model.parameters
    reference = whole * dtype_of(ask).itemsize if ask.job.needs_reference and ask.job.lora is None else 0
    trained = _trained(ask)
    # The files are mapped while they are read, and on a CPU lie in the same memory.
    stored = ask.model.stored_bytes if ask.machine.kind == "cpu" else 0
    return [
        Role("weights' files", float(stored * whole), ("start",), f"{stored} x {_count(whole)} parameters, mapped"),
        Role("weights as loaded", 4.0 * whole + reference, ("start",), f"4 x {_count(whole)} parameters in float32"),
        Role("master weights made", 4.0 * trained, ("start",), f"4 x {_count(trained)} trained"),
    ]


def _trainer(ask: Ask) -> list[Role]:
    b, whole, trained = dtype_of(ask).itemsize, ask.model.parameters, _trained(ask)
    frozen = whole if ask.job.lora is not None else 0
    roles = [
        Role("weights", float(b * (trained + frozen)), ALWAYS, f"{b} x {_count(trained + frozen)} parameters"),
        Role("master weights", 4.0 * trained, ALWAYS, f"4 x {_count(trained)} trained"),
        Role("gradients", 4.0 * trained, ALWAYS, f"4 x {_count(trained)} trained"),
        Role("optimizer", 8.0 * trained, ALWAYS, f"AdamW's two moments, 8 x {_count(trained)} trained"),
    ]
    if ask.job.needs_reference and ask.job.lora is None:
        roles.append(Role("reference model", float(b * whole), ALWAYS, f"{b} x {_count(whole)}, for KL"))
    return roles


def _update(ask: Ask) -> list[Role]:
    tokens, predicted = ask.work.micro_batch(max_tokens=ask.job.max_tokens_per_device)
    return engine.update_roles(engine_of(ask), tokens=tokens, predicted=predicted)


def _sampler(ask: Ask) -> list[Role]:
    """`sampler._Run`: the cache, the first prefill, logits of a step, and on some CPUs the rearranged weights."""
    work = ask.work
    samplings = [_sampling(ask, num_prompts=prompts, n=n) for prompts, n in work.samplings]
    largest = max(samplings, key=lambda one: one.cache_bytes + one.step_bytes)
    tokens = f"{work.longest_response:,} after {largest.room.groups} prompts of {work.longest_prompt:,}"
    told = f"{largest.room.rows} completions of {tokens}, {_kv_bytes(ask):,} bytes a token"
    kept = 8.0 * work.samples * work.longest_response
    roles = [
        Role("KV cache", float(largest.cache_bytes), ("sample",), told),
        Role("work of sampling", float(largest.step_bytes), ("sample",), "a prefill, or the logits of a decode step"),
        Role("completions", kept, ("sample",), "ids and log-probs, 8 bytes a token"),
    ]
    return [*roles, *_rearranged(ask)]


@dataclass(frozen=True, slots=True)
class _Sampling:
    """What one call of the sampler takes, with every completion at its full length."""

    room: sampler.Room
    cache_bytes: int
    step_bytes: int


def _sampling(ask: Ask, *, num_prompts: int, n: int) -> _Sampling:
    e, longest = engine_of(ask), ask.work.longest_prompt
    new_tokens = max(1, ask.work.longest_response - 1)
    room = sampler.room(
        prompt_tokens=longest,
        new_tokens=new_tokens,
        num_prompts=num_prompts,
        n=n,
        bytes_per_token=_kv_bytes(ask),
        limits=sampler.Limits(ask.settings.kv_cache_gb * 2**30, ask.settings.max_num_seqs),
    )
    entering = min(max(sampler.PREFILL_TOKENS, longest), room.rows // n * longest)
    logits = engine.sampled_logits(e, rows=room.rows) + _draw(ask, room.rows)
    return _Sampling(
        room,
        cache_bytes=_kv_bytes(ask) * (room.groups * longest + room.rows * new_tokens),
        step_bytes=max(engine.prefill_transient(e, tokens=entering), logits),
    )


def _rearranged(ask: Ask) -> list[Role]:
    """`engine/prepacked.py`, on a CPU that multiplies bfloat16."""
    b = dtype_of(ask).itemsize
    if ask.machine.kind != "cpu" or not prepacked.pays(torch.empty(0, dtype=dtype_of(ask))):
        return []
    factors = 0 if ask.job.lora is None else ask.model.lora_parameters(ask.job.lora)
    weights = ask.model.body_linears + ask.model.head_parameters + factors
    told = f"{b} x {_count(weights)}, a copy for this CPU"
    return [Role("rearranged weights", float(b * weights), ("sample",), told)]


def _draw(ask: Ask, rows: int) -> int:
    """Scratch of a draw on a GPU, in float32, twice where the vocabulary has to be filled up: `draw._draw_tile`."""
    if ask.machine.kind == "cpu":
        return 0
    return 8 * min(rows * ask.model.vocab, TILE["cuda"])


def _kv_bytes(ask: Ask) -> int:
    shape = KvShape(ask.model.layers, ask.model.kv_heads, ask.model.head_width)
    return shape.bytes_per_token(dtype_of(ask))


def _least_cache(ask: Ask) -> float:
    """Bytes of one group's keys and values, below which sampling is refused."""
    tokens = ask.work.longest_prompt + ask.work.largest_group * max(1, ask.work.longest_response - 1)
    # A little more, since the setting is a rounded number of GiB.
    return float(_kv_bytes(ask) * tokens * 1.01)


def _snapshot(ask: Ask) -> list[Role]:
    """`local/snapshot.py`: masters and moments, weights that are not float32, with LoRA the merged ones."""
    b, trained = dtype_of(ask).itemsize, _trained(ask)
    weights = 0 if b == 4 and ask.machine.kind == "cpu" else b * trained
    if ask.job.lora is not None:
        weights += b * sum(count * inputs * outputs for count, inputs, outputs in ask.model.targets(ask.job.lora))
    phases: tuple[Phase, ...] = ALWAYS if ask.saves_in_background else ("save",)
    told = "masters, moments and weights"
    told += ", written while the next step runs" if ask.saves_in_background else ""
    return [Role("checkpoint's copy", float(12 * trained + weights), phases, told)]
