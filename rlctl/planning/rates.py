"""Seconds of a step, from rates that were measured: by an earlier run, by a short one now, or of an MFU that was given.

A rate is never assumed. What a source does not tell is None, with the reason, and so is the sum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rlctl import regular
from rlctl.errors import ConfigError
from rlctl.perf import datasheet_peak
from rlctl.planning.device import LARGEST, Machine
from rlctl.planning.work import Flops, Work
from rlctl.runs.lines import number
from rlctl.runs.printable import printable
from rlctl.runs.reading import read_run

WARM_UP_STEPS = 1
"""Steps of a run that are left out, when it has more: the first one compiles kernels and fills caches."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What was measured; None where it was not."""

    sampled_tokens_per_s: float | None
    """Over all devices."""
    update_flops_per_s: float | None
    """Over all devices."""
    other_seconds: float | None
    """Of a step that neither samples nor computes: rewards, weight syncs."""
    source: str
    mean_response: float | None = None
    mean_prompt: float | None = None


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of each phase of a step, None where no rate is known, with the reasons."""

    phases: Mapping[str, float | None]
    reasons: Sequence[str]

    @property
    def total(self) -> float | None:
        known = [seconds for seconds in self.phases.values() if seconds is not None]
        return sum(known) if len(known) == len(self.phases) else None


def of_run(folder: Path) -> Rates:
    """The rates of a run, medians over its steps. Raises ConfigError for a folder without steps."""
    run = read_run(folder)
    steps = [record for record in run.steps if number(record.get("timing_s/step")) is not None]
    if not steps:
        why = "".join(f"\n{printable(text, one_line=True)}" for text in run.complaints)
        raise ConfigError(
            f"--run {folder}: no step is in its metrics.jsonl.{why}", hint="let the run make two steps at least."
        )
    return of_steps(steps, source=f"run {printable(folder.name, one_line=True)}")


def other_circumstances(folder: Path, *, model: str, machine: Machine) -> list[str]:
    """What a run was measured on, where that is not what the plan is for: its rates may not hold."""
    told = [
        (_said(folder / "config.resolved.json", "settings", "model", "path"), model, "the model"),
        (_said(folder / "machine.json", "device"), machine.name, "the device"),
    ]
    return [
        f"the rates of --run are those of {what} {printable(there, one_line=True)}, and the plan is for {here}"
        for there, here, what in told
        if there is not None and here not in there.replace(" ", "").split("|") and not _same_device(there, here)
    ]


def _same_device(there: str, here: str) -> bool:
    return there.lower() == here.lower() or (datasheet_peak(there) or 0) == (datasheet_peak(here) or 1)


def _said(file: Path, *keys: str) -> str | None:
    try:
        value = json.loads(regular.read_bytes(file))
        for key in keys:
            value = value[key]
    except (OSError, ValueError, KeyError, TypeError):
        # An older run, or one that was tidied up: there is nothing to compare with.
        return None
    return value if isinstance(value, str) else None


def of_steps(steps: Sequence[Mapping[str, Any]], *, source: str) -> Rates:
    """The rates of some steps' metrics."""
    counted = steps[WARM_UP_STEPS:] or steps
    told = f"{source}, median of {len(counted)} step{'s' * (len(counted) > 1)}"
    return Rates(
        sampled_tokens_per_s=_median(step.get("perf/sampled_tokens_per_s") for step in counted),
        update_flops_per_s=_median(_per_second(step) for step in counted),
        other_seconds=_median(_other(step) for step in counted),
        source=told,
        mean_response=_median(step.get("response_length/mean") for step in counted),
        mean_prompt=_median(_prompt(step) for step in counted),
    )


def _per_second(step: Mapping[str, Any]) -> float | None:
    flops, seconds = _positive(step, "perf/flops/actor"), _positive(step, "timing_s/update_actor")
    return None if flops is None or seconds is None else flops / seconds


def _other(step: Mapping[str, Any]) -> float | None:
    parts = [step.get(f"timing_s/{phase}") for phase in ("reward", "update_weights")]
    known = [seconds for part in parts if (seconds := number(part)) is not None]
    return sum(known) if known else None


def _prompt(step: Mapping[str, Any]) -> float | None:
    """Mean prompt: all tokens of the step less those sampled, over its samples."""
    rate, seconds = _positive(step, "perf/tokens_per_s"), _positive(step, "timing_s/step")
    sampled_rate, sampling = _positive(step, "perf/sampled_tokens_per_s"), _positive(step, "timing_s/gen")
    mean = _positive(step, "response_length/mean")
    if rate is None or seconds is None or sampled_rate is None or sampling is None or mean is None:
        return None
    samples = sampled_rate * sampling / mean
    return max(0.0, rate * seconds / samples - mean) if samples else None


def _positive(step: Mapping[str, Any], name: str) -> float | None:
    value = number(step.get(name))
    return value if value is not None and value > 0 else None


def _median(values: Any) -> float | None:
    known = [one for value in values if (one := number(value)) is not None]
    return median(known) if known else None


def given(machine: Machine, *, devices: int, mfu: float | None, sampled_tokens_per_s: float | None) -> Rates:
    """Rates of what the user gives: an MFU of the update against the peak of so many devices, and tokens a second."""
    if sampled_tokens_per_s is not None and not sampled_tokens_per_s < LARGEST:
        raise ConfigError(f"--sampled-tokens-per-s = {sampled_tokens_per_s:g} must be below {LARGEST:g}.")
    if mfu is not None and machine.peak_flops is None:
        raise ConfigError(f"--mfu {mfu:g} needs a peak, which is not known: {machine.peak_source}.")
    flops = None if mfu is None or machine.peak_flops is None else mfu * machine.peak_flops * devices
    told = [f"MFU {mfu:g} of {machine.peak_source}" if mfu is not None else ""]
    told.append(f"{sampled_tokens_per_s:g} sampled tokens/s as given" if sampled_tokens_per_s is not None else "")
    return Rates(sampled_tokens_per_s, flops, None, "; ".join(filter(None, told)) or "no rate was given")


def seconds_of(work: Work, flops: Flops | None, rates: Rates) -> Seconds:
    """Seconds of one step at those rates. Scoring goes at the update's FLOP/s, whose layers it computes."""
    reasons = []
    sample = _ratio(work.response_tokens, rates.sampled_tokens_per_s)
    if sample is None:
        reasons.append("sampling: no rate of sampled tokens; --run, --measure or --sampled-tokens-per-s tells one")
    if flops is None:
        reasons.append("update: no FLOP formula for this model's family")
    elif rates.update_flops_per_s is None:
        reasons.append("update: no rate of FLOP/s; --run, --measure or --mfu tells one")
    phases = {"sample": sample, "update": _ratio(None if flops is None else flops.update, rates.update_flops_per_s)}
    if work.scored:
        phases["score"] = _ratio(None if flops is None else flops.score, rates.update_flops_per_s)
    if rates.other_seconds is not None:
        phases["rewards and weight sync"] = rates.other_seconds
    return Seconds(phases, reasons)


def _ratio(amount: float | None, rate: float | None) -> float | None:
    return amount / rate if amount is not None and rate else None
