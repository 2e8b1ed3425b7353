"""Where each actor goes, as plain data: roles -> bundles of a placement group, and what a cluster lacks for them.

A bundle is what must lie on one machine. Colocated, a trainer's device and a sampler's are one, and each takes half of
it by Ray's fractional resources; apart, each has a bundle of its own. A sampler of several GPUs cannot take halves (Ray
would give it half as many whole ones, and two ranks the same one): there ranks take the GPUs, and the sampler borrows
theirs. Nothing here imports Ray.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlctl.backends.ray.settings import RaySettings
from rlctl.errors import ConfigError
from rlctl.types import JobSpec

Device = Literal["cpu", "cuda"]
Bundle = Mapping[str, float]
"""Ray's resources by name: {"CPU": 2, "GPU": 1}."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One actor's place: which of the bundles, and its share of it."""

    name: str
    bundle: int
    cpus: float
    gpus: float
    threads: int
    borrows_from: tuple[int, ...] = ()
    """Trainer ranks whose GPUs this actor uses without a share of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All bundles of a run and who sits where."""

    bundles: tuple[Bundle, ...]
    trainers: tuple[Seat, ...]
    samplers: tuple[Seat, ...]


def plan(settings: RaySettings, *, device: Device) -> Plan:
    """Seats for every rank and replica. Raises ConfigError when colocation does not come out even."""
    if device == "cuda" and settings.colocate:
        return _colocated_on_gpus(settings)
    return _colocated_on_cpus(settings) if settings.colocate else _apart(settings, device=device)


def must_hold_whole_weights(settings: RaySettings, job: JobSpec) -> None:
    """Raises ConfigError for LoRA where ZeRO cuts the weights."""
    if job.lora is not None and settings.zero_stage == 3:
        raise ConfigError(
            "model.lora.rank > 0 needs whole weights, which remote_backend.ray.zero_stage = 3 cuts.",
            hint="set remote_backend.ray.zero_stage = 2: LoRA has few gradients and moments to spread.",
        )


def _colocated_on_gpus(settings: RaySettings) -> Plan:
    """A bundle is one sampler's GPUs; as many trainer ranks share them."""
    width = settings.tensor_parallel_size
    ranks, devices = settings.trainer_ranks, settings.sampler_replicas * width
    if ranks != devices:
        raise ConfigError(
            f"remote_backend.ray: colocated, trainer_ranks = {ranks} must equal sampler_replicas x "
            f"tensor_parallel_size = {settings.sampler_replicas} x {width} = {devices}.",
            hint="change one of them, or set remote_backend.ray.colocate = false.",
        )
    cpus = settings.cpus_per_sampler + width * settings.cpus_per_rank
    whole = width > 1
    return Plan(
        bundles=tuple({"CPU": cpus, "GPU": float(width)} for _ in range(settings.sampler_replicas)),
        trainers=tuple(
            Seat(
                f"trainer rank {i}",
                i // width,
                settings.cpus_per_rank,
                1.0 if whole else 0.5,
                _threads(settings.cpus_per_rank),
            )
            for i in range(ranks)
        ),
        samplers=tuple(
            Seat(
                f"sampler {i}",
                i,
                settings.cpus_per_sampler,
                0.0 if whole else 0.5,
                _threads(settings.cpus_per_sampler),
                borrows_from=tuple(range(i * width, (i + 1) * width)) if whole else (),
            )
            for i in range(settings.sampler_replicas)
        ),
    )


def _colocated_on_cpus(settings: RaySettings) -> Plan:
    """Bundle i holds rank i and replica i. They take turns, so each uses all of the bundle's cores."""
    count = max(settings.trainer_ranks, settings.sampler_replicas)
    cpus = max(settings.cpus_per_rank, settings.cpus_per_sampler)
    return Plan(
        bundles=tuple({"CPU": cpus} for _ in range(count)),
        trainers=tuple(
            Seat(f"trainer rank {i}", i, cpus / 2, 0.0, _threads(settings.cpus_per_rank))
            for i in range(settings.trainer_ranks)
        ),
        samplers=tuple(
            Seat(f"sampler {i}", i, cpus / 2, 0.0, _threads(settings.cpus_per_sampler))
            for i in range(settings.sampler_replicas)
        ),
    )


def _apart(settings: RaySettings, *, device: Device) -> Plan:
    gpu = 1.0 if device == "cuda" else 0.0
    ranks, replicas, width = settings.trainer_ranks, settings.sampler_replicas, settings.tensor_parallel_size
    trainer = _bundle(cpus=settings.cpus_per_rank, gpus=gpu)
    sampler = _bundle(cpus=settings.cpus_per_sampler, gpus=gpu * width)
    return Plan(
        bundles=(*[trainer] * ranks, *[sampler] * replicas),
        trainers=tuple(
            Seat(f"trainer rank {i}", i, settings.cpus_per_rank, gpu, _threads(settings.cpus_per_rank))
            for i in range(ranks)
        ),
        samplers=tuple(
            Seat(f"sampler {i}", ranks + i, settings.cpus_per_sampler, gpu * width, _threads(settings.cpus_per_sampler))
            for i in range(replicas)
        ),
    )


def _bundle(*, cpus: float, gpus: float) -> Bundle:
    return {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}


def _threads(cpus: float) -> int:
    return max(1, math.floor(cpus))


def shortage(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> str | None:
    """Why machines with those free resources cannot hold the bundles, as a sentence; None when they can.

    Largest bundles first onto the machine with the least room that still fits, which finds a place whenever bundles are
    alike, as a run's are.
    """
    free = [dict(node) for node in nodes]
    for bundle in sorted(bundles, key=lambda b: sorted(b.items(), reverse=True), reverse=True):
        fitting = [node for node in free if all(node.get(k, 0.0) + 1e-6 >= v for k, v in bundle.items())]
        if not fitting:
            return _sentence(bundles, nodes)
        node = min(fitting, key=lambda n: (n.get("GPU", 0.0), n.get("CPU", 0.0)))
        for kind, amount in bundle.items():
            node[kind] -= amount
    return None


def _sentence(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> str:
    kinds = sorted({kind for bundle in bundles for kind in bundle}, reverse=True)
    needed = ", ".join(f"{sum(b.get(kind, 0.0) for b in bundles):g} {kind}" for kind in kinds)
    there = ", ".join(f"{sum(n.get(kind, 0.0) for n in nodes):g} {kind}" for kind in kinds)
    largest = max(bundles, key=lambda b: sorted(b.items(), reverse=True))
    one = " and ".join(f"{amount:g} {kind}" for kind, amount in sorted(largest.items(), reverse=True))
    machines = "machine" if len(nodes) == 1 else "machines"
    return (
        f"the run needs {needed} in {len(bundles)} bundles (the largest {one} on one machine), "
        f"and {there} on {len(nodes)} {machines} are free"
    )
