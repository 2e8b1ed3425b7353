"""What there is to say of one run before any plot: where it stands, what it ran on, what it came to, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rlctl.checkpoints import shelf
from rlctl.checkpoints.shelf import Held
from rlctl.diagnosis import Finding, diagnose
from rlctl.runfiles import STEP
from rlctl.runs.lines import number
from rlctl.runs.listing import duration, over_last, row_of, scores_of, size
from rlctl.runs.printable import printable
from rlctl.runs.reading import Run
from rlctl.runs.samples import clean
from rlctl.runs.tables import aligned, as_json, markdown


def findings(run: Run) -> list[Finding]:
    """What the metrics say is going wrong."""
    limit = run.settings.get("rollout.max_response_length")
    history = [{name: number(value) for name, value in record.items()} for record in run.steps]
    return diagnose(history, max_response_length=limit if isinstance(limit, int) else None)


def facts(run: Run) -> list[tuple[str, str]]:
    """Names and values, as text that is safe to print."""
    found = [
        ("state", f"{run.state.kind}{f': {run.state.why}' if run.state.why else ''}"),
        ("folder", str(run.folder)),
        ("recipe", _recipe(run)),
        ("algorithm", str(run.config.get("algorithm") or "unknown: an earlier version of rlctl began the run")),
        ("model", _model(run)),
        ("machine", machine_words(run)),
        ("steps", f"{run.done:,} of {'?' if run.total_steps is None else f'{run.total_steps:,}'}"),
        ("time", f"{duration(run.seconds)} in steps, evaluations and saves"),
        ("on disk", size(run.size_bytes)),
        ("score", _score(run)),
    ]
    if run.resumes:
        found.append(("resumed", "; ".join(_resumed(record) for record in run.resumes)))
    found.append(("checkpoints", _checkpoints(run)))
    return [(name, printable(text, one_line=True)) for name, text in found]


def _recipe(run: Run) -> str:
    preset, variant = run.config.get("preset"), run.config.get("variant")
    words = [f"preset {preset}" if preset else "no preset", f"variant {variant}" if variant else ""]
    words += [f"backend {run.settings.get('backend', 'unknown')}", f"seed {run.settings.get('seed', 'unknown')}"]
    version = run.config.get("rlctl_version")
    return ", ".join([*filter(None, words), f"rlctl {version}" if version else "version unknown"])


def _model(run: Run) -> str:
    path, parameters = run.settings.get("model.path"), number(run.machine.get("num_parameters"))
    return f"{path or 'unknown'}{'' if parameters is None else f', {parameters / 1e6:.4g} M parameters'}"


def machine_words(run: Run) -> str:
    machine = run.machine
    if not machine:
        return "unknown: the run's backend had not started"
    peak = number(machine.get("peak_flops"))
    shown = "MFU n/a" if peak is None else f"peak {peak / 1e12:.3g} TFLOP/s"
    devices = f"{machine.get('num_devices')} x {machine.get('device')}, {machine.get('dtype')}"
    return f"{devices}; {shown} ({machine.get('peak_source')})"


def _score(run: Run) -> str:
    row = row_of(run)
    if row.first_score is None or row.last_score is None:
        return "n/a: no step has a score"
    return f"{row.first_score:.3f} at the first step, {row.last_score:.3f} {over_last(scores_of(run)[1])}"


def _resumed(record: Mapping[str, Any]) -> str:
    changes = record.get("changes")
    told = (
        [str(change) for change in changes if not str(change).startswith("run.")] if isinstance(changes, list) else []
    )
    changed = f" with {', '.join(told)}" if told else ""
    return f"after step {record.get('from_step')}{changed}"


def held_by(run: Run) -> tuple[Sequence[Held], Sequence[str]]:
    """(the run's checkpoints, the newest first; what is wrong with others, or keeps all from being read)."""
    if fault := _closed(run):
        return (), (fault,)
    return shelf.list_held(run.folder / "checkpoints")


def _closed(run: Run) -> str:
    """Why its checkpoints may not be looked at; "" where they may."""
    folder = run.folder / "checkpoints"
    try:
        for _ in folder.iterdir():
            break
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror or error}"
    return ""


def _checkpoints(run: Run) -> str:
    if fault := _closed(run):
        return fault
    held, complaints = held_by(run)
    shown = [f"step {one.step} ({size(one.manifest.num_bytes)})" for one in reversed(held)]
    if len(shown) > 4:
        shown = [*shown[:2], f"{len(shown) - 4} more", *shown[-2:]]
    damaged = [f"{len(complaints)} damaged or unfinished"] if complaints else []
    return ", ".join([*shown, *damaged]) or "none"


def evaluation_rows(run: Run) -> list[list[str]]:
    """A heading and one row an evaluation; core metrics only."""
    names = list(dict.fromkeys(n for r in run.evaluations for n in r if n.startswith("val-core/")))
    if not names:
        return []
    values = [[number(record.get(name)) for name in names] for record in run.evaluations]
    cells = [["n/a" if value is None else f"{value:.3f}" for value in row] for row in values]
    shown = [name.removeprefix("val-core/") for name in names]
    return [["step", *shown], *([str(r[STEP]), *row] for r, row in zip(run.evaluations, cells, strict=True))]


def given(run: Run) -> list[tuple[str, object, str]]:
    """(setting, value, origin) of what was neither a default nor the preset's."""
    return [
        (name, run.settings.get(name), str(origin))
        for name, origin in run.origins.items()
        if origin != "default" and not str(origin).startswith("preset ")
    ]


def render(run: Run, *, style: str) -> str:
    if style == "json":
        return as_json(record(run))
    mark = "- " if style == "markdown" else ""
    lines = [f"{'## ' if style == 'markdown' else ''}{run.name}", *([""] if mark else [])]
    width = 0 if mark else 12
    lines += [f"{mark}{name:{width}}{': ' if mark else ' '}{text}" for name, text in facts(run)]
    for title, rows in _sections(run):
        lines += ["", f"**{title}**" if mark else title, *([""] if mark else [])]
        lines += markdown(rows) if mark else [f"  {line}" for line in aligned(rows, left=len(rows[0]))]
    found = findings(run)
    lines += ["", *(f"{mark}warning: {printable(one.line, one_line=True)}" for one in found)] if found else []
    lines += [f"{mark}note: {printable(text, one_line=True)}" for text in run.complaints]
    return "\n".join(lines)


def _sections(run: Run) -> list[tuple[str, Sequence[Sequence[str]]]]:
    sections: list[tuple[str, Sequence[Sequence[str]]]] = []
    if rows := evaluation_rows(run):
        sections.append(("evaluations", rows))
    if own := given(run):
        heading = [["setting", "value", "from"]]
        sections.append(("settings of its own", heading + [[name, repr(value), origin] for name, value, origin in own]))
    return sections


def record(run: Run) -> dict[str, Any]:
    """Everything of the run but its steps and samples, for a script."""
    held, damaged = held_by(run)
    content: dict[str, Any] = clean(
        {
            **asdict(row_of(run)),
            "why": run.state.why,
            "folder": str(run.folder),
            "config": dict(run.config),
            "machine": dict(run.machine),
            "resumes": [dict(one) for one in run.resumes],
            "evaluations": [dict(one) for one in run.evaluations],
            "checkpoints": [{"step": one.step, "bytes": one.manifest.num_bytes} for one in held],
            "damaged_checkpoints": list(damaged),
            "findings": [asdict(one) for one in findings(run)],
            "complaints": list(run.complaints),
        }
    )
    return content
