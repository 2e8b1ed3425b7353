"""What a person sees of a run: a live view on a terminal (rlctl/live), one plain line a step everywhere else.

Steps and the result go to stdout; notes go to stderr. Numbers have units; percent only on screen.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlctl.algorithms.words import algorithm_line
from rlctl.outcome import Outcome, Reporter
from rlctl.prepare import Prepared
from rlctl.printable import printable
from rlctl.settings import Settings
from rlctl.types import BackendInfo

Metrics = Mapping[str, Any]

LOSS_NOTE = (
    "note: on-policy with one update a step the loss is about 0 by construction, though its gradient is not; "
    "watch signal and grad norm"
)
NEAR_ZERO = 0.1
"""Of a loss, in units of advantages, which are of size 1 where they are scaled."""


def say(text: str) -> None:
    """A line of the result, on stdout, at once: a pipe that is watched should not wait for a full buffer.

    When nobody reads any more, a run goes on without: its files have everything.
    """
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        tell("note: nobody reads this output any more; the run goes on")


def tell(text: str) -> None:
    """A line beside the result, on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class Column:
    """One figure of a step: its heading, its metric, and how it is written."""

    def __init__(self, heading: str, key: str, write: Callable[[float], str]) -> None:
        self.heading, self.key, self.write = heading, key, write

    def text(self, metrics: Metrics) -> str:
        value = metrics.get(self.key)
        return "n/a" if value is None else self.write(value)


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def signed(value: float) -> str:
    """Four decimals, without a minus before a zero."""
    text = f"{value:.4f}"
    return "0.0000" if text == "-0.0000" else text


COLUMNS = (
    Column("step", "training/global_step", lambda v: f"{v:.0f}"),
    Column("score", "score/mean", lambda v: f"{v:.3f}"),
    Column("signal", "reward/frac_zero_signal", lambda v: f"{100 * (1 - v):.0f} %"),
    Column("loss", "actor/loss", signed),
    Column("grad norm", "actor/grad_norm", lambda v: f"{v:.3f}"),
    Column("entropy", "actor/entropy", lambda v: f"{v:.3f}"),
    Column("length", "response_length/mean", lambda v: f"{v:.0f}"),
    Column("MFU", "perf/mfu/actor", percent),
    Column("TFLOP/s", "perf/tflops_per_device", lambda v: f"{v:.3f}" if v < 10 else f"{v:.0f}"),
    Column("tok/s", "perf/tokens_per_s", lambda v: f"{v:,.0f}"),
    Column("s", "timing_s/step", lambda v: f"{v:.2f}"),
)


class NotesReporter(Reporter):
    """Only what a run has to say beside its steps."""

    def started(self, prepared: Prepared, info: BackendInfo) -> None:
        for line in start_lines(prepared, info):
            tell(line)

    def note(self, text: str) -> None:
        tell(printable(text))


class PlainReporter(Reporter):
    """One line a step."""

    def __init__(self) -> None:
        self.total_steps = 0
        self.loss_is_explained = False

    def started(self, prepared: Prepared, info: BackendInfo) -> None:
        self.total_steps = prepared.geometry.steps
        for line in start_lines(prepared, info):
            self.note(line)

    def step(self, metrics: Metrics) -> None:
        words = [f"step {metrics['training/global_step']}/{self.total_steps}"]
        words += [f"{column.heading} {column.text(metrics)}" for column in COLUMNS[1:-1]]
        say("  ".join([*words, f"{COLUMNS[-1].text(metrics)} s"]))
        self.explain_loss_once(metrics)

    def explain_loss_once(self, metrics: Metrics) -> None:
        if not self.loss_is_explained and (notes := loss_notes([metrics])):
            self.loss_is_explained = True
            self.note(*notes)

    def evaluation(self, step: int, metrics: Metrics) -> None:
        for key, value in core_scores(metrics).items():
            say(f"step {step}: {key} {value:.3f}")

    def note(self, text: str) -> None:
        tell(printable(text))


def loss_notes(steps: Sequence[Metrics]) -> list[str]:
    """The note on a loss of about 0, where there is such a loss and the note is true: else a fault would look right.

    Advantages that are not centred (remax, a plugin's) have another loss, and so have old samples and later updates.
    """
    return [LOSS_NOTE] if any(_is_zero_by_construction(metrics) for metrics in steps) else []


def _is_zero_by_construction(metrics: Metrics) -> bool:
    loss = metrics.get("actor/loss")
    on_policy = metrics.get("actor/updates") == 1 and not metrics.get("training/staleness_max")
    return on_policy and loss is not None and abs(loss) < NEAR_ZERO


def start_lines(prepared: Prepared, info: BackendInfo) -> list[str]:
    """What is about to run: notes, model and machine, effective sampling and algorithm, geometry."""
    notes = [f"note: {text}" for text in prepared.notes]
    machine = f"{info.dtype} on {info.num_devices} x {info.device}"
    return [
        *notes,
        f"model {prepared.model}, {info.num_parameters / 1e6:.4g} M parameters, {machine}; {peak_words(info)}",
        sampling_line(prepared.settings),
        algorithm_line(prepared.settings),
        *prepared.geometry.lines(),
    ]


def peak_words(info: BackendInfo) -> str:
    if info.peak_flops is None:
        return f"MFU n/a: {info.peak_source}"
    return f"peak {info.peak_flops / 1e12:.3g} TFLOP/s ({info.peak_source})"


def sampling_line(settings: Settings) -> str:
    """The sampling that is really done: nothing is taken from the model's own generation settings."""
    rollout, environment = settings.rollout, settings.environment
    turns = f", in at most {environment.max_turns} turns with {environment.name}" if environment.name else ""
    top_k = "off" if rollout.top_k == -1 else str(rollout.top_k)
    return (
        f"sampling: temperature {rollout.temperature:g}, top_p {rollout.top_p:g}, top_k {top_k}, "
        f"min_p {rollout.min_p:g}, repetition penalty off, at most {rollout.max_response_length} tokens{turns}"
    )


def core_scores(metrics: Metrics) -> dict[str, float]:
    """What to show of an evaluation: `val-core/.../acc/mean@N`, pass@k, and means of what else rewards measured.

    Beside such other means stands the reward's, which they explain.
    """
    others = [key for key in metrics if key.startswith("val-aux/") and _MEAN.search(key)]
    kinds = ("/acc/", "/pass@", "/reward/") if others else ("/acc/", "/pass@")
    core = [key for key in metrics if key.startswith("val-core/") and any(kind in key for kind in kinds)]
    return {key: metrics[key] for key in (*core, *others) if metrics[key] is not None}


_MEAN = re.compile(r"/mean@\d+$")


def summary_lines(outcome: Outcome, prepared: Prepared) -> list[str]:
    """What became of the run: scores before and after, and where the model is."""
    lines = []
    temperature = prepared.settings.eval.temperature
    apart = "not trained on" if not prepared.num_shared_questions else "partly trained on"
    if len(outcome.evaluations) > 1:
        (_, first), (last_step, last) = outcome.evaluations[0], outcome.evaluations[-1]
        for key, after in core_scores(last).items():
            before = core_scores(first).get(key)
            if before is not None:
                lines.append(
                    f"{key}: {before:.3f} before, {after:.3f} after {last_step} steps ({after - before:+.3f}; "
                    f"{len(prepared.eval_problems)} problems {apart}, temperature {temperature:g})"
                )
    scores = [m["score/mean"] for m in outcome.metrics if m["score/mean"] is not None]
    if len(scores) > 1:
        window = min(5, len(scores) - 1)
        before, after = scores[0], sum(scores[-window:]) / window
        over = f"mean of the last {window} steps" if window > 1 else "last step"
        lines.append(f"score/mean while training: {before:.3f} at step 1, {after:.3f} {over} ({after - before:+.3f})")
    taken, skipped = (sum(m[f"actor/{kind}"] for m in outcome.metrics) for kind in ("updates", "skipped_updates"))
    if skipped:
        lines.append(f"{skipped} of {taken + skipped} updates were skipped: their gradient was not finite")
    if outcome.metrics and not taken:
        marked = any(reward.name == "gsm8k" for reward in prepared.rewards.rewards)
        masked = (
            ", or those that had were truncated and masked"
            if prepared.settings.algorithm.mask_truncated_completions
            else ""
        )
        cures = "reward.gsm8k.allow_last_number or " if marked else ""
        lines.append("no update was taken, so the model is the one that was loaded")
        if not skipped:
            lines[-1] += (
                f": no group had different rewards{masked}. "
                f"Look at samples.jsonl; {cures}a larger rollout.max_response_length may help"
            )
    if outcome.checkpoint is not None:
        lines.append(f"model: {shown_path(outcome.checkpoint)}")
    return lines


def shown_path(path: Path) -> str:
    """The path as a person would type it from here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


@contextlib.contextmanager
def reporting(*, quiet: bool, title: str, history: Sequence[Metrics]) -> Iterator[Reporter]:
    """The reporter for stdout as it is: a live view on a terminal that can move its cursor, else plain lines.

    `history` are the metrics of the steps that were done before, which the curves of the view begin with.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name from the data may not fit the terminal's encoding
    if quiet or not sys.stdout.isatty():
        yield Reporter() if quiet else PlainReporter()
        return
    from rich.console import Console

    console = Console()
    if not console.is_interactive:  # TERM=dumb
        yield PlainReporter()
        return
    from rlctl.live.reporter import LiveReporter

    with LiveReporter(console, title=title, history=history) as live:
        yield live
