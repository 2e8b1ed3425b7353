"""What trainer ranks and samplers hold, and which settings hold less: the `memory` part of the Ray backend.

A rank keeps its share of weights, masters, gradients and moments through a run; a colocated sampler on a GPU takes its
share of the device while it is awake, in sampling and syncs, and sleeps while ranks compute. How ZeRO spreads them:
https://arxiv.org/abs/1910.02054, section 5, and the buffers of DeepSpeed 0.19 (`runtime/bf16_optimizer.py`,
`runtime/zero/stage_1_and_2.py`, `stage3.py`). Nothing here imports Ray, DeepSpeed or vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlctl.backends.ray import placement
from rlctl.backends.ray.memory_samplers import sampler_complaint, sampler_roles, share_of
from rlctl.backends.ray.placement import must_hold_whole_weights
from rlctl.backends.ray.settings import RaySettings
from rlctl.errors import ConfigError, ModelError
from rlctl.planning import engine_memory as engine
from rlctl.planning.memory import ORDER, RUNNING, Ask, Change, Phase, Place, Role, halved

REDUCE_BUCKET = 500_000_000
"""Numbers of DeepSpeed's `reduce_bucket_size`, where the run's `deepspeed` table says nothing."""
LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed's `stage3_max_live_parameters`: whole weights that stage 3 may hold at a time."""


class RayMemory:
    """See `rlctl.planning.memory.MemoryPlanner`."""

    def places(self, ask: Ask) -> Sequence[Place]:
        settings: RaySettings = ask.settings
        _must_be_possible(ask)
        if ask.machine.kind == "cpu":
            return [_one_machine(ask)]
        ranks = _rank(ask)
        samplers = sampler_roles(ask, item_bytes=_item_bytes(ask))
        device = ask.machine.name
        told = _too_few(ask) or sampler_complaint(ask, item_bytes=_item_bytes(ask))
        if settings.colocate:
            devices = [
                _place(ask, f"{device}: trainer rank and sampler", settings.trainer_ranks, [*ranks, *samplers], told)
            ]
        else:
            count = settings.sampler_replicas * settings.tensor_parallel_size
            devices = [
                _place(ask, f"{device}: trainer rank", settings.trainer_ranks, ranks, _too_few(ask)),
                _place(ask, f"{device}: sampler", count, samplers, told),
            ]
        return [*devices, _host(ask)]

    def changes(self, ask: Ask) -> Sequence[Change]:
        settings: RaySettings = ask.settings
        ours = "remote_backend.ray."
        found = [_tile(settings)]
        slower = "sampling speed: fewer completions at a time"
        if ask.machine.kind == "cpu":
            caches = halved(settings.kv_cache_gb, least=0.25)
            found.append(Change(ORDER["sampling"], tuple({f"{ours}kv_cache_gb": value} for value in caches), slower))
        elif settings.colocate:
            shares = [share for share in (0.3, 0.2, 0.15, 0.1) if share < share_of(settings)]
            tables = [{**settings.vllm, "gpu_memory_utilization": share} for share in shares]
            found.append(Change(ORDER["sampling"], tuple({f"{ours}vllm": table} for table in tables), slower))
        if not settings.gradient_checkpointing:
            costs = "a third more time of the update, the same result"
            found.append(Change(ORDER["checkpointing"], ({f"{ours}gradient_checkpointing": True},), costs))
        stages = [stage for stage in (2, 3) if stage > settings.zero_stage and (stage < 3 or ask.job.lora is None)]
        if settings.trainer_ranks > 1 and stages:
            costs = "more traffic between ranks; stage 3 gathers weights in every pass"
            found.append(Change(ORDER["zero"], tuple({f"{ours}zero_stage": stage} for stage in stages), costs))
        if settings.offload == "none" and ask.machine.kind == "cuda":
            costs = "each optimizer step on the machine's CPU, and its memory"
            found.append(Change(ORDER["offload"], ({f"{ours}offload": "optimizer"},), costs))
        return found

    def notes(self, ask: Ask) -> Sequence[str]:
        return [*_idle_ranks(ask), *_idle_devices(ask)]


def _idle_ranks(ask: Ask) -> list[str]:
    """Groups stay whole: a number of them that the ranks do not divide leaves some waiting for others."""
    groups, ranks = ask.work.prompts_per_update, ask.settings.trainer_ranks
    if groups % ranks == 0:
        return []
    sizes = " or ".join(str(n) for n in (groups // ranks * ranks, (groups // ranks + 1) * ranks) if n)
    return [f"{groups} prompts an update over {ranks} trainer ranks do not come out even; nearest that do: {sizes}"]


def _devices(settings: RaySettings) -> int:
    samplers = settings.sampler_replicas * settings.tensor_parallel_size
    return settings.trainer_ranks if settings.colocate else settings.trainer_ranks + samplers


def _idle_devices(ask: Ask) -> list[str]:
    there, used = ask.machine.num_devices, _devices(ask.settings)
    if ask.machine.kind == "cpu" or there is None or used >= there:
        return []
    return [f"the run uses {used} of {there} GPUs: remote_backend.ray.trainer_ranks and sampler_replicas say how many"]


def _too_few(ask: Ask) -> str:
    there, used = ask.machine.num_devices, _devices(ask.settings)
    return f"the run needs {used} GPUs, and there are {there}" if there is not None and used > there else ""


def _tile(settings: RaySettings) -> Change:
    costs = "a little speed at the output head"
    if not settings.tiled_logits_compute:
        return Change(ORDER["tile"], ({"remote_backend.ray.tiled_logits_compute": True},), costs)
    tiles = halved(settings.logits_tile_tokens, least=64)
    return Change(ORDER["tile"], tuple({"remote_backend.ray.logits_tile_tokens": tile} for tile in tiles), costs)


def _must_be_possible(ask: Ask) -> None:
    """Raises ConfigError where a run would be refused, ModelError where heads cannot be split."""
    placement.plan(ask.settings, device=ask.machine.kind)
    must_hold_whole_weights(ask.settings, ask.job)
    width, heads = ask.settings.tensor_parallel_size, ask.model.heads
    if heads % width:
        fitting = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ModelError(
            f"remote_backend.ray.tensor_parallel_size = {width} does not divide the model's {heads} attention heads.",
            hint=f"it can be {fitting}.",
        )


def _place(ask: Ask, name: str, count: int, roles: Sequence[Role], complaint: str) -> Place:
    machine = ask.machine
    return Place(name, count, machine.memory_bytes, machine.memory_source, tuple(roles), complaint)


def _item_bytes(ask: Ask) -> int:
    import torch

    from rlctl.engine.limits import compute_dtype

    dtype = compute_dtype(ask.settings.dtype, torch.device(ask.machine.kind), ask.model.parameters)
    return dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Share:
    """What ZeRO leaves on a rank, in numbers of the trained parameters N and ranks r; b bytes of a compute weight."""

    b: int
    stage: int
    ranks: int
    trained: int
    whole: int
    offload: str

    def spread(self, number: float) -> float:
        return number / self.ranks

    @property
    def weights(self) -> float:
        return self.b * (self.spread(self.whole) if self.stage == 3 else self.whole)

    @property
    def gathered(self) -> float:
        return self.b * float(min(self.whole, LIVE_PARAMETERS)) if self.stage == 3 else 0.0

    @property
    def masters_and_moments(self) -> float:
        return 12 * self.spread(self.trained)

    @property
    def gradients(self) -> float:
        return 4 * (float(self.trained) if self.stage == 1 else self.spread(self.trained))


def _share(ask: Ask) -> _Share:
    settings, lora = ask.settings, ask.job.lora
    trained = ask.model.parameters if lora is None else ask.model.lora_parameters(lora)
    whole = ask.model.parameters + (0 if lora is None else trained)
    return _Share(_item_bytes(ask), settings.zero_stage, settings.trainer_ranks, trained, whole, settings.offload)


def _rank(ask: Ask) -> list[Role]:
    """The roles of one trainer rank on its device."""
    share, settings = _share(ask), ask.settings
    on_device = settings.offload == "none"
    told = f"ZeRO {share.stage} on {share.ranks} rank{'s' * (share.ranks > 1)}"
    always: tuple[Phase, ...] = ("start", *RUNNING)
    roles = []
    if settings.offload != "parameters":
        roles.append(Role("weights", share.weights, always, f"{share.b} bytes a parameter, {told}"))
    if share.stage == 3:
        phases: tuple[Phase, ...] = ("score", "update", "sync")
        roles.append(
            Role("gathered weights", share.gathered, phases, f"{share.b} bytes, at most {LIVE_PARAMETERS:,} at a time")
        )
    if on_device:
        masters, moments = share.masters_and_moments / 3, share.masters_and_moments * 2 / 3
        roles += [
            Role("master weights", masters, always, f"4 bytes a trained parameter, {told}"),
            Role("gradients", share.gradients, _kept_by_deepspeed(share), f"4 bytes a trained parameter, {told}"),
            Role("optimizer", moments, always, f"AdamW's two moments, 8 bytes, {told}"),
        ]
    return [*roles, *_buffers(ask, share), *_reference(ask, share), *_compute(ask)]


def _kept_by_deepspeed(share: _Share) -> tuple[Phase, ...]:
    """Stages 1 and 3 keep buffers of gradients for good, stage 2 makes them in the backward pass."""
    return ("update", "step") if share.stage == 2 else ("start", *RUNNING)


def _buffers(ask: Ask, share: _Share) -> list[Role]:
    bucket = _reduce_bucket(ask.settings)
    # Allocated whole, however small the model; what goes through it is copied to float32.
    held = float(share.b * bucket) if share.stage > 1 else 0.0
    bucket_phases = _kept_by_deepspeed(share) if share.stage == 3 else ("update",)
    sent: tuple[Phase, ...] = ("update",) if share.stage > 1 else ("step",)
    old = share.b * share.spread(share.trained)
    return [
        Role("gradient bucket", held, bucket_phases, f"DeepSpeed's reduce_bucket_size of {bucket:,} x {share.b} bytes"),
        Role("gradients sent", 4.0 * min(bucket, share.trained), sent, "a bucket of them in float32"),
        Role("weights before a step", old, ("step",), f"{share.b} bytes of its share, to count what changed"),
    ]


def _reduce_bucket(settings: RaySettings) -> int:
    """Numbers of a bucket. Raises ConfigError for a size that is none."""
    zero = settings.deepspeed.get("zero_optimization", {})
    wanted = zero.get("reduce_bucket_size", REDUCE_BUCKET) if isinstance(zero, dict) else str(zero)
    if isinstance(wanted, bool) or not isinstance(wanted, (int, float)) or not 0 < wanted < 2**40:
        raise ConfigError(
            f"remote_backend.ray.deepspeed: {wanted!r} is no reduce_bucket_size of a table zero_optimization.",
            hint="it is a number of gradients, 500000000 without any.",
        )
    return int(wanted)


def _reference(ask: Ask, share: _Share) -> list[Role]:
    if not ask.job.needs_reference or ask.job.lora is not None or ask.settings.offload == "parameters":
        return []
    return [Role("reference model", share.weights, ("start", *RUNNING), f"{share.b} bytes a parameter, for KL")]


def engine_of(ask: Ask) -> engine.Engine:
    """DeepSpeed sees the modules of transformers: their layers go through autograd on any device."""
    settings: RaySettings = ask.settings
    return engine.Engine(
        model=ask.model,
        item_bytes=_item_bytes(ask),
        packed_layers=False,
        checkpointing=settings.gradient_checkpointing,
        logits_tile=settings.logits_tile_tokens if settings.tiled_logits_compute else None,
        flash=engine.flashes(ask.model, on_gpu=ask.machine.kind == "cuda", item_bytes=_item_bytes(ask)),
        lora=ask.job.lora,
    )


def _compute(ask: Ask) -> list[Role]:
    e = engine_of(ask)
    tokens, predicted = ask.work.micro_batch(max_tokens=ask.job.max_tokens_per_device, ranks=ask.settings.trainer_ranks)
    # The head's gradient is summed in float32 beside the parameter until autograd takes it: `learner._collector`.
    head = 4.0 * ask.model.head_parameters * e.trains_all
    return [
        *engine.update_roles(e, tokens=tokens, predicted=predicted),
        Role("head's gradient", head, ("update",), f"4 x {ask.model.vocab:,} x {ask.model.hidden:,}"),
    ]


def _host(ask: Ask) -> Place:
    """The memory of one machine that holds all ranks and samplers."""
    share, settings, ranks = _share(ask), ask.settings, ask.settings.trainer_ranks
    asleep = share.b * ask.model.parameters * settings.sampler_replicas
    running: tuple[Phase, ...] = ("start", *RUNNING)
    loaded = 4.0 * (ask.model.parameters + share.trained) * ranks
    roles = [
        Role("weights as loaded", loaded, ("start",), f"float32, with masters, in each of {ranks} ranks"),
        *_checkpoint(ask, share),
    ]
    if settings.offload != "none":
        held = (share.masters_and_moments + 4 * share.spread(share.trained)) * ranks
        roles.append(
            Role("offloaded optimizer", held, running, "masters, moments and gradients, 16 bytes a trained parameter")
        )
    if settings.offload == "parameters":
        roles.append(Role("offloaded weights", share.weights * ranks, running, f"{share.b} bytes a parameter"))
    if settings.colocate:
        roles.append(
            Role(
                "sleeping samplers",
                float(asleep),
                ("score", "update", "step", "save"),
                f"weights of {settings.sampler_replicas}",
            )
        )
    if settings.weight_sync == "shared_memory":
        roles.append(Role("weights in /dev/shm", float(share.b * ask.model.parameters), ("sync",), "the model once"))
    source = ask.machine.host_bytes
    return Place("host, if all are on one machine", 1, source, "--memory-gb says how much a machine has", tuple(roles))


def _checkpoint(ask: Ask, share: _Share) -> list[Role]:
    phases: tuple[Phase, ...] = RUNNING if ask.saves_in_background else ("save",)
    held = 12.0 * share.trained + share.b * ask.model.parameters
    return [Role("checkpoint's copy", held, phases, "masters, moments and weights, whole, in rank 0")]


def _one_machine(ask: Ask) -> Place:
    """On CPUs: all actors in the memory of one machine."""
    settings: RaySettings = ask.settings
    ranks, replicas = settings.trainer_ranks, settings.sampler_replicas
    share, b = _share(ask), _item_bytes(ask)
    trainers = [_times(role, ranks, "ranks") for role in _rank(ask)]
    loaded = 4.0 * (ask.model.parameters + share.trained) * ranks
    always: tuple[Phase, ...] = ("start", *RUNNING)
    samplers = [
        Role("sampler weights", float(b * ask.model.parameters), always, f"{b} bytes a parameter"),
        Role("KV cache", settings.kv_cache_gb * 2**30, RUNNING, "remote_backend.ray.kv_cache_gb"),
    ]
    roles = [
        Role("weights as loaded", loaded, ("start",), f"float32, with masters, in each of {ranks} ranks"),
        *trainers,
        *(_times(role, replicas, "samplers") for role in samplers),
        Role("weights in /dev/shm", float(b * ask.model.parameters), ("sync",), "the model once"),
        *_checkpoint(ask, share),
    ]
    return Place("all actors on one machine", 1, ask.machine.memory_bytes, ask.machine.memory_source, tuple(roles))


def _times(role: Role, count: int, what: str) -> Role:
    if count == 1 or role.num_bytes is None:
        return role
    return Role(role.name, role.num_bytes * count, role.phases, f"{role.formula}, in {count} {what}")
