"""What a parameter can be given, for its `autocompletion`: presets, variants, backends, runs, rewards, settings.

Each takes what was typed of the word and yields (value, meaning). A value that ends in `=` or `.` is gone on with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:  # what a completion needs is imported when a key is pressed: every command imports this module
    from rlctl.completion.settings import Setting

Pair = tuple[str, str]


def presets(incomplete: str) -> Iterator[Pair]:
    from rlctl.presets import available, read

    for name, path in available().items():
        yield name, read(path).summary


def variants(context: typer.Context, incomplete: str) -> Iterator[Pair]:
    """Of the preset that is named earlier in the line, or is the command's default."""
    from rlctl.presets import find

    for variant in find(_preset(context)).variants:
        yield variant.name, variant.summary


def _preset(context: typer.Context) -> str:
    typed = context.params.get("preset")
    defaults = [one.default for one in context.command.params if one.name == "preset"]
    return str(typed or (defaults and defaults[0]) or "gsm8k-grpo")


def backends(incomplete: str) -> Iterator[Pair]:
    from rlctl.backends import registry

    for name in registry.names():
        yield name, ""


def rewards(incomplete: str) -> Iterator[Pair]:
    from rlctl.rewards.base import BUILT_IN

    yield from ((name, "") for name in sorted(BUILT_IN))


def runs(context: typer.Context, incomplete: str) -> Iterator[Pair]:
    """Names of the runs in run.dir."""
    yield from ((folder.name, "") for folder in _run_folders(context))


def runs_and_latest(context: typer.Context, incomplete: str) -> Iterator[Pair]:
    """The same for what also takes the run that wrote last."""
    there = list(runs(context, incomplete))
    yield from there
    if there:
        yield ("latest", "the run that wrote last")


def peers(incomplete: str) -> Iterator[Pair]:
    """Tools whose configs can be imported."""
    yield from (("trl", "TRL"), ("verl", "verl"), ("openrlhf", "OpenRLHF"))


def algorithms(setting: str) -> Iterator[Pair]:
    """Advantage estimators or policy losses, each with its formula."""
    from rlctl.algorithms import estimators, losses

    if setting == estimators.registry.setting:
        yield from ((entry.name, entry.formula) for entry in estimators.registry.registered())
    else:
        yield from ((entry.name, entry.formula) for entry in losses.registry.registered())


def environments(incomplete: str) -> Iterator[Pair]:
    from rlctl.environments import registry

    yield from ((name, "") for name in ("null", *registry.names()))


def run_folders(context: typer.Context, incomplete: str) -> Iterator[Pair]:
    """Their folders, for what takes any model."""
    yield from ((str(folder), "") for folder in _run_folders(context))


def _run_folders(context: typer.Context) -> list[Path]:
    # The name of the file is runfiles.CONFIG, which would import the whole of a run for it.
    return sorted(path.parent for path in _run_dir(context).glob("*/config.resolved.json"))


def _run_dir(context: typer.Context) -> Path:
    """run.dir as far as it is told without loading settings: --dir, --set, the environment, --config, the default."""
    if context.params.get("folder"):
        return Path(str(context.params["folder"])).expanduser()
    for assignment in reversed(context.params.get("assignments") or ()):
        key, _, value = assignment.partition("=")
        if key.strip() == "run.dir":
            return Path(value).expanduser()
    in_file = _run_dir_of_file(context.params.get("config"))
    return Path(os.environ.get("RLCTL_RUN__DIR") or in_file or "runs").expanduser()


def _run_dir_of_file(config: Any) -> str | None:
    import tomllib

    if not config:
        return None
    table = tomllib.loads(Path(str(config)).expanduser().read_text(encoding="utf-8")).get("run", {})
    return table.get("dir") if isinstance(table, dict) else None


def assignments(incomplete: str) -> Iterator[Pair]:
    """`trainer.`, then `trainer.lr=`, then the values of a setting that has some."""
    key, equals, _ = incomplete.partition("=")
    settings = _settings(key)
    if equals:
        for value, meaning in _values(key, settings.get(key)):
            yield f"{key}={value}", meaning
        return
    above = key[: key.rfind(".") + 1]
    for name, setting in settings.items():
        if name.startswith(above):
            rest, dot, _ = name[len(above) :].partition(".")
            yield (f"{above}{rest}.", f"[{above}{rest}]") if dot else (f"{name}=", setting.meaning)


def _settings(key: str) -> dict[str, Setting]:
    """All of them; those of the backends outside this process are read only when their table is meant."""
    from rlctl.completion.settings import Setting, backend_tree, tree

    table = "remote_backend."
    if not key.startswith(table):
        return tree() | {table: Setting()}
    from rlctl.backends import registry

    outside = [name for name in registry.names() if name != "local"]
    return {dotted: one for name in outside for dotted, one in backend_tree(name, registry.get(name).settings).items()}


def _values(key: str, setting: Setting | None) -> Iterator[Pair]:
    if key == "backend":
        yield from backends("")
    elif key == "reward.functions":
        yield from rewards("")
    elif key in ("algorithm.adv_estimator", "algorithm.policy_loss"):
        yield from algorithms(key)
    elif key == "environment.name":
        yield from environments("")
    elif setting is not None:
        yield from ((choice, setting.meaning) for choice in setting.choices)
