"""`rlctl runs samples`: the completions that a run has kept: the worst, the best, of a step, with a failed reward."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlctl.runs.lines import Record, number, read_lines
from rlctl.runs.printable import printable, shortened

Order = Literal["worst", "best"]

MOST_CHARACTERS = 2_000
"""Of a question and of a completion that are printed, unless all is asked for."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One kept completion. `reward` is None where a reward failed; texts are as the model and the data wrote them."""

    step: int | None
    problem: str
    source: str
    question: str
    answer: str
    completion: str
    reward: float | None
    scores: Mapping[str, float | None]
    failures: tuple[str, ...]
    note: str
    finish_reason: str
    tokens: int | None
    turns: tuple[tuple[str, str], ...]
    """Who wrote what, in order, where an environment answered."""
    record: Record
    """The whole line."""

    @property
    def marked(self) -> str:
        """The completion; where an environment answered, its lines begin with `> `."""
        bars = {"environment": "> "}
        lines = [f"{bars.get(writer, '')}{each}" for writer, text in self.turns for each in text.split("\n")]
        return "\n".join(lines) if lines else self.completion


def read_samples(folder: Path) -> tuple[list[Sample], tuple[str, ...]]:
    """(what samples.jsonl holds, what is wrong with it)."""
    lines = read_lines(folder / "samples.jsonl")
    return [_sample(record) for record in lines.records], lines.complaints


def _sample(record: Record) -> Sample:
    scores, failures = record.get("scores"), record.get("failures")
    step, tokens = record.get("step"), record.get("tokens")
    return Sample(
        step=step if isinstance(step, int) else None,
        problem=_text(record, "problem"),
        source=_text(record, "source"),
        question=_text(record, "question"),
        answer=_text(record, "answer"),
        completion=_text(record, "completion"),
        reward=number(record.get("reward")),
        scores={str(name): number(value) for name, value in scores.items()} if isinstance(scores, dict) else {},
        failures=tuple(map(str, failures)) if isinstance(failures, list) else (),
        note=_text(record, "note"),
        finish_reason=_text(record, "finish_reason"),
        tokens=tokens if isinstance(tokens, int) else None,
        turns=_turns(record.get("turns")),
        record=record,
    )


def _turns(value: Any) -> tuple[tuple[str, str], ...]:
    listed = value if isinstance(value, list) else []
    return tuple((_text(turn, "writer"), _text(turn, "text")) for turn in listed if isinstance(turn, dict))


def _text(record: Record, key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else "" if value is None else str(value)


def chosen(
    samples: Sequence[Sample],
    *,
    step: int | None = None,
    problem: str | None = None,
    failed: bool = False,
    order: Order | None = None,
) -> list[Sample]:
    """Those of a step, of problems by id or glob, whose reward failed; by their reward, those without one last."""
    some = [each for each in samples if step is None or each.step == step]
    if problem is not None:
        some = [each for each in some if each.problem == problem or fnmatch.fnmatchcase(each.problem, problem)]
    if failed:
        some = [each for each in some if each.reward is None]
    if order is None:
        return some
    sign = 1 if order == "worst" else -1
    return sorted(some, key=lambda each: (each.reward is None, sign * (each.reward or 0.0)))


def render(samples: Sequence[Sample], *, total: int, first: int, full: bool) -> str:
    """The samples as text; `first` counts those passed over, `total` all that were found."""
    most = None if full else MOST_CHARACTERS
    parts = [_one(each, most=most) for each in samples]
    left = total - first - len(samples)
    place = f"{first + 1:,} to {first + len(samples):,} of {total:,} samples"
    more = f"; --offset {first + len(samples)} shows the next" if left > 0 else ""
    return "\n".join([*parts, f"{place}{more}"])


def _one(sample: Sample, *, most: int | None) -> str:
    head = [f"step {'?' if sample.step is None else sample.step}", printable(sample.problem, one_line=True)]
    head += [reward_words(sample), *score_words(sample)]
    head += [f"{sample.tokens} tokens"] if sample.tokens is not None else []
    head += ["cut at the length limit"] if sample.finish_reason == "length" else []
    lines = [f"--- {'  '.join(head)}"]
    lines += [f"note: {printable(sample.note, one_line=True)}"] if sample.note else []
    lines += [_block("question", sample.question, most), _block("answer", sample.answer, most)]
    return "\n".join([*lines, _completion(sample, most), ""])


def _completion(sample: Sample, most: int | None) -> str:
    """What was written after the prompt; where an environment answered, its lines have a mark of their own."""
    if not sample.turns:
        return _block("completion", sample.completion, most)
    room = most
    blocks = ["completion (| the policy, > the environment):"]
    for writer, text in sample.turns:
        if room is not None and room <= 0:
            blocks.append("  ... further turns: --full shows all")
            break
        bar = ">" if writer == "environment" else "|"
        cut = text if room is None else shortened(text, room)
        blocks += [f"  {bar} {each}" for each in printable(cut).split("\n")]
        room = None if room is None else room - len(text)
    return "\n".join(blocks)


def reward_words(sample: Sample) -> str:
    if sample.reward is not None:
        return f"reward {sample.reward:.4g}"
    kinds = f" ({', '.join(printable(kind, one_line=True) for kind in sample.failures)})" if sample.failures else ""
    return f"no reward{kinds}"


def score_words(sample: Sample) -> list[str]:
    return [
        f"{printable(name, one_line=True)} {'n/a' if value is None else format(value, '.4g')}"
        for name, value in sample.scores.items()
    ]


def _block(name: str, text: str, most: int | None) -> str:
    """The text with a bar before each line, so that nothing in it can be taken for a line of ours."""
    cut = text if most is None else shortened(text, most)
    lines = printable(cut).split("\n")
    return "\n".join([f"{name}:", *(f"  | {line}" for line in lines)])


def records(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """The lines as they were written, for JSON; numbers that are not finite become null."""
    return [clean(dict(each.record)) for each in samples]


def clean(value: Any) -> Any:
    """The value with null for each number that strict JSON has not."""
    if isinstance(value, dict):
        return {str(key): clean(each) for key, each in value.items()}
    if isinstance(value, list):
        return [clean(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
