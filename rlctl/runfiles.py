"""The files of a run: `runs/NAME/` with config.resolved.json, machine.json, metrics.jsonl, samples.jsonl, checkpoints/,
and ended.json once it has ended.

A run that goes on keeps the lines of the steps that its checkpoint holds and drops later ones, which come again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlctl import __version__, durable, regular
from rlctl.errors import CheckpointError, ConfigError, RlctlError
from rlctl.logs import Log, strict
from rlctl.types import BackendInfo, Episode, Rollout

__all__ = ["RunFiles", "run_folder", "sample_record", "spread", "strict"]

CONFIG = "config.resolved.json"
ENDED = "ended.json"
STEP = "training/global_step"


class RunFiles:
    """One run's folder. Raises ConfigError when it holds a run that is not to go on, or cannot be written.

    `after` is the step whose checkpoint the run goes on from, -1 to begin a run again, None for a new one; with `owed`,
    its own line of metrics is still to come. `records` are the metrics of the steps until there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, Any],
        after: int | None = None,
        owed: bool = False,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.config = {"rlctl_version": __version__, **config}
        self.metrics = Log(folder / "metrics.jsonl", step_key=STEP, note=note)
        self.samples = Log(folder / "samples.jsonl", step_key="step", note=note)
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []
        """Who else gets each record of metrics, once it is written; none may raise or wait."""
        # A run that ended before its first step left nothing to lose.
        if after is None and self.metrics.path.exists() and self.metrics.path.stat().st_size:
            raise ConfigError(
                f"{folder} already holds a run, and run.resume = never.",
                hint="choose another --name, move the folder away, or let it go on: rlctl resume.",
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.config, indent=2, allow_nan=False)
            durable.replace(folder / CONFIG, (text + "\n").encode())
            for log in (self.metrics, self.samples):
                log.path.touch()
            kept = -1 if after is None else after
            self.records = self.metrics.cut_after(kept - 1 if owed else kept)
            self.samples.cut_after(kept)
        except regular.NotAFile as error:
            name = Path(error.filename).name
            raise ConfigError(
                f"the run's folder {folder} cannot be used: {name}: {error.strerror}.",
                hint=f"remove {name}, or choose another --name.",
            ) from error
        except OSError as error:
            raise ConfigError(
                f"the run's folder {folder} cannot be written: {error.strerror or error}.", hint="set run.dir."
            ) from error

    def write_machine(self, info: BackendInfo) -> None:
        """What the run runs on, as `start` found it: the peak and its source are half of every MFU."""
        durable.replace(self.folder / "machine.json", (json.dumps(asdict(info), indent=2) + "\n").encode())

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        self.metrics.write(metrics)
        for listener in self.listeners:
            listener(metrics)

    def write_samples(self, step: int, rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            self.samples.write({"step": step, **sample_record(rollout)})

    def flush(self) -> None:
        """Bring all lines to the disk, before a checkpoint counts on them. Raises CheckpointError."""
        try:
            self.metrics.flush()
            self.samples.flush()
        except OSError as error:
            raise CheckpointError(
                f"the logs in {self.folder} cannot be written: {error.strerror or error}.",
                hint="free some space; earlier checkpoints are untouched.",
            ) from error


def sample_record(rollout: Rollout) -> dict[str, Any]:
    return {
        "problem": rollout.problem.id,
        "source": rollout.problem.source or "data",
        "question": rollout.problem.question,
        "answer": rollout.problem.answer,
        "completion": rollout.text,
        "reward": rollout.reward,
        "scores": dict(rollout.scores),
        "failures": list(rollout.failures),
        "note": rollout.note,
        "finish_reason": rollout.completion.finish_reason,
        "tokens": len(rollout.completion.token_ids),
        "prompt_tokens": len(rollout.prompt.token_ids),
        "policy_version": rollout.policy_version,
        **_episode_record(rollout.episode),
    }


def _episode_record(episode: Episode | None) -> dict[str, Any]:
    """The turns of a rollout: who wrote what, in order."""
    if episode is None:
        return {}
    return {
        "turns": [{"writer": writer, "text": text} for writer, text in episode.parts],
        "ending": episode.ending,
        "tool_calls": episode.tool_calls,
        "tool_errors": episode.tool_errors,
    }


@contextlib.contextmanager
def told_ending(folder: Path) -> Iterator[Callable[[int], None]]:
    """Leave in `ended.json` how the run ended; gives what takes its exit code. A process that is killed leaves nothing.

    An error is written by its message, never by its repr or traceback, which may hold what is secret.
    """
    file = folder / ENDED
    file.unlink(missing_ok=True)
    ending: dict[str, Any] = {"exit_code": 1, "why": ""}
    try:
        yield lambda code: ending.update(exit_code=code)
    except RlctlError as error:
        ending = {"exit_code": error.exit_code, "why": f"{type(error).__name__}: {error.message}"}
        raise
    except BaseException as error:
        ending["why"] = type(error).__name__
        raise
    finally:
        with contextlib.suppress(OSError):  # on a full disk the run has ended all the same
            durable.replace(file, (json.dumps({**ending, "time": time.time()}) + "\n").encode())


def spread(rollouts: Sequence[Rollout], count: int) -> Sequence[Rollout]:
    """`count` rollouts spread evenly over a step's groups."""
    stride = max(1, len(rollouts) // count) if count else 1
    return rollouts[::stride][:count]


def run_folder(parent: str, name: str | None, *, preset: str | None) -> Path:
    """Where a run of that name goes, as an absolute path; without a name, a folder that no other run has."""
    folder = Path(os.path.expanduser(parent)).absolute()  # noqa: PTH111  # an unknown ~user stays as it is
    return folder / name if name else free_folder(folder, new_name(preset))


def new_name(preset: str | None) -> str:
    """A name no other run has, from the preset and the time."""
    return f"{preset or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"


def free_folder(parent: Path, name: str) -> Path:
    """`parent/name`, or with a number behind where two runs start in one second."""
    folder, number = parent / name, 2
    while folder.exists():
        folder, number = parent / f"{name}-{number}", number + 1
    return folder
