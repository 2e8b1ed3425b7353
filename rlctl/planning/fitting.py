"""A plan that does not fit: which change of settings is the cheapest that makes it fit, and what it costs.

Changes are tried in the order of what they cost, each alone, from its mildest form on; then one upon the other, and
those that turn out not to be needed are left out again, the dearest first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlctl.errors import RlctlError
from rlctl.planning.memory import ORDER, Change, Place, halved
from rlctl.planning.plan import Plan, ask_of, places_of, planner_of
from rlctl.planning.work import work_of

if TYPE_CHECKING:  # the settings load pydantic, and only the type is needed here
    from rlctl.settings import Settings

LORA_RANK = 16
"""Of the suggestion: a usual one; its memory is next to nothing beside the model's."""


@dataclass(frozen=True, slots=True)
class Cure:
    """Settings with which a run fits."""

    assignments: Mapping[str, Any]
    """Dotted names and values, as --set takes them."""
    costs: Sequence[str]
    places: Sequence[Place]


def fits(places: Sequence[Place]) -> bool | None:
    """Of the places whose size is known: False when one is too small, None when not all that lies in one is known, or
    there are none.
    """
    if any(place.fits is False for place in places):
        return False
    known = [place for place in places if place.capacity_bytes is not None]
    return True if known and all(place.fits for place in known) else None


def cheapest_cure(settings: Settings, plan: Plan) -> Cure | None:
    """The cheapest change, or combination of changes, with which no place is too small; None when there is none."""
    changes = sorted(_changes(settings, plan), key=lambda change: change.order)
    layouts = _Layouts(settings, plan)
    for change in changes:
        for assignments in change.assignments:
            cure = layouts.cure([(change, assignments)])
            if cure is not None:
                return cure
    return _combined(changes, layouts)


def _changes(settings: Settings, plan: Plan) -> Iterator[Change]:
    planner = planner_of(settings)
    if planner is None:
        return
    ask = ask_of(settings, plan.machine, plan.facts, model=plan.model, work=plan.work)
    yield from planner.changes(ask)
    row = plan.work.longest_prompt + plan.work.longest_response
    budgets = halved(settings.trainer.max_tokens_per_device, least=row)
    slower = "more micro-batches of an update, the same result"
    yield Change(ORDER["tokens"], tuple({"trainer.max_tokens_per_device": int(b)} for b in budgets), slower)
    if settings.trainer.save_in_background:
        waits = "the run waits while a checkpoint is written"
        yield Change(ORDER["snapshot"], ({"trainer.save_in_background": False},), waits)
    if not settings.model.lora.rank:
        other = "another training: low-rank factors of the linear layers alone (pip install 'rlctl[lora]')"
        yield Change(ORDER["lora"], ({"model.lora.rank": LORA_RANK},), other)


Taken = Sequence[tuple[Change, Mapping[str, Any]]]
"""Changes, each with the alternative that was chosen."""


class _Layouts:
    """Lays memory out again under other settings."""

    def __init__(self, settings: Settings, plan: Plan) -> None:
        self.settings, self.plan = settings, plan

    def places(self, taken: Taken) -> Sequence[Place] | None:
        """Every place; None where settings or backend refuse the combination."""
        plan = self.plan
        try:
            changed = with_settings(self.settings, _joined(taken))
            work = replace(work_of(changed), lengths=plan.work.lengths)
            return places_of(changed, plan.machine, plan.facts, model=plan.model, work=work)[0]
        except (RlctlError, ValueError):
            return None

    def cure(self, taken: Taken) -> Cure | None:
        """The cure, if it is one."""
        places = self.places(taken)
        if places is None or fits(places) is False:
            return None
        return Cure(_joined(taken), [change.costs for change, _ in taken], places)

    def excess(self, taken: Taken) -> float:
        """Bytes by which places are too small; infinite where the combination is refused, or cannot be."""
        places = self.places(taken)
        if places is None or any(place.complaint for place in places):
            return math.inf
        return sum(max(0.0, p.peak_bytes - p.capacity_bytes) for p in places if p.capacity_bytes is not None)


def _joined(taken: Taken) -> dict[str, Any]:
    return {name: value for _, assignments in taken for name, value in assignments.items()}


def _combined(changes: Sequence[Change], layouts: _Layouts) -> Cure | None:
    """Change upon change, each where it helps most, until it fits; then without those that were not needed."""
    taken: Taken = []
    for change in changes:
        options = [[*kept, (change, one)] for kept in _without_one(taken) for one in change.assignments]
        best = min([taken, *options], key=layouts.excess)
        taken = best
        if layouts.cure(taken) is not None:
            return _mildest(_needed(taken, layouts), layouts)
    return None


def _without_one(taken: Taken) -> Iterator[Taken]:
    """All of them, and all but each: a later change may exclude an earlier one, as LoRA does ZeRO 3."""
    yield taken
    for left_out in taken:
        yield [one for one in taken if one is not left_out]


def _needed(taken: Taken, layouts: _Layouts) -> Taken:
    for one in reversed(taken):
        fewer = [other for other in taken if other is not one]
        if layouts.cure(fewer) is not None:
            taken = fewer
    return taken


def _mildest(taken: Taken, layouts: _Layouts) -> Cure | None:
    """The combination with each change as mild as the others allow."""
    chosen = list(taken)
    for place, (change, _) in enumerate(taken):
        for assignments in change.assignments:
            milder = [*chosen[:place], (change, assignments), *chosen[place + 1 :]]
            if layouts.cure(milder) is not None:
                chosen = milder
                break
    return layouts.cure(chosen)


def with_settings(settings: Settings, assignments: Mapping[str, Any]) -> Settings:
    """The settings with others laid over them. Raises ValueError where they are refused."""
    tree: dict[str, Any] = settings.model_dump()
    for dotted, value in assignments.items():
        *blocks, last = dotted.split(".")
        block = tree
        for name in blocks:
            block = block.setdefault(name, {})
        block[last] = value
    return type(settings)(**tree)
