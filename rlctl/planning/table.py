"""A plan as a person reads it, in as many columns as there are, as Markdown to paste, or as JSON for a script."""

from __future__ import annotations

import json
import math
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from rlctl.planning.fitting import Cure, fits
from rlctl.planning.memory import GIB, PHASES, RUNNING, Place, Role
from rlctl.planning.plan import Plan
from rlctl.planning.rates import Rates, Seconds
from rlctl.prepare import step_line

Style = Literal["table", "markdown", "json"]

SPARE = 0.1
"""Share of a device below which the room that is left deserves a word: what is not counted may take it."""

NOT_COUNTED = "not counted: the process with its libraries (on a GPU about half a GiB of context), and fragments"


def render(
    plan: Plan, *, rates: Rates, seconds: Seconds, cure: Cure | None, notes: Sequence[str], style: Style, width: int
) -> str:
    """All of a plan. `cure` is what helps where it does not fit."""
    if style == "json":
        return json.dumps(_document(plan, rates, seconds, cure, notes), indent=2, allow_nan=False)
    table = _markdown if style == "markdown" else _aligned
    lines = [*_heading(plan), "", *_work_lines(plan), *_time_lines(plan, rates, seconds), ""]
    for place in plan.places:
        lines += [_place_line(place), *table(place, width), *_outcome(place), ""]
    lines += [f"memory: n/a: {plan.places_note}", ""] if not plan.places else [NOT_COUNTED, ""]
    lines += [f"note: {note}" for note in notes]
    lines += _verdict(plan, cure)
    return "\n".join(_wrapped(lines, width) if style == "table" else lines)


def _wrapped(lines: Sequence[str], width: int) -> Iterator[str]:
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        yield from (
            textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)
            if len(line) > width
            else [line]
        )


def _heading(plan: Plan) -> Iterator[str]:
    m, facts = plan.machine, plan.facts
    yield f"model: {plan.model}, {facts.family}, {facts.parameters / 1e6:,.4g} M parameters, {facts.layers} layers"
    memory = "n/a" if m.memory_bytes is None else f"{m.memory_bytes / GIB:.4g} GiB"
    peak = "n/a" if m.peak_flops is None else f"{m.peak_flops / 1e12:.4g} TFLOP/s"
    count = f"{m.num_devices} x " if m.num_devices else ""
    yield f"machine: {count}{m.name}, memory {memory} ({m.memory_source}), peak {peak} ({m.peak_source})"


def _work_lines(plan: Plan) -> Iterator[str]:
    w, flops = plan.work, plan.flops
    yield step_line(
        w.prompts, samples=w.samples, updates=w.updates, max_tokens=w.samples * (w.longest_prompt + w.longest_response)
    )
    lengths = f"prompts of {w.lengths.prompt:,.4g}, completions of {w.lengths.response:,.4g} ({w.lengths.source})"
    trained = f"{w.passes * w.unique_tokens:,.0f} trained on, each prompt once"
    yield f"tokens: {w.response_tokens:,.0f} sampled, {trained}; {lengths}"
    if flops is None:
        yield f"FLOPs: n/a: no formula for the family {plan.facts.family}"
    else:
        score = f", score {flops.score / 1e12:,.4g}" if flops.score else ""
        yield f"TFLOP: sample {flops.sample / 1e12:,.4g}{score}, update {flops.update / 1e12:,.4g}"


def _time_lines(plan: Plan, rates: Rates, seconds: Seconds) -> Iterator[str]:
    parts = [f"{name} {'n/a' if value is None else f'{value:,.3g} s'}" for name, value in seconds.phases.items()]
    total = "n/a" if seconds.total is None else f"{seconds.total:,.3g} s"
    yield f"a step takes: {total} ({', '.join(parts)}); rates: {rates.source}"
    for reason in seconds.reasons:
        yield f"  n/a {reason}"


def _place_line(place: Place) -> str:
    return f"memory of {place.name}" + (f", each of {place.count}" if place.count > 1 else "") + ":"


def _unit(place: Place) -> tuple[float, str]:
    return (GIB, "GiB") if place.peak_bytes >= GIB else (float(2**20), "MiB")


def _rows(place: Place) -> Iterator[tuple[str, str, str, str]]:
    unit, _ = _unit(place)
    for role in place.roles:
        if role.num_bytes != 0:
            size = "n/a" if role.num_bytes is None else f"{role.num_bytes / unit:,.2f}"
            yield role.name, size, _when(role), role.formula


def _when(role: Role) -> str:
    held = [phase for phase in PHASES if phase in role.phases]
    missing = [phase for phase in RUNNING if phase not in held]
    if not missing:
        return "always"
    return f"not {missing[0]}" if len(missing) == 1 else " ".join(held)


def _aligned(place: Place, width: int) -> Iterator[str]:
    lines = [("role", _unit(place)[1], "held in", "how it comes about"), *_rows(place)]
    wide = [max(len(line[i]) for line in lines) for i in range(2)]
    wide.append(min(max(len(line[2]) for line in lines), 18))
    left = 2 + sum(wide) + 6
    for name, size, when, formula in lines:
        whens = textwrap.wrap(when, wide[2]) or [""]
        formulas = textwrap.wrap(formula, max(width - left, 16)) or [""]
        for i in range(max(len(whens), len(formulas))):
            first = f"{name.ljust(wide[0])}  {size.rjust(wide[1])}" if i == 0 else " " * (wide[0] + 2 + wide[1])
            held, told = (cells[i] if i < len(cells) else "" for cells in (whens, formulas))
            yield f"  {first}  {held.ljust(wide[2])}  {told}".rstrip()


def _markdown(place: Place, width: int) -> Iterator[str]:
    yield from ("", f"| role | {_unit(place)[1]} | held in | how it comes about |", "|---|---:|---|---|")
    for row in _rows(place):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _outcome(place: Place) -> Iterator[str]:
    unit, name = _unit(place)
    phases = [f"{phase} {_size(place.held(phase) / unit)}" for phase in PHASES if place.held(phase)]
    yield f"  by phase: {', '.join(phases)} {name}"
    yield f"  {outcome(place)}"


def _size(value: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def outcome(place: Place) -> str:
    """Peak, capacity, and whether the one fits into the other."""
    unit, name = _unit(place)
    least = "at least " if place.unknown else ""
    peak = f"peak {least}{_size(place.peak_bytes / unit)} {name}, in {place.peak_phase}"
    if place.complaint:
        return f"{peak}: does not fit: {place.complaint}"
    if place.capacity_bytes is None:
        return f"{peak}; fits n/a: {place.capacity_source}"
    free = 1 - place.peak_bytes / place.capacity_bytes
    told = {
        True: f"fits, {math.floor(100 * free)}% free",
        False: "does not fit",
        None: "fits n/a, since not all is known",
    }[place.fits]
    spare = "; what is not counted may take that" if place.fits and free < SPARE else ""
    return f"{peak}, of {_size(place.capacity_bytes / unit)} {name}: {told}{spare}"


def _verdict(plan: Plan, cure: Cure | None) -> Iterator[str]:
    verdict = fits(plan.places)
    if verdict is not False:
        unsaid = [place.name for place in plan.places if place.capacity_bytes is None]
        told = f"; of {' and '.join(unsaid)} the size was not said" if unsaid else ""
        yield f"verdict: {'fits' if verdict else 'whether it fits is not known'}{told}"
        return
    yield "verdict: does not fit"
    if cure is None:
        yield "no change that rlctl knows makes it fit: take a smaller model, shorter completions, or larger devices"
        return
    yield f"the cheapest change: {' '.join(assigned(cure.assignments))}"
    for cost in dict.fromkeys(cure.costs):
        yield f"  costs: {cost}"
    for place in cure.places:
        yield f"  then {place.name}: {outcome(place)}"


def assigned(assignments: Mapping[str, Any]) -> list[str]:
    """As they are typed in a shell."""
    texts = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in assignments.items()]
    return [f"--set {shlex.quote(text)}" for text in texts]


def _document(plan: Plan, rates: Rates, seconds: Seconds, cure: Cure | None, notes: Sequence[str]) -> dict[str, Any]:
    work = plan.work
    return {
        "fits": fits(plan.places),
        "model": {"path": plan.model, "family": plan.facts.family, "parameters": plan.facts.parameters},
        "machine": asdict(plan.machine),
        "step": {
            "prompts": work.prompts,
            "samples": work.samples,
            "updates": work.updates,
            "sampled_tokens": work.response_tokens,
            "trained_tokens": work.passes * work.unique_tokens,
            "lengths": asdict(work.lengths),
            "flops": None if plan.flops is None else asdict(plan.flops),
            "seconds": {**seconds.phases, "total": seconds.total},
            "seconds_unknown": list(seconds.reasons),
            "rates": asdict(rates),
        },
        "places": [_place_document(place) for place in plan.places],
        "places_note": plan.places_note,
        "notes": list(notes),
        "cheapest_change": None
        if cure is None
        else {
            "set": dict(cure.assignments),
            "costs": list(dict.fromkeys(cure.costs)),
            "places": [_place_document(place) for place in cure.places],
        },
    }


def _place_document(place: Place) -> dict[str, Any]:
    return {
        "name": place.name,
        "count": place.count,
        "capacity_bytes": place.capacity_bytes,
        "capacity_source": place.capacity_source,
        "fits": place.fits,
        "complaint": place.complaint,
        "peak_bytes": place.peak_bytes,
        "peak_phase": place.peak_phase,
        "bytes_by_phase": {phase: place.held(phase) for phase in PHASES},
        "roles": [asdict(role) for role in place.roles],
    }
