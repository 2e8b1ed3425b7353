"""Who holds memory, when and where: roles with their phases, on places; and what a backend is asked for.

A place is one device, or the memory of the machine around it. Its peak is the largest sum over the phases of a run, not
the sum of all roles: what is held while sampling may be gone while updating.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rlctl.planning.device import Machine
from rlctl.planning.model import ModelFacts
from rlctl.planning.work import Work
from rlctl.types import JobSpec

Phase = Literal["start", "sample", "score", "update", "step", "sync", "save"]

PHASES: tuple[Phase, ...] = ("start", "sample", "score", "update", "step", "sync", "save")
"""Loading; drawing completions; log-probs; forward and backward; the optimizer; weights to samplers; copying a
checkpoint."""

RUNNING: tuple[Phase, ...] = PHASES[1:]
"""All after the model is loaded."""

GIB = float(2**30)


@dataclass(frozen=True, slots=True)
class Role:
    """What holds memory on a place."""

    name: str
    num_bytes: float | None
    """None where it is not known; `formula` then says why."""
    phases: tuple[Phase, ...]
    """When it is held."""
    formula: str
    """How the bytes come about, in words and numbers."""


@dataclass(frozen=True, slots=True)
class Place:
    """Memory of one kind: `count` devices, or machines, that hold the same."""

    name: str
    count: int
    capacity_bytes: float | None
    """None where it is not known; `capacity_source` then says why."""
    capacity_source: str
    roles: tuple[Role, ...]
    complaint: str = ""
    """Why it cannot be, however much memory is free; "" for nothing."""

    def held(self, phase: Phase) -> float:
        """Bytes in a phase, of what is known."""
        return sum(role.num_bytes or 0.0 for role in self.roles if phase in role.phases)

    @property
    def peak_phase(self) -> Phase:
        return max(PHASES, key=self.held)

    @property
    def peak_bytes(self) -> float:
        return self.held(self.peak_phase)

    @property
    def unknown(self) -> list[Role]:
        return [role for role in self.roles if role.num_bytes is None]

    @property
    def fits(self) -> bool | None:
        """None when the capacity is not known, or the known roles fit and others are not known."""
        if self.complaint:
            return False
        if self.capacity_bytes is None:
            return None
        if self.peak_bytes > self.capacity_bytes:
            return False
        return None if self.unknown else True


@dataclass(frozen=True, slots=True)
class Change:
    """Settings that need less memory, and what that costs. Of several values, the first that fits is taken."""

    order: int
    """Cheaper ones are smaller; see ORDER."""
    assignments: tuple[Mapping[str, Any], ...]
    """Alternatives, from the mildest on: dotted names of settings and values."""
    costs: str


ORDER = {
    "tile": 1,
    "sampling": 2,
    "tokens": 3,
    "snapshot": 4,
    "checkpointing": 5,
    "zero": 6,
    "offload": 7,
    "lora": 8,
}
"""From what costs next to nothing to what changes the training: smaller tiles and more micro-batches give the same
result a little later, gradient checkpointing a third later, offload waits for a bus, LoRA trains another model."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a backend is asked to lay out."""

    settings: Any
    """The backend's own."""
    job: JobSpec
    model: ModelFacts
    machine: Machine
    work: Work
    saves_in_background: bool
    max_model_tokens: int
    """Longest prompt and completion."""


class MemoryPlanner(Protocol):
    """What `register(..., memory="module:Class")` names: a class made without arguments, which loads nothing."""

    def places(self, ask: Ask) -> Sequence[Place]:
        """Every kind of place and what lies there. Raises ConfigError for settings that cannot be."""
        ...

    def changes(self, ask: Ask) -> Sequence[Change]:
        """Settings of this backend that need less memory."""
        ...

    def notes(self, ask: Ask) -> Sequence[str]:
        """What the user should know of how sizes and devices come out, as sentences."""
        ...


def halved(value: float, *, least: float) -> list[float]:
    """value / 2, value / 4, ... down to `least`, whole numbers where the value is one."""
    found = []
    while value > least:
        value = max(value // 2 if isinstance(value, int) else value / 2, least)
        found.append(value)
    return found
