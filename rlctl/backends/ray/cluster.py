"""The Ray cluster of a run: connect or start one, reserve its places, start actors there, and give all of it back."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rlctl.backends.ray.guard import Guard, descendants
from rlctl.backends.ray.placement import Device, Plan, Seat, shortage
from rlctl.backends.ray.stacks import Whereabouts, read
from rlctl.errors import BackendUnavailable

PASSED_ON = ("HF_", "HUGGING_FACE_", "NCCL_", "GLOO_", "VLLM_", "TORCH_", "DS_", "OMP_")
"""Beginnings of the environment variables that actors on other machines get too; settings travel as objects."""


CONNECT_S = 10.0
"""Seconds in which a cluster's address must take a connection."""


class Cluster:
    """A connection to Ray, and what this run has reserved there."""

    def __init__(self, address: str | None, *, actor_output: bool) -> None:
        self.address, self.actor_output = address, actor_output
        self._started_here = False
        self._group: Any = None
        self._guard: Guard | None = None
        self._others: set[int] = set()
        """Processes below this one that are not the cluster's."""

    def connect(self) -> None:
        """Start a cluster on this machine or connect to one. Raises BackendUnavailable.

        To be called off the main thread: there Ray leaves the signal handlers as they are.
        """
        if ray.is_initialized():
            return
        self._others = set(descendants(os.getpid()))
        try:
            _must_answer(self.address)
            ray.init(
                address=self.address or "local",
                include_dashboard=False if self.address is None else None,
                log_to_driver=self.actor_output,
                logging_level=logging.ERROR,
            )
        except (OSError, ValueError, RuntimeError, OverflowError) as error:
            raise BackendUnavailable(
                f"no Ray cluster answers at remote_backend.ray.address = {self.address}: {_first_line(error)}",
                hint="`ray start --head` starts one; null starts one on this machine for the time of the run.",
            ) from error
        self._started_here = True
        if self.address is None:
            # Ray's own agents take up to a minute to see that their driver was killed.
            self._guard = Guard()
            self.watch()

    def watch(self) -> None:
        """Tell the guard of the processes of a cluster that was started here, of which Ray starts some later."""
        if self._guard is not None:
            self._guard.watch([pid for pid in descendants(os.getpid()) if pid not in self._others])

    def device(self, wanted: str) -> Device:
        """Which kind of device the run takes: auto is cuda when a machine of the cluster has a GPU."""
        if wanted == "auto":
            return "cuda" if any(node.get("GPU", 0) for node in self.free_by_node().values()) else "cpu"
        return "cuda" if wanted == "cuda" else "cpu"

    def free_by_node(self) -> dict[str, Mapping[str, float]]:
        """Resources of each machine that nobody has reserved."""
        from ray._private.state import available_resources_per_node

        free: dict[str, Mapping[str, float]] = available_resources_per_node()
        return free

    def reserve(self, plan: Plan, *, timeout_s: float) -> None:
        """Hold the plan's bundles. Raises BackendUnavailable at once when the cluster cannot, now or ever."""
        told = shortage(plan.bundles, list(self.free_by_node().values()))
        if told is not None:
            raise BackendUnavailable(
                f"the Ray cluster has too little room: {told}.",
                hint="lower remote_backend.ray.trainer_ranks, sampler_replicas, cpus_per_rank or cpus_per_sampler, "
                "or add machines.",
            )
        self._group = placement_group([dict(bundle) for bundle in plan.bundles], strategy="PACK")
        done, _ = ray.wait([self._group.ready()], timeout=timeout_s)
        if not done:
            raise BackendUnavailable(
                f"the places of the run were not reserved within {timeout_s:g} s.",
                hint="is somebody else starting on this cluster?",
            )

    def actor(
        self, cls: type, seat: Seat, *args: object, concurrency: int | None = None, borrowed: Sequence[str] = ()
    ) -> Any:
        """A handle on a new actor of that class at its seat; `borrowed` names the GPUs of others that it uses."""
        options = {"max_concurrency": concurrency} if concurrency else {}
        return (
            ray.remote(cls)
            .options(
                num_cpus=seat.cpus,
                num_gpus=seat.gpus,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._group, placement_group_bundle_index=seat.bundle
                ),
                runtime_env={"env_vars": _environment(seat, borrowed)},
                max_restarts=0,
                **options,
            )
            .remote(*args)
        )

    def stacks(self, machine: str, actors: Mapping[str, Whereabouts]) -> Any:
        """A reference to the stacks of actors on that machine, read by a task there that asks for no resources."""
        there = NodeAffinitySchedulingStrategy(machine, soft=False)
        return ray.remote(read).options(num_cpus=0, scheduling_strategy=there, max_retries=0).remote(actors)

    def end(self, actor: Any) -> None:
        """Kill one actor."""
        ray.kill(actor, no_restart=True)

    def release(self, actors: Sequence[Any]) -> None:
        """End the actors, give the places back, and stop the cluster if it was started here."""
        if not ray.is_initialized():
            return
        for actor in actors:
            ray.kill(actor, no_restart=True)
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None
        if self._started_here:
            ray.shutdown()
            self._started_here = False
            if self._guard is not None:
                self._guard.release()
                self._guard = None


def _environment(seat: Seat, borrowed: Sequence[str]) -> dict[str, str]:
    passed = {key: value for key, value in os.environ.items() if key.startswith(PASSED_ON)}
    if borrowed:
        # Ray shows no GPU to an actor that reserves none, unless it is told to leave the variable alone.
        passed |= {"CUDA_VISIBLE_DEVICES": ",".join(borrowed), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    elif not seat.gpus:
        # Without this, DeepSpeed looks for an accelerator, and Ray would show none to an actor that asks for none.
        passed |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(seat.threads)}
    if "RLCTL_CACHE_DIR" in os.environ:
        passed["RLCTL_CACHE_DIR"] = os.environ["RLCTL_CACHE_DIR"]
    return passed


def _must_answer(address: str | None) -> None:
    """Raises OSError or ValueError when nobody listens at `host:port`, where Ray itself would try for minutes."""
    if address == "auto":
        # What Ray takes before it looks for a cluster on this machine.
        address = os.environ.get("RAY_ADDRESS") or "auto"
    if address in (None, "auto", "local"):
        return
    host, colon, port = str(address).removeprefix("ray://").rpartition(":")
    if not (colon and port.isdigit()):
        raise ValueError("it is not HOST:PORT, ray://HOST:PORT or auto.")
    socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
