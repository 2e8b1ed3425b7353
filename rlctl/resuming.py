"""Going on where a run was: which checkpoint, and what the settings that changed since then mean.

A changed setting is safe (the numbers of the steps to come are the ones they would have been), changes the trajectory
(the run goes on, and is another run from here), or is impossible (the checkpoint is of no use with it).
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rlctl import data
from rlctl.checkpoints import ahead, shelf
from rlctl.checkpoints.shelf import Held
from rlctl.checkpoints.state import CONFIG, RunState, read_config, read_state, versions
from rlctl.config import dump
from rlctl.errors import CheckpointError, ConfigError
from rlctl.logs import Log
from rlctl.prepare import Prepared
from rlctl.runfiles import RunFiles
from rlctl.settings_tree import paths
from rlctl.tokenizer import model_json

Verdict = Literal["safe", "changes the trajectory", "impossible"]

SAFE = (
    "run.*", "eval.*", "data.eval_*", "trainer.eval_freq", "trainer.save_*", "trainer.keep_*", "trainer.on_save_error",
    "trainer.on_non_finite", "trainer.max_rollbacks", "trainer.max_skipped_updates", "trainer.steps", "trainer.epochs",
    "remote_backend.*_timeout_s", "remote_backend.*.reconnect_s", "remote_backend.*.attach", "remote_backend.*.queue",
    "serve.*", "tracking.*",
)  # fmt: skip
"""What decides no number of a training step. `trainer.steps` and `epochs` are judged by the steps they make."""
ROUNDING = ("backend", "local.*", "remote_backend.*", "trainer.max_tokens_per_device")
"""What changes numbers by rounding only."""
IMPOSSIBLE = ("model.lora.rank", "model.lora.target_modules")

SHAPE = (
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size",
)  # fmt: skip
"""What two models have in common whose weights can stand for each other, by their names in config.json."""


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between the run that was saved and the one that is to go on."""

    name: str
    before: object
    after: object
    verdict: Verdict
    why: str = ""

    def line(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return f"{self.name}: {self.before!r} -> {self.after!r}: {self.verdict}{why}"


@dataclass(frozen=True, slots=True)
class Resume:
    """From where a run goes on, and what is other than it was."""

    held: Held
    state: RunState
    changes: Sequence[Change]

    @property
    def kl_coef(self) -> float | None:
        """The steered weight of KL to go on with; None where nothing steered it, or the settings begin with another."""
        return None if any(change.name == "algorithm.kl_coef" for change in self.changes) else self.state.kl_coef

    def record(self) -> dict[str, Any]:
        """For resumes.jsonl."""
        return {
            "from_step": self.state.step,
            "checkpoint": self.held.folder.name,
            "versions": versions(),
            "changes": [change.line() for change in self.changes],
        }

    def lines(self) -> list[str]:
        return [
            f"resumes after step {self.state.step} of {self.state.total_steps} from {self.held.folder.name}",
            *(f"changed since then: {change.line()}" for change in self.changes),
        ]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does in its folder: go on (`resume`), begin again (`anew`), or begin; `lines` tell of it."""

    resume: Resume | None
    anew: bool
    lines: Sequence[str]

    def open(self, folder: Path, *, config: Mapping[str, Any], note: Callable[[str], None]) -> RunFiles:
        """The run's files, their logs as the plan needs them. Raises ConfigError when they cannot be written."""
        if self.resume is None:
            return RunFiles(folder, config=config, after=-1 if self.anew else None, note=note)
        state = self.resume.state
        files = RunFiles(folder, config=config, after=state.step, owed=state.owed is not None, note=note)
        Log(folder / "resumes.jsonl", step_key="from_step", note=note).write(self.resume.record())
        return files


def plan(folder: Path, prepared: Prepared) -> Plan:
    """Look at what the folder holds, clear up what a killed run left, and decide as `run.resume` says.

    Raises CheckpointError when there are checkpoints and none is good, ConfigError where the run cannot go on or must.
    """
    mode, checkpoints = prepared.settings.run.resume, folder / "checkpoints"
    if mode == "never":
        held, complaints = shelf.list_held(checkpoints)
        if held or complaints:
            raise ConfigError(
                f"{folder} already holds a run, and run.resume = never.",
                hint="choose another --name, move the folder away, or let it go on: rlctl resume.",
            )
        return Plan(None, False, [])
    lines = [f"note: removed {name}, which a killed run left behind" for name in shelf.tidy(checkpoints)]
    resume, complaints = find(checkpoints, prepared)
    lines += [f"note: passed over: {complaint}" for complaint in complaints]
    if resume is not None:
        return Plan(resume, False, [*lines, *resume.lines()])
    if mode == "must":
        raise ConfigError(f"{folder} has no checkpoint to go on from, and run.resume = must.", hint="use auto.")
    metrics = folder / "metrics.jsonl"
    began = metrics.exists() and metrics.stat().st_size > 0
    if began:
        lines.append("note: the run was stopped before its first checkpoint, and begins again")
    return Plan(None, began, lines)


def find(checkpoints: Path, prepared: Prepared) -> tuple[Resume | None, list[str]]:
    """(from where the run goes on, None without a checkpoint; what is wrong with those that were passed over).

    Raises CheckpointError when there are checkpoints and none is good, ConfigError when a change makes it impossible.
    """
    found = shelf.latest(checkpoints)
    if found.held is None:
        if found.complaints:
            raise CheckpointError(
                "\n".join([f"no checkpoint in {checkpoints} is good.", *found.complaints]),
                hint="to begin again, move the run's folder away or choose another --name.",
            )
        return None, []
    state = replace(read_state(found.held.folder), ahead=ahead.read(found.held.folder))
    changes = list(_changes(found.held, state, prepared))
    impossible = [change.line() for change in changes if change.verdict == "impossible"]
    if impossible:
        raise ConfigError(
            "\n".join([f"the run cannot go on from {found.held.folder} with these settings.", *impossible]),
            hint="set them back, or begin a new run under another --name.",
        )
    return Resume(found.held, state, changes), list(found.complaints)


def _changes(held: Held, state: RunState, prepared: Prepared) -> Iterator[Change]:
    saved = read_config(held.folder / CONFIG)
    before, after = saved.get("settings", {}), dump(prepared.settings)
    for name in _differing(before, after):
        if name == "run.dir" and _is_one_folder(before, after):
            continue
        change = Change(name, _at(before, name), _at(after, name), *_judged(name))
        yield _judged_model(held, prepared, change) if name.startswith("model.path") else change
    yield from _steps(state, prepared)
    yield from _sources(state, prepared)
    then = saved.get("versions", {})
    for name, version in versions().items():
        if then.get(name, version) != version:
            yield Change(f"version of {name}", then[name], version, "changes the trajectory", "perhaps, by rounding")


def _is_one_folder(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether run.dir is the same place in other words: `rlctl resume` names it in full."""
    return Path(str(_at(before, "run.dir"))).absolute() == Path(str(_at(after, "run.dir"))).absolute()


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = sorted({".".join(keys) for tree in (before, after) for keys in paths(tree)})
    # A table that is empty on one side and filled on the other is told by its settings.
    leaves = [name for name in names if not any(other.startswith(name + ".") for other in names)]
    return [name for name in leaves if _at(before, name) != _at(after, name)]


def _at(tree: Mapping[str, Any], name: str) -> object:
    value: Any = tree
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _judged(name: str) -> tuple[Verdict, str]:
    if any(fnmatch.fnmatch(name, pattern) for pattern in SAFE):
        return "safe", ""
    if any(fnmatch.fnmatch(name, pattern) for pattern in IMPOSSIBLE):
        return "impossible", "the checkpoint holds other weights"
    rounding = any(fnmatch.fnmatch(name, pattern) for pattern in ROUNDING)
    return "changes the trajectory", "by rounding" if rounding else ""


def _judged_model(held: Held, prepared: Prepared, change: Change) -> Change:
    """Another path is the same model in another place, as far as shapes tell; the weights are the checkpoint's."""
    then, now = model_json(str(held.folder), "config.json"), model_json(prepared.model, "config.json")
    other = [key for key in SHAPE if then.get(key) != now.get(key)]
    if other:
        why = f"{other[0]} is {then.get(other[0])} in the checkpoint and {now.get(other[0])} there"
        return Change(change.name, change.before, change.after, "impossible", why)
    why = "the weights are the checkpoint's, a reference model is the new one"
    return Change(change.name, change.before, change.after, "changes the trajectory", why)


def _steps(state: RunState, prepared: Prepared) -> Iterator[Change]:
    trainer, total = prepared.settings.trainer, prepared.geometry.steps
    if total == state.total_steps:
        return
    name = "steps of the run"
    if total < state.step:
        why = f"step {state.step} is done already"
        yield Change(name, state.total_steps, total, "impossible", why)
    elif trainer.lr_schedule == "constant" and trainer.warmup_ratio == 0:
        yield Change(name, state.total_steps, total, "safe")
    else:
        yield Change(name, state.total_steps, total, "changes the trajectory", "the learning rate follows from it")


def _sources(state: RunState, prepared: Prepared) -> Iterator[Change]:
    now = fingerprints(prepared)
    if sorted(now) != sorted(state.problems):
        yield Change(
            "sources of the data", sorted(state.problems), sorted(now), "impossible", "where they stand is not known"
        )
        return
    for name, fingerprint in now.items():
        if fingerprint != state.problems[name]:
            before, why = state.problems[name], "its problems or their order are not the ones that were trained on"
            yield Change(f"problems of {name}", before, fingerprint, "changes the trajectory", why)


def fingerprints(prepared: Prepared) -> dict[str, str]:
    """What the problems of each source are: their number, and a digest of them where they are not made on the spot."""
    return {pool.name: _fingerprint(pool.problems) for pool in prepared.pools}


def _fingerprint(problems: Sequence[Any]) -> str:
    if isinstance(problems, data.LazyProblems):
        return str(len(problems))
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(repr((problem.id, problem.question, problem.answer)).encode())
    return f"{len(problems)} {digest.hexdigest()[:16]}"
