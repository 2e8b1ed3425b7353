"""How long and how many: prompt lengths after the chat template, answers, sources, and plots of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from rlctl.data_filters import identity
from rlctl.errors import BackendUnavailable, ConfigError
from rlctl.tokenizer import Tokenizer
from rlctl.types import Problem

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of prompts, template included. `over` is the share longer than the limit: 0..1."""

    lengths: Sequence[int]
    limit: int

    @property
    def over(self) -> float:
        return sum(length > self.limit for length in self.lengths) / len(self.lengths)

    def percentile(self, percent: int) -> float:
        """By linear interpolation between the two nearest."""
        if len(self.lengths) < 2:
            return float(self.lengths[0])
        return quantiles(self.lengths, n=100, method="inclusive")[percent - 1]

    def record(self) -> dict[str, float]:
        return {
            "min": min(self.lengths),
            **{f"p{percent}": self.percentile(percent) for percent in PERCENTILES},
            "max": max(self.lengths),
            "mean": sum(self.lengths) / len(self.lengths),
            "limit": self.limit,
            "share_over_limit": self.over,
        }


@dataclass(frozen=True, slots=True)
class SplitStats:
    """What one split holds; `measured` of its problems were looked at."""

    name: str
    num_problems: int
    measured: int
    lengths: Lengths
    too_long: Sequence[tuple[str, int]]
    """Problems over the limit with their tokens, the longest first."""
    sources: dict[str, int]
    distinct_questions: int
    distinct_answers: int

    def record(self) -> dict[str, object]:
        return {
            "split": self.name,
            "num_problems": self.num_problems,
            "measured": self.measured,
            "prompt_tokens": self.lengths.record(),
            "too_long": dict(self.too_long),
            "sources": self.sources,
            "distinct_questions": self.distinct_questions,
            "distinct_answers": self.distinct_answers,
        }

    def lines(self) -> list[str]:
        only = f" (the first {self.measured:,} measured)" if self.measured < self.num_problems else ""
        sources = ", ".join(f"{name} {count:,}" for name, count in self.sources.items())
        found = self.lengths.record()
        tokens = ", ".join(f"{name} {found[name]:.0f}" for name in ("min", "p50", "p90", "p95", "p99", "max"))
        return [
            f"{self.name}: {self.num_problems:,} problems{only}: {sources}",
            f"  prompt tokens, template included: {tokens}",
            f"  over data.max_prompt_length = {self.lengths.limit}: {100 * self.lengths.over:.2f} %{self._longest()}",
            f"  {self.distinct_questions:,} distinct questions, {self.distinct_answers:,} distinct answers",
        ]

    def _longest(self) -> str:
        named = ", ".join(f"{name} ({length})" for name, length in self.too_long[:3])
        return f": {named}" + (", ..." if len(self.too_long) > 3 else "") if named else ""


def stats_of(
    name: str, problems: Sequence[Problem], *, num_problems: int, tokenizer: Tokenizer, limit: int
) -> SplitStats:
    """The statistics of `problems`, the first ones of `num_problems`."""
    lengths = [len(tokenizer.encode(problem)) for problem in problems]
    over = [(problem.id, length) for problem, length in zip(problems, lengths, strict=True) if length > limit]
    return SplitStats(
        name,
        num_problems,
        len(problems),
        Lengths(lengths, limit),
        sorted(over, key=lambda pair: -pair[1]),
        dict(Counter(problem.source for problem in problems).most_common()),
        len({identity(problem) for problem in problems}),
        len({problem.answer.rpartition("####")[2].strip() for problem in problems}),
    )


def plot(stats: Sequence[SplitStats], path: Path) -> None:
    """Histograms of prompt lengths as a PNG. Raises BackendUnavailable without matplotlib, ConfigError on a path."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            "--plot needs matplotlib, which is not installed.", hint="pip install 'rlctl[plots]'"
        ) from error
    # A Figure of its own needs no display and no global state.
    figure = Figure(figsize=(7, 2.6 * len(stats)), layout="constrained")
    for axes, one in zip(figure.subplots(len(stats), squeeze=False)[:, 0], stats, strict=True):
        axes.hist(one.lengths.lengths, bins=60, color="0.4")
        axes.axvline(one.lengths.limit, color="tab:red", label=f"limit {one.lengths.limit}")
        axes.axvline(one.lengths.percentile(95), color="tab:blue", linestyle="--", label="95th percentile")
        axes.set(title=f"{one.name}: {one.measured:,} prompts", xlabel="tokens, template included", ylabel="prompts")
        axes.legend()
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror or error}.") from error
