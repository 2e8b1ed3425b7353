"""`rlctl doctor` as it is typed: its formats, its width, its exit codes, and places where little works."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from rlctl.commands.doctor import RUN_DIR
from rlctl.doctor import printing
from rlctl.doctor.lines import exit_code, fail, ok, warn
from rlctl.settings.run import RunSettings

ROOT = Path(__file__).resolve().parents[2]

LINES = [
    ok("python", "3.11.7 (CPython)"),
    warn("CPU", "8 cores | load 20.0 and a long story about it that goes on and on until the line is full", "wait"),
    fail("known to be bad", "deepspeed 0.18.2: wrong", "pip install deepspeed", source="https://example.org/7718"),
]


def rlctl(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlctl", *arguments],
        capture_output=True, text=True, cwd=ROOT, env={"PATH": os.environ["PATH"], **environment}, timeout=120,
    )  # fmt: skip


def test_a_table_stays_within_its_width() -> None:
    text = printing.table(LINES, width=80)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.splitlines()[0] == "ok    python           3.11.7 (CPython)"
    assert "                       see: https://example.org/7718" in text
    assert text.splitlines()[-1].endswith(": 1 ok, 1 warn, 1 fail")


def test_json_and_markdown_say_the_same() -> None:
    record = json.loads(printing.as_json(LINES))
    assert record["exit_code"] == 3
    assert record["counts"] == {"ok": 1, "warn": 1, "fail": 1}
    assert record["lines"][0] == {
        "name": "python", "status": "ok", "found": "3.11.7 (CPython)", "cure": "", "source": ""
    }  # fmt: skip
    markdown = printing.markdown(LINES).splitlines()
    assert markdown[2] == "| ok | python | 3.11.7 (CPython) |  |"
    assert "8 cores \\| load" in markdown[3]


def test_only_a_failure_is_an_exit_code() -> None:
    assert exit_code(LINES) == 3
    assert exit_code(LINES[:2]) == 0


def test_it_works_without_home_network_and_terminal(tmp_path: Path) -> None:
    done = rlctl("doctor", "--format", "json", HF_HUB_OFFLINE="1", RLCTL_RUN__DIR=str(tmp_path))
    record = json.loads(done.stdout)
    assert done.returncode == record["exit_code"]
    assert done.stderr == ""
    found = {line["name"]: line for line in record["lines"]}
    assert found["python"]["status"] == "ok"
    assert found["torch works"]["status"] == "ok"
    assert found["hub"]["found"].startswith("HF_HUB_OFFLINE is set")
    assert str(tmp_path) in found["runs (run.dir)"]["found"]


def test_it_works_where_nothing_can_be_written() -> None:
    places = {"HOME": "/proc/nowhere", "TMPDIR": "/proc/nowhere", "RLCTL_RUN__DIR": "/proc/runs"}
    done = rlctl("doctor", COLUMNS="80", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="many", **places)
    assert done.returncode == 3
    assert done.stderr == ""
    assert "fail  OMP_NUM_THREADS  'many' is no number of threads" in done.stdout
    assert "fail  runs (run.dir)   /proc/runs: " in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_it_works_where_nothing_is_installed_but_the_command_line(tmp_path: Path) -> None:
    """Whatever an environment lacks is a line: here there is typer, and what it needs, and nothing else."""
    for name in ("typer", "click", "rich", "shellingham", "typing_extensions", "pygments", "markdown_it", "mdurl",
                 "annotated_doc", "pydantic", "pydantic_core", "annotated_types", "typing_inspection"):  # fmt: skip
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            whole = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
            (tmp_path / whole.name).symlink_to(whole)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "rlctl", "doctor"], capture_output=True, text=True, cwd=ROOT, timeout=120,
        env={"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == 3
    for name in ("torch", "numpy", "transformers", "packaging"):
        assert any(line.split()[:2] == ["fail", name] for line in done.stdout.splitlines()), name


def test_it_looks_where_runs_go_unless_told_otherwise() -> None:
    """The settings, which hold the default, may be what cannot be imported."""
    assert RunSettings().dir == RUN_DIR


def test_an_unknown_backend_is_told() -> None:
    done = rlctl("doctor", "--backend", "rey", HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert "No backend is called 'rey'. Did you mean 'ray'?" in done.stderr
