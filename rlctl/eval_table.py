"""An evaluation as a person reads it, as a table for a pull request, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from rlctl.eval_report import Evaluation, Paired
from rlctl.runfiles import strict
from rlctl.statistics import RESAMPLES, Interval

Style = Literal["text", "json", "markdown"]


def render(
    evaluations: Sequence[Evaluation], pairs: Sequence[Paired], *, style: Style, notes: Sequence[str] = ()
) -> str:
    """`notes` are those on the comparison."""
    if style == "json":
        return json.dumps(as_record(evaluations, pairs, notes=notes), indent=2, allow_nan=False)
    lines: list[str] = []
    for evaluation in evaluations:
        lines += _markdown(evaluation) if style == "markdown" else _text(evaluation)
        lines += [f"note: {note}" for note in evaluation.notes]
    for pair in pairs:
        lines += ["", *_paired(pair)]
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines)


def as_record(
    evaluations: Sequence[Evaluation], pairs: Sequence[Paired], *, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Everything but single scores, which are in samples.jsonl."""
    return {
        "evaluations": [
            {
                "model": one.model,
                "num_problems": one.num_problems,
                "wanted_problems": one.wanted_problems,
                "n": one.n,
                "sampling": dict(one.sampling),
                "metrics": strict(one.metrics),
                "intervals": {name: asdict(value) for name, value in one.intervals.items()},
                "notes": list(one.notes),
            }
            for one in evaluations
        ],
        "comparisons": [
            {
                "source": pair.source,
                "only_in_one": pair.only_in_one,
                "why": pair.comparison.why,
                **asdict(pair.comparison),
            }
            for pair in pairs
        ],
        "notes": list(notes),
    }


def _text(evaluation: Evaluation) -> list[str]:
    if not evaluation.intervals:
        return [f"{evaluation.model}: no problem was graded"]
    width = max(map(len, evaluation.intervals))
    rows = [f"  {name:{width}}  {percent(value)}" for name, value in evaluation.intervals.items()]
    return [_heading(evaluation), *rows, f"  {_legend(evaluation)}"]


def _markdown(evaluation: Evaluation) -> list[str]:
    if not evaluation.intervals:
        return [f"{evaluation.model}: no problem was graded"]
    rows = [f"| `{name}` | {percent(value)} |" for name, value in evaluation.intervals.items()]
    return [
        f"**{_heading(evaluation)}**",
        "",
        "| metric | value [95 % interval] |",
        "|---|---|",
        *rows,
        "",
        _legend(evaluation),
    ]


def _heading(evaluation: Evaluation) -> str:
    problems = "1 problem" if evaluation.num_problems == 1 else f"{evaluation.num_problems:,} problems"
    if not evaluation.whole:
        problems = f"the first {evaluation.num_problems:,} of {evaluation.wanted_problems:,} problems"
    samples = "1 sample each" if evaluation.n == 1 else f"{evaluation.n} samples each"
    return f"{evaluation.model}: {problems}, {samples}, {evaluation.metrics['timing_s/testing']:.1f} s"


def _legend(evaluation: Evaluation) -> str:
    failed = sum(value for name, value in evaluation.metrics.items() if name.endswith("/failed"))
    cut = [v for name, v in evaluation.metrics.items() if name.endswith("response_length/clip_ratio") and v is not None]
    parts = [f"95 % intervals: BCa bootstrap over problems, {RESAMPLES:,} resamples"]
    if any(one.method == "Clopper-Pearson" for one in evaluation.intervals.values()):
        parts[0] += ", or exact binomial (Clopper-Pearson) where none or all are solved"
    parts += [f"{failed} completions whose reward failed are left out"] if failed else []
    parts += [f"{100 * max(cut):.1f} % of the completions were cut at the length limit"] if cut and max(cut) else []
    return "; ".join(parts)


def percent(interval: Interval) -> str:
    value = f"{100 * interval.value:.2f} %"
    if interval.low is None or interval.high is None:
        return value
    return f"{value}  [{100 * interval.low:.2f}, {100 * interval.high:.2f}]"


def _paired(pair: Paired) -> list[str]:
    found, difference = pair.comparison, pair.comparison.difference
    ends = ""
    if difference.low is not None and difference.high is not None:
        ends = f"  [{100 * difference.low:+.2f}, {100 * difference.high:+.2f}]"
    rest = found.num_problems - found.better - found.worse
    counts = f"{found.better} better, {found.worse} worse, {rest} the same"
    moved = f"B - A {100 * difference.value:+.2f} points{ends} on {found.num_problems:,} problems: {counts}"
    lines = [
        f"{pair.source}: {moved}",
        f"  p = {_p(found.p_value)} ({found.test}, two-sided: {found.why})",
    ]
    if pair.only_in_one:
        lines.append(f"  {pair.only_in_one} problems that only one of them has are left out")
    return lines


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 1e-4 else f"{value:.1e}"
