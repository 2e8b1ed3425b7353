"""Settings, a machine and a model's config -> what a run will need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlctl.backends import registry
from rlctl.errors import ModelError
from rlctl.planning.device import Machine, Wanted, machine
from rlctl.planning.memory import Ask, MemoryPlanner, Place
from rlctl.planning.model import ModelFacts, read_facts
from rlctl.planning.work import Flops, Lengths, Work, flops_of, work_of
from rlctl.prepare import must_fit_context

if TYPE_CHECKING:  # the settings load pydantic, and only the type is needed here
    from rlctl.settings import Settings


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will need."""

    model: str
    facts: ModelFacts
    machine: Machine
    work: Work
    flops: Flops | None
    places: Sequence[Place]
    places_note: str
    """Why there are none."""


def plan_of(settings: Settings, wanted: Wanted, *, lengths: Lengths | None = None) -> Plan:
    """Raises ConfigError or ModelError with the cure."""
    from rlctl import modelpath

    try:
        model = modelpath.first_available(settings.model.path)
    except ModelError as error:
        hint = "a plan needs the model's config.json alone: a folder with that file will do."
        raise ModelError(error.message, hint=hint) from error
    facts = read_facts(model)
    must_fit_context(settings, {"max_position_embeddings": facts.max_context})
    return planned(settings, machine(wanted), facts, model=model, lengths=lengths)


def planned(
    settings: Settings, described: Machine, facts: ModelFacts, *, model: str, lengths: Lengths | None = None
) -> Plan:
    """The plan, once model and machine are known."""
    work = work_of(settings, lengths)
    places, note = places_of(settings, described, facts, model=model, work=work)
    return Plan(model, facts, described, work, flops_of(work, facts.shape), places, note)


def planner_of(settings: Settings) -> MemoryPlanner | None:
    """What the run's backend brings to lay out memory; None where it brings nothing."""
    spec = registry.get(settings.backend)
    planner: MemoryPlanner | None = spec.load("memory")() if spec.memory else None
    return planner


def ask_of(settings: Settings, described: Machine, facts: ModelFacts, *, model: str, work: Work) -> Ask:
    own = settings.local if settings.backend == "local" else settings.remote_backend[settings.backend]
    return Ask(
        settings=own,
        job=settings.job(model=model, end_token_ids=()),
        model=facts,
        machine=described,
        work=work,
        saves_in_background=settings.trainer.save_in_background,
        max_model_tokens=settings.data.max_prompt_length + settings.rollout.max_response_length,
    )


def notes_of(settings: Settings, plan: Plan) -> Sequence[str]:
    """What the backend says of how sizes and devices come out."""
    planner = planner_of(settings)
    if planner is None:
        return ()
    return planner.notes(ask_of(settings, plan.machine, plan.facts, model=plan.model, work=plan.work))


def places_of(
    settings: Settings, described: Machine, facts: ModelFacts, *, model: str, work: Work
) -> tuple[Sequence[Place], str]:
    """(every place, why there are none)"""
    planner = planner_of(settings)
    if planner is None:
        return (), f"the backend {settings.backend} does not say what it holds"
    return planner.places(ask_of(settings, described, facts, model=model, work=work)), ""
