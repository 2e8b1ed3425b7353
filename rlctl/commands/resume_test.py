"""rlctl resume-test: kill a run again and again, and prove that it ends as the run that was not killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.commands import options

if TYPE_CHECKING:  # loaded only by a command that runs
    from rlctl.config import Loaded
    from rlctl.proving.comparing import Comparison
    from rlctl.proving.kills import Trial

STEPS = 8


def resume_test(
    kills: Annotated[int, typer.Option(min=1, help="How often a run is killed.")] = 20,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the run; each is saved.")] = STEPS,
    seed: Annotated[int, typer.Option(help="Decides the moments of the kills.")] = 0,
    preset: options.Preset = "gsm8k-grpo",
    variant: options.Variant = None,
    config: options.Config = None,
    backend: options.BackendName = None,
    assignments: options.Set = None,
    keep: Annotated[
        Path | None, typer.Option(help="Folder for the runs and their output; without it they are removed.")
    ] = None,
) -> None:
    """Run straight, then killed with SIGKILL at random moments and resumed, and compare the two.

    Reads what a run reads. Writes its runs into --keep, or into a temporary folder that is removed.

    Every metric but times, every sample and every byte of weights and optimizer must be the same on a cpu. Another
    device is run straight twice: the killed run may be no further from one of these than twice what lies between them.
    Exit code 0 when this holds, 4 when it does not.

    Example: rlctl resume-test --variant embedded --kills 5 --steps 4
    """
    import contextlib
    import tempfile

    settings: dict[str, tuple[str, Any]] = {
        "backend": ("--backend", backend),
        "trainer.steps": ("--steps", steps),
        "trainer.save_freq": ("rlctl resume-test", 1),
        "trainer.eval_freq": ("rlctl resume-test", max(1, steps // 2)),
        "run.resume": ("rlctl resume-test", "auto"),
        "tracking.trackers": ("rlctl resume-test", []),
    }
    loaded = options.load_settings(
        preset=preset, variant=variant, config=config, assignments=assignments, options=settings
    )
    with contextlib.ExitStack() as stack:
        parent = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlctl-resume-test-")))
        _make(parent)
        typed = _typed(preset=preset, variant=variant, config=config, assignments=assignments, settings=settings)
        raise typer.Exit(_prove(loaded, parent.absolute(), typed, kills=kills, seed=seed))


def _make(folder: Path) -> None:
    """Make the folder of the runs. Raises ConfigError when it holds any: they would only be gone on with."""
    from rlctl.errors import ConfigError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--keep {folder} cannot be made: {error.strerror}.") from error
    if any(folder.iterdir()):
        raise ConfigError(f"--keep {folder} is not empty.", hint="name a new folder.")


def _typed(**sources: Any) -> list[str]:
    """The arguments of `rlctl train` that give the same settings."""
    arguments = ["train", "--preset", sources["preset"]]
    for name in ("variant", "config"):
        arguments += [f"--{name}", sources[name]] if sources[name] is not None else []
    for assignment in sources["assignments"] or ():
        arguments += ["--set", assignment]
    for name, (_, value) in sources["settings"].items():
        arguments += ["--set", f"{name}={value}"] if value is not None else []
    return arguments


def _prove(loaded: Loaded, parent: Path, typed: list[str], *, kills: int, seed: int) -> int:
    from rlctl.display import say, tell
    from rlctl.proving import lives
    from rlctl.proving.comparing import compare
    from rlctl.proving.kills import Trial, kill_again_and_again

    tell(loaded.variant_line())
    forked = loaded.settings.backend == "local"
    if forked:
        lives.warm_up()
    steps = loaded.settings.trainer.steps or STEPS
    trial = Trial([*typed, "--set", f"run.dir={parent}"], parent, steps, forked)
    pace = trial.straight("straight")
    say(f"straight: {steps} steps in {pace.whole_s:.1f} s")
    bound = _bound(trial, parent)
    runs = kill_again_and_again(trial, kills=kills, seed=seed, pace=pace, tell=say)
    moments = [moment for run in runs for moment in run.moments]
    where = ", ".join(f"{moments.count(moment)} {moment}" for moment in dict.fromkeys(sorted(moments)))
    say(f"killed: {len(moments)} times ({where}), {sum(run.seconds for run in runs):.1f} s")
    comparisons = [compare(parent / "straight", run.folder) for run in runs]
    for comparison in comparisons:
        say("\n".join(_lines(comparison, bound)))
    return 0 if all(_holds(comparison, bound) for comparison in comparisons) else 4


def _bound(trial: Trial, parent: Path) -> float | None:
    """How far two weights may lie apart; None where not a bit may differ."""
    import json

    from rlctl.display import say
    from rlctl.proving.comparing import compare

    if json.loads((parent / "straight" / "machine.json").read_text())["device"] == "cpu":
        return None
    trial.straight("straight-again")
    again = compare(parent / "straight", parent / "straight-again")
    if again.same:
        say("straight again: the same bit for bit, so the killed run must be too")
        return None
    say(f"straight again: weights differ by up to {again.distance or 0.0:.3g}; the killed run may by twice that")
    return 2 * (again.distance or 0.0)


def _holds(comparison: Comparison, bound: float | None) -> bool:
    if comparison.same:
        return True
    return bound is not None and comparison.distance is not None and comparison.distance <= bound


def _lines(comparison: Comparison, bound: float | None) -> list[str]:
    what = (
        f"compared: {comparison.steps} steps of {comparison.metrics} metrics ({comparison.updates} updates taken), "
        f"{comparison.samples} samples, {comparison.weight_bytes:,} bytes of weights and optimizer"
    )
    if comparison.same:
        return [what, "the killed run is the straight run, bit for bit"]
    apart = "no weight differs" if comparison.distance is None else f"weights differ by up to {comparison.distance:g}"
    more = len(comparison.differences) - 10
    rest = [f"and {more} more"] if more > 0 else []
    verdict = "within the bound" if _holds(comparison, bound) else "NOT the same"
    return [what, *comparison.differences[:10], *rest, f"the killed run is {verdict}: {apart}"]
