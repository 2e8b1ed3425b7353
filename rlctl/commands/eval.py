"""rlctl eval: how good a model is, with intervals, and whether another one is better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlctl.commands import options
from rlctl.completion import names

if TYPE_CHECKING:  # loaded only by a command that runs
    from collections.abc import Mapping
    from pathlib import Path

    from rlctl.eval_models import Target
    from rlctl.eval_report import Evaluation
    from rlctl.eval_run import PreparedEvaluation
    from rlctl.eval_saved import Saved
    from rlctl.settings import Settings

PRESET = "gsm8k-grpo"

EVERYTHING = 2**31 - 1
"""Rows of an evaluation file that are taken when no --limit is given."""


def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A run, a checkpoint, or whatever model.path takes; without it, the preset's model.",
            autocompletion=names.run_folders,
        ),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            help="Two models or earlier evaluations: test whether B differs from A.",
            autocompletion=names.run_folders,
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A file, all of whose rows are taken, or a source; else the evaluation data.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Problems at most, chosen by the seed.")] = None,
    n: Annotated[int | None, typer.Option(help="Completions for each problem (eval.n).")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 is greedy (eval.temperature).")
    ] = None,
    out: Annotated[str | None, typer.Option(help="New folder for the result; else evals/NAME-TIME.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            "-p",
            help=f"Prompts, rewards and data; a run's own, else those of {PRESET}.",
            autocompletion=names.presets,
        ),
    ] = None,
    variant: options.Variant = None,
    config: options.Config = None,
    backend: options.BackendName = None,
    seed: Annotated[int | None, typer.Option(help="Seed of samples, intervals and tests.")] = None,
    assignments: options.Set = None,
    format: Annotated[  # noqa: A002  # the option's name
        Literal["text", "json", "markdown"], typer.Option("--format", "-f", help="How to print the result.")
    ] = "text",
) -> None:
    """Sample and grade a model: mean@N, pass@k and maj@N with 95 % intervals.

    Settings are those of the model's run, or of a preset without its variants. Ctrl-C ends with what is there.

    Reads the model and the evaluation data. Writes evals/NAME-TIME (or --out): samples.jsonl and evaluation.json.
    Exit codes: 0 done; 2 model, data or settings cannot be used; 130 stopped early, with a result of what was finished.

    Example: rlctl eval embedded:tiny --data generated:word-problems --limit 64
    """
    from rlctl.errors import ConfigError
    from rlctl.eval_models import Target, target

    if compare is not None and (option := next((name for name in compare if name.startswith("-")), None)):
        raise ConfigError(
            f"--compare wants two names, and {option} is an option.", hint="--compare A B, then the rest."
        )
    if compare is not None and model is not None:
        raise ConfigError(f"{model} and --compare were both given.", hint="leave out the model, or --compare.")
    run_dir = options.run_dir(assignments)
    names = compare or ((model,) if model is not None else ())
    targets = [target(name, run_dir=run_dir) for name in names] or [Target("model", None)]
    typed = {
        **_data_options(data),
        "backend": ("--backend", backend),
        "eval.n": ("--n", n),
        "eval.temperature": ("--temperature", temperature),
        "seed": ("--seed", seed),
    }
    sources = {"preset": preset, "variant": variant, "config": config, "assignments": assignments}
    settings = [_settings(one, targets, typed, sources) for one in targets]
    raise typer.Exit(_evaluate_all(targets, settings, limit=limit, out=out, style=format))


def _data_options(data: str | None) -> dict[str, tuple[str, Any]]:
    """Where the problems come from when --data says so, in place of whatever the settings say."""
    from pathlib import Path

    from rlctl import sources
    from rlctl.data_files import READERS

    if data is None:
        return {}
    is_file = Path(data).suffix.lower() in READERS or Path(data).exists()
    where: dict[str, Any] = {"sources": [], "eval_path": data if is_file else None, "path": None}
    if not is_file:
        where["source"] = data
    if is_file or sources.is_on_hub(data):
        where["eval_size"] = EVERYTHING
    return {f"data.{key}": ("--data", value) for key, value in where.items()}


def _settings(one: Target, targets: list[Target], typed: dict[str, Any], sources: dict[str, Any]) -> Settings | None:
    """The settings a target is evaluated with; None for samples that are there already.

    Models that are compared share the settings of the first run among them: other prompts would be another question.
    """
    from rlctl.config import load
    from rlctl.eval_models import preset_layer

    if one.samples is not None:
        return None
    lent = next((target.lent for target in targets if target.lent is not None), None)
    named = sources["preset"] is not None or sources["variant"] is not None
    base = None if named else lent or preset_layer(PRESET)
    kept = {key: value for key, value in typed.items() if value[1] is not None or key.startswith("data.")}
    if one.model is not None:
        kept["model.path"] = ("MODEL", one.model)
    preset = sources["preset"] or (PRESET if sources["variant"] is not None else None)
    return load(
        preset=preset,
        variant=sources["variant"],
        config=sources["config"],
        assignments=sources["assignments"] or (),
        options=kept,
        base=base,
    ).settings


def _evaluate_all(
    targets: list[Target], settings: list[Settings | None], *, limit: int | None, out: str | None, style: Any
) -> int:
    """Evaluate and compare, and return the exit code."""
    from rlctl import display, eval_report, eval_saved, eval_table
    from rlctl.eval_run import prepare

    saved = [None if target.samples is None else eval_saved.read(target.samples) for target in targets]
    prepared = [None if one is None else prepare(one, limit=limit) for one in settings]
    notes = _checked(targets, saved, prepared)
    folder = _new_folder(out, targets)
    options.outlive_closed_pipes()
    evaluations: list[Evaluation] = []
    scores: list[Mapping[str, Mapping[str, float]]] = []
    stopped = 0
    for target, there, ready in zip(targets, saved, prepared, strict=True):
        if there is not None:
            scores.append(there.scores)
            continue
        assert ready is not None
        evaluation, stopped = _evaluate(ready, folder / "samples.jsonl", name=target.model or ready.model)
        evaluations.append(evaluation)
        scores.append(evaluation.scores)
        if stopped:
            break
    seed = next((one.seed for one in settings if one is not None), 0)
    pairs = eval_report.compare(scores[0], scores[1], seed=seed) if len(scores) == 2 else []
    _write_result(folder, eval_table.as_record(evaluations, pairs, notes=notes))
    display.say(eval_table.render(evaluations, pairs, style=style, notes=notes))
    if stopped:
        display.tell(
            f"stopped early: the result is that of the problems that were finished; {folder} has their samples"
        )
    elif evaluations:
        display.tell(f"samples and result: {display.shown_path(folder)}")
    return 128 + stopped if stopped else 0


def _checked(targets: list[Target], saved: list[Saved | None], prepared: list[PreparedEvaluation | None]) -> list[str]:
    """Notes on the comparison. Raises ConfigError or DataError, before anything is sampled, where there can be none."""
    from rlctl import eval_saved

    asked = []
    for target, there, ready in zip(targets, saved, prepared, strict=True):
        if there is not None:
            asked.append(there.asked)
        elif ready is not None:
            asked.append(eval_saved.to_ask(target.name, ready.settings, ready.problems))
    if len(asked) < 2 or not any(saved):
        return []
    eval_saved.must_be_comparable(asked[0], asked[1])
    if all(saved):
        return eval_saved.notes_on(asked[0], asked[1])
    eval_saved.must_be_sampled_alike(*(asked if saved[0] is not None else reversed(asked)))
    return []


def _evaluate(ready: PreparedEvaluation, samples: Path, *, name: str) -> tuple[Evaluation, int]:
    import asyncio

    from rlctl import display, eval_run
    from rlctl.foreign_output import to_stderr

    with to_stderr():
        return asyncio.run(eval_run.run(ready, reporter=display.NotesReporter(), samples=samples, name=name))


def _new_folder(out: str | None, targets: list[Target]) -> Path:
    """A folder of its own for the result; raises ConfigError when `out` holds one already or cannot be written."""
    import re
    from pathlib import Path

    from rlctl.errors import ConfigError
    from rlctl.runfiles import free_folder, new_name

    short = "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", Path(target.name).name)[:40] for target in targets)
    folder = (
        Path(out).expanduser() if out else free_folder(Path("evals").absolute(), new_name(short.strip("-.") or None))
    )
    if (folder / "samples.jsonl").exists():
        raise ConfigError(f"--out {folder} holds an evaluation already.", hint="name another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "samples.jsonl").touch()
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} cannot be written: {error.strerror or error}.", hint="set --out."
        ) from error
    return folder


def _write_result(folder: Path, record: dict[str, Any]) -> None:
    import json

    text = json.dumps(record, indent=2, allow_nan=False)
    (folder / "evaluation.json").write_text(text + "\n", encoding="utf-8")
