"""The actors of a run: where they are placed, how they come to hold the model, and how they go.

Ranks and replicas by name ("trainer rank 0", "sampler 1"), which is also how they are spoken of when one is missing.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rlctl.backends.ray import placement, transfer
from rlctl.backends.ray.actors import answer, ask
from rlctl.backends.ray.cluster import Cluster
from rlctl.backends.ray.installed import require
from rlctl.backends.ray.sampler import Replica, Sampler
from rlctl.backends.ray.settings import RaySettings
from rlctl.backends.ray.sharded import Rank
from rlctl.backends.ray.stacks import Whereabouts
from rlctl.backends.ray.trainer import Started, TrainerRank
from rlctl.backends.ray.waiting import Patience, answers
from rlctl.errors import BackendError, ConfigError, RlctlError
from rlctl.types import JobSpec

T = TypeVar("T")

logger = logging.getLogger("rlctl.ray")

HEAD = "trainer rank 0"
"""The rank that writes weights and checkpoints."""
CLOSE_S = 20.0
"""Seconds in which actors may end by themselves."""
STACKS_S = 9.0
"""Seconds in which actors must have told their stacks: less than the hang watch waits for them."""
IN_FLIGHT = 10_000
"""Prompts that one sampler takes at a time; its engine queues what it cannot draw at once."""


class Fleet:
    """Trainer ranks and samplers on a cluster."""

    def __init__(self, settings: RaySettings, job: JobSpec) -> None:
        self.settings, self.job = settings, job
        self.run_id = uuid.uuid4().hex[:12]
        self.cluster = Cluster(settings.address, actor_output=settings.actor_output)
        self.patience = Patience(settings.start_timeout_s, settings.stall_notice_s)
        self.trainers: dict[str, Any] = {}
        self.samplers: dict[str, Any] = {}
        self.places: dict[str, Whereabouts] = {}
        """The machine and process of each actor."""
        self.device: placement.Device = "cpu"
        self.way: transfer.Way = "shared_memory"
        """How weights travel."""
        self._plan = placement.Plan((), (), ())
        self._gpus: list[str] = []
        self._started: Started | None = None

    @property
    def started(self) -> Started:
        """What rank 0 told of the model. Raises BackendError before the start and after the close."""
        if self._started is None:
            raise BackendError("the ray backend is not started, or is closed already.")
        return self._started

    async def start(self) -> None:
        """Reserve places, start actors there, and load the model. Raises ConfigError, BackendUnavailable."""
        if self.settings.address is None:
            # On a cluster, what counts is what its machines have; they are asked once actors are there.
            require("deepspeed")
        await self._in_thread(self.cluster.connect, what="connect to Ray")
        self.device = self.cluster.device(self.settings.device)
        if self.device == "cpu" and self.settings.offload != "none":
            raise ConfigError(
                f'remote_backend.ray.offload = "{self.settings.offload}" moves memory off GPUs; this run has none.',
                hint='set it to "none".',
            )
        self.way = transfer.way(self.settings, device=self.device)
        self._plan = placement.plan(self.settings, device=self.device)
        await self._in_thread(self._reserve, what="reserve places")
        await self._place()
        await self._load_model()
        self.cluster.watch()

    async def _in_thread(self, work: Callable[[], T], *, what: str) -> T:
        return (await answers({"Ray": asyncio.to_thread(work)}, what=what, patience=self.patience))["Ray"]

    def _reserve(self) -> None:
        self.cluster.reserve(self._plan, timeout_s=self.patience.timeout_s)

    async def _place(self) -> None:
        """Start every actor's process, samplers last: they may borrow the ranks' GPUs."""
        for i, seat in enumerate(self._plan.trainers):
            rank = Rank(i, len(self._plan.trainers), self.device, seat.threads, self.run_id)
            self.trainers[rank.name] = self.cluster.actor(TrainerRank, seat, self.settings, self.job, rank)
        if any(seat.borrows_from for seat in self._plan.samplers):
            self._gpus = list((await self._ask(self.trainers, lambda a: a.visible_devices.remote())).values())
        for i in range(len(self._plan.samplers)):
            self._place_sampler(i)

    def _place_sampler(self, index: int) -> None:
        seat = self._plan.samplers[index]
        replica = Replica(index, self.device, seat.threads, self.run_id)
        self.samplers[replica.name] = self.cluster.actor(
            Sampler,
            seat,
            self.settings,
            self.job,
            replica,
            concurrency=IN_FLIGHT,
            borrowed=[self._gpus[rank] for rank in seat.borrows_from],
        )

    async def _load_model(self) -> None:
        """Check what can be checked without the model, then load it everywhere at once."""
        everyone = {**self.trainers, **self.samplers}
        self.places = await self._ask(everyone, lambda a: a.whereabouts.remote())
        dtype = (await self._ask(everyone, lambda a: a.check.remote(), what="check settings"))[HEAD]
        address = (await self._ask({HEAD: self.trainers[HEAD]}, lambda a: a.open_store.remote()))[HEAD]
        loading: dict[str, Awaitable[Any]] = {
            **{name: answer(name, a.start.remote(address, dtype)) for name, a in self.trainers.items()},
            **{name: answer(name, a.start.remote(dtype)) for name, a in self.samplers.items()},
        }
        self._started = (await answers(loading, what="load the model", patience=self.patience))[HEAD]

    async def _ask(
        self, actors: dict[str, Any], call: Callable[[Any], Awaitable[T]], *, what: str = "start actors"
    ) -> dict[str, T]:
        return await ask(actors, call, what=what, patience=self.patience)

    async def drop(self, sampler: str) -> None:
        """Take a dead sampler out."""
        await asyncio.to_thread(self.cluster.end, self.samplers.pop(sampler))

    async def replace_sampler(self) -> None:
        """Start one sampler anew; it has no weights of any meaning yet."""
        self._place_sampler(0)
        dtype = self.started.info.dtype
        self.places |= await self._ask(self.samplers, lambda a: a.whereabouts.remote())
        await self._ask(self.samplers, lambda a: a.start.remote(dtype), what="load the model anew")

    async def stacks(self) -> dict[str, str]:
        """What the threads of every actor are doing, by its name. Raises BackendError, TimedOut."""
        there = {name: self.places[name] for name in (*self.trainers, *self.samplers) if name in self.places}
        machines = sorted({place.machine for place in there.values()})
        asked = {
            f"machine {machine[:8]}": answer(
                f"machine {machine[:8]}",
                self.cluster.stacks(machine, {n: place for n, place in there.items() if place.machine == machine}),
            )
            for machine in machines
        }
        told = await answers(asked, what="read the stacks", patience=Patience(STACKS_S, STACKS_S))
        return {name: frames for of_machine in told.values() for name, frames in of_machine.items()}

    async def close(self) -> None:
        """End every actor, give the places back, and leave the cluster. Safe twice and after a failed start."""
        actors = {**self.trainers, **self.samplers}
        self.trainers, self.samplers, self._started = {}, {}, None
        ending = [asyncio.create_task(_ended(name, actor)) for name, actor in actors.items()]
        try:
            await asyncio.gather(*ending)
        finally:
            await asyncio.to_thread(self.cluster.release, list(actors.values()))


async def _ended(name: str, actor: Any) -> None:
    """Let an actor end by itself; one that cannot is killed by whoever called."""
    try:
        await ask({name: actor}, lambda a: a.close.remote(), what="close", patience=Patience(CLOSE_S, CLOSE_S))
    except RlctlError as error:
        logger.debug("%s", error)
