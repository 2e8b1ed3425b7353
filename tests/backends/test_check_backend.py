"""The two commands, as a user runs them: a process of their own, with stdout, stderr and exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What rlctl.cli does with an RlctlError, so that these tests stand on the commands alone.
APP = """
import sys, typer
from rlctl.commands.check_backend import check_backend
from rlctl.commands.plugins import plugins
from rlctl.errors import RlctlError
app = typer.Typer()
app.command()(check_backend)
app.command()(plugins)
try:
    app()
except RlctlError as error:
    print(f"{type(error).__name__}: {error.message}\\nhint: {error.hint}", file=sys.stderr)
    sys.exit(error.exit_code)
"""

REGISTER = """
from rlctl.backends.registry import register
register("toy", settings="toy_settings:S", client="toy_client:Client", protocol="tests.backends.clients:Contract",
         install="pip install toy")
"""

CLIENT = """
class Client:
    async def generate(self, prompts, *, n=1): ...
    def step(self): ...
"""


@pytest.fixture
def run(tmp_path):
    """Runs a command in a folder of its own, which is the current directory but not on PYTHONPATH."""
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "toy_plugin.py").write_text(REGISTER)

    def run(*arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        # PYTHONSAFEPATH, because `python -c` would put the current directory on the path, and rlctl's script does not.
        env = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
        env |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{plugins}", "PYTHONSAFEPATH": "1"}
        env["RLCTL_PLUGINS"] = "toy_plugin, rlctl.backends.arctic.register"
        command = [sys.executable, "-c", APP, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)

    return run


def test_local_backend_could_start(run):
    done = run("check-backend", "local")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "a run could start"


def test_client_in_the_current_directory_is_judged_alone(run):
    done = run("check-backend", "toy", "--client", "mine:Client", mine=CLIENT)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "toy client: mine:Client (class)"
    assert "step: is sync, where async is expected" in lines
    assert "rlctl has no adapter for 'toy' yet in this version" in lines
    assert lines[-1] == "a run with this client could start"


def test_client_with_findings_exits_1_with_each_finding_on_a_line(run):
    done = run("check-backend", "toy", "--client", "mine:C", mine="class C:\n    def generate(self, texts): ...\n")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "generate: is sync, where async is expected" in lines
    assert "generate: parameter 'prompts' is renamed to 'texts' (stops a run)" in lines
    assert "generate: parameter 'n' is missing (stops a run)" in lines
    assert "step: is missing (stops a run)" in lines
    assert lines[-1] == "a run with this client cannot start: 3 findings stop it"


def test_table_fits_80_columns_without_colour_or_cut_words(run):
    done = run("check-backend", "toy", "--client", "mine:Client", mine=CLIENT)
    table = done.stdout.partition("method ")[2].splitlines()[1:5]
    assert all(len(line.rstrip()) <= 80 for line in table)
    assert "\x1b" not in done.stdout
    assert "…" not in done.stdout


def test_json_is_the_report(run):
    done = run("check-backend", "toy", "--client", "mine:Client", "--format", "json", mine=CLIENT)
    report = json.loads(done.stdout, parse_constant=pytest.fail)
    generate, step = report["parts"][0]["methods"]
    assert report["can_run"] is True
    assert generate == {
        "name": "generate",
        "expected": "async",
        "found": "async",
        "call": "awaited",
        "findings": [],
        "note": "",
        "signature": "(prompts, *, n=1)",
        "reply": [],
        "versions": "",
    }
    assert step["found"] == "sync"
    assert step["findings"] == [{"text": "is sync, where async is expected", "stops": False}]


def test_package_that_is_not_installed_exits_3_with_the_install_line(run):
    done = run("check-backend", "toy")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "BackendUnavailable: Backend 'toy' needs module 'toy_client', which is not installed.\nhint: pip install toy\n"
    )


def test_unknown_backend_exits_2(run):
    done = run("check-backend", "tyo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("BackendNotFound: No backend is called 'tyo'. Did you mean 'toy'?")


@pytest.mark.parametrize("client", ["", "mine", "mine:", "mine:Other", "nowhere:Client"])
def test_client_that_names_nothing_exits_2_with_the_value(run, client):
    done = run("check-backend", "toy", "--client", client, mine=CLIENT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ConfigError: --client {client!r}")
    assert "\nhint: " in done.stderr


# The signatures of the published package's HTTP client, below an import that is not there.
ARCTIC = """
import a_package_that_is_not_here

class ArcticRLHTTPClient:
    async def fwd_bwd(self, batch: dict, processing: dict | None = None) -> dict: ...
    async def fwd_no_grad(self, batch: dict, reference_model: bool) -> dict: ...
    async def step(self) -> dict: ...
    async def save_checkpoint(self) -> dict: ...
    async def generate(self, prompts: list[str], sampling_params: dict | None = None) -> list: ...
    async def sync_weights(self, cuda_ipc: bool = False, low_memory: bool = False) -> dict: ...
    async def sleep_inference(self, level: int = 1) -> dict: ...
    async def wake_inference(self, tags: list[str] | None = None) -> dict: ...
    async def sleep_training(self, mode: str = "all") -> dict: ...
    async def wake_training(self) -> dict: ...
    def shutdown(self) -> None: ...
"""


def test_arctic_is_read_from_source_where_it_cannot_be_imported(run, tmp_path):
    package = tmp_path / "plugins" / "arctic_platform" / "rl"
    package.mkdir(parents=True)
    (package / "http_client.py").write_text(ARCTIC)
    done = run("check-backend", "arctic", "--format", "json")
    report = json.loads(done.stdout)
    adapter, client = report["parts"]
    found = {method["name"]: method["found"] for method in client["methods"]}
    assert done.returncode == 1
    assert (adapter["part"], client["name"]) == ("backend", "legacy-http")
    assert client["read"] == f"read from source: {package / 'http_client.py'}"
    assert client["package"]["version"] == "unknown"
    assert {name for name, style in found.items() if style != "async"} == {"shutdown"}
    assert found["shutdown"] == "sync"
    assert [text.partition(":")[0] for text in report["stopping"]] == ["the client cannot be imported here"]


def test_arctic_that_is_not_installed_names_its_extra(run):
    done = run("check-backend", "arctic")
    assert done.returncode == 3
    assert done.stderr.endswith("hint: pip install 'rlctl[arctic]' && pip install --no-deps arctic-platform\n")


def test_arctic_settings_have_what_every_remote_backend_has():
    from rlctl.backends.arctic.settings import ArcticSettings

    settings = ArcticSettings()
    assert (settings.colocate, settings.tiled_logits_compute, settings.request_timeout_s) == (True, True, 600.0)
    with pytest.raises(ValueError, match="extra"):
        ArcticSettings(colocated=True)
    with pytest.raises(ValueError, match="greater than 0"):
        ArcticSettings(request_timeout_s=0)


def test_plugins_lists_backends_and_failures_and_exits_0(run, tmp_path):
    (tmp_path / "plugins" / "toy_plugin.py").write_text("import missing_dep\n")
    done = run("plugins")
    assert (done.returncode, done.stderr) == (0, "")
    assert "'missing_dep'" in done.stdout
    assert "local" in done.stdout
    assert "Traceback" not in done.stdout
    assert "Traceback" in run("plugins", "--verbose").stdout


def test_plugins_as_json(run):
    done = run("plugins", "--format", "json")
    records = {record["name"]: record for record in json.loads(done.stdout)}
    assert records["toy"]["origin"] == "RLCTL_PLUGINS module toy_plugin"
    assert records["local"]["error"] is None


def test_commands_import_nothing_heavy_until_they_run(run):
    code = (
        "import sys, rlctl.commands.check_backend, rlctl.commands.plugins; "
        "print({'torch', 'pydantic', 'numpy', 'rlctl.backends.probe'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "set()\n"


def test_check_of_the_local_backend_does_not_import_torch():
    code = (
        "import sys; from rlctl.backends import probe, registry; "
        "probe.check(registry.get('local')); print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "set()\n", done.stderr


def test_lock_is_written_holds_and_exits_3_on_drift(run):
    written = run("check-backend", "toy", "--client", "mine:Client", "--write-lock", "toy.lock", mine=CLIENT)
    assert written.returncode == 0
    held = run("check-backend", "toy", "--client", "mine:Client", "--lock", "toy.lock", mine=CLIENT)
    assert held.returncode == 0
    changed = CLIENT.replace("def step(self)", "async def step(self, lr=None)")
    drifted = run("check-backend", "toy", "--client", "mine:Client", "--lock", "toy.lock", mine=changed)
    assert drifted.returncode == 3
    assert "differs from the lock: client mine:Client: step: style was sync, is async" in drifted.stdout
    assert run("check-backend", "toy", "--client", "mine:Client", "--lock", "none", mine=CLIENT).returncode == 2


def test_markdown_is_a_table_with_parameters(run):
    done = run("check-backend", "toy", "--client", "mine:Client", "--format", "markdown", mine=CLIENT)
    lines = done.stdout.splitlines()
    assert lines[0] == "### toy client: mine:Client (class)"
    assert "| method | expected | found | called | parameters |" in lines
    assert "| generate | async | async | awaited | (prompts, *, n=1) |" in lines
    assert "- style changed: step" in lines


@pytest.mark.parametrize("arguments", [["--live", "--client", "mine:Client"], ["--set", "trainer.lr=1"]])
def test_options_that_do_not_go_together_exit_2(run, arguments):
    assert run("check-backend", "toy", *arguments, mine=CLIENT).returncode == 2


@pytest.mark.slow
def test_live_puts_the_local_backend_through_its_verbs(run):
    done = run("check-backend", "local", "--live", "--format", "json")
    assert done.returncode == 0, done.stderr
    trial = json.loads(done.stdout)["trial"]
    assert {check["outcome"] for check in trial["checks"]} == {"ok"}
    assert len(trial["checks"]) == 10
