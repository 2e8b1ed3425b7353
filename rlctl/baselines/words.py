"""A judgement as the lines that people read and paste, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlctl.baselines.estimating import LEVEL, trimmed_mean
from rlctl.baselines.file import WARMUP, Baseline
from rlctl.baselines.judging import EFFECT, SMALLEST, Finding, Judgement
from rlctl.baselines.record import Record

VERDICTS: Mapping[str, str] = {
    "pass": "pass",
    "changed": "changed: it no longer does what the baseline did",
    "regression": "regression",
    "inconclusive": "inconclusive",
}


def comparison_line(judgement: Judgement, *, num_runs: int) -> str:
    """The verdict in one line, with whatever it is about."""
    if judgement.differences:
        reasons = "; ".join(difference.line() for difference in judgement.differences)
        return f"against the baseline: inconclusive, since nothing can be compared ({reasons})"
    told = [finding for finding in judgement.findings if finding.outcome == judgement.outcome]
    if judgement.outcome == "pass":
        told = [finding for finding in judgement.findings if finding.value is not None]
    figures = "; ".join(f"{finding.metric} {finding.why}" for finding in told)
    runs = "1 run" if num_runs == 1 else f"{num_runs} runs"
    return f"against the baseline, {runs}: {VERDICTS[judgement.outcome]}" + (f" - {figures}" if figures else "")


def lines(judgement: Judgement) -> list[str]:
    """Every finding, and what the figures mean."""
    width = max((len(finding.metric) for finding in judgement.findings), default=0)
    listed = [f"{finding.outcome:<12}  {finding.metric:<{width}}  {finding.why}" for finding in judgement.findings]
    listed += [f"differs       {difference.line()}" for difference in judgement.differences]
    listed += [f"note          {note}" for note in judgement.notes]
    if judgement.outcome == "inconclusive" and judgement.findings:
        listed.append(f"note          {MORE}")
    return [*listed, LEGEND] if judgement.findings else listed


MORE = "more --runs, a baseline of more runs, or a quieter machine narrow the intervals"
LEGEND = (
    f"times are own seconds over those of reference work beside them, with {100 * LEVEL:.0f} % intervals; + is slower, "
    f"{100 * SMALLEST:.0f} % the least that counts, and to pass {100 * EFFECT:.0f} % must be out of the question"
)


def tree(judgement: Judgement, *, num_runs: int) -> dict[str, Any]:
    return {
        "outcome": judgement.outcome,
        "line": comparison_line(judgement, num_runs=num_runs),
        "findings": [_finding(finding) for finding in judgement.findings],
        "differences": [{"name": d.name, "baseline": d.before, "now": d.now} for d in judgement.differences],
        "notes": list(judgement.notes),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in Finding.__slots__}


def written_line(name: str, baseline: Baseline) -> str:
    return (
        f"baseline: {len(baseline.runs)} runs of {baseline.num_steps} steps written to {name}; the first {WARMUP} of "
        "each are its warm-up"
    )


def runs_lines(runs: Sequence[Record]) -> list[str]:
    """One line a run: what its steps after the warm-up come to."""
    return [f"run {number}: {_run_words(run)}" for number, run in enumerate(runs, start=1)]


def _run_words(run: Record) -> str:
    steps = run.steps[WARMUP:] or run.steps
    words = []
    for name, unit, scale in (("mfu", "% MFU", 100.0), ("tokens_per_s", "tok/s", 1.0), ("score", "score", 1.0)):
        values = [value for step in steps if (value := getattr(step, name)) is not None]
        if values:
            words.append(f"{scale * trimmed_mean(values).value:.4g} {unit}")
    return f"{len(run.steps)} steps, " + ", ".join(words or ["no figures"])
