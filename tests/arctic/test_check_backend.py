"""`rlctl check-backend` on clients of every colour and release: what each method is, said exactly."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlctl.backends import probe, registry
from rlctl.backends.calling import HOW
from tests.arctic.conftest import STANDINS

ROOT = Path(__file__).parents[2]
PLAIN = HOW["sync"]
METHODS = [
    "generate", "fwd_no_grad", "fwd_bwd", "step", "sync_weights", "sleep_inference", "wake_inference",
    "sleep_training", "wake_training", "save_checkpoint", "load_checkpoint", "shutdown",
]  # fmt: skip


def judged(client: str) -> probe.PartReport:
    report = probe.check(registry.get("arctic"), client=f"tests.arctic.colours:{client}")
    assert report.can_run, report.stopping
    return report.parts[0]


def styles(part: probe.PartReport) -> dict[str, tuple[str, str]]:
    return {method.name: (method.found, method.call) for method in part.methods}


def test_a_client_that_is_all_async_is_awaited_throughout() -> None:
    part = judged("AllAsync")
    assert styles(part) == dict.fromkeys(METHODS, ("async", "awaited"))
    assert (part.missing, part.style_changed, part.signature_changed) == ((), (), ())
    assert part.extra == ("sync do(method, **told)", "async later(method, **told)")


def test_a_client_that_is_all_sync_runs_in_threads_and_every_style_is_told_as_changed() -> None:
    part = judged("AllSync")
    assert styles(part) == dict.fromkeys(METHODS, ("sync", PLAIN))
    assert set(part.style_changed) == set(METHODS)
    assert part.signature_changed == ()


def test_a_plain_function_that_promises_an_awaitable_is_told_from_one_that_does_not() -> None:
    part = judged("ReturnsAwaitables")
    promising = ["fwd_bwd", "fwd_no_grad", "step", "save_checkpoint", "load_checkpoint"]
    expected = {
        name: ("returns awaitable", HOW["returns awaitable"]) if name in promising else ("sync", PLAIN)
        for name in METHODS
    }
    assert styles(part) == expected


def test_a_mixed_client_is_told_method_by_method() -> None:
    part = judged("Mixed")
    plain = {"fwd_bwd", "step", "sync_weights", "shutdown"}
    assert {name for name, (found, _) in styles(part).items() if found == "sync"} == plain
    assert {name for name, (found, _) in styles(part).items() if found == "async"} == set(METHODS) - plain
    assert set(part.style_changed) == plain


class Legacy:
    """The signatures of 0.1.2, and only what a run of the default settings calls; one more is required of `step`."""

    async def generate(self, prompts: Any, sampling_params: Any = None) -> Any: ...
    async def fwd_no_grad(self, batch: Any, reference_model: bool) -> Any: ...
    async def fwd_bwd(self, batch: Any, processing: Any = None) -> Any: ...
    def step(self, closure: Any) -> Any: ...
    async def sync_weights(self, cuda_ipc: bool = False, low_memory: bool = False) -> Any: ...
    async def sleep_inference(self, level: int = 1) -> Any: ...
    async def wake_inference(self, tags: Any = None) -> Any: ...
    async def save_checkpoint(self) -> Any: ...
    def shutdown(self) -> None: ...


def test_a_client_that_the_contract_does_not_name_is_judged_as_the_nearest() -> None:
    report = probe.check(registry.get("arctic"), client=f"{__name__}:Legacy")
    (part,) = report.parts
    assert part.name == "legacy-http"
    assert part.missing == ("sleep_training", "wake_training")  # only some runs call them
    assert (part.style_changed, part.signature_changed) == (("step",), ("step",))
    assert report.stopping == ["step: parameter 'closure' is required, and rlctl does not pass it"]


def test_every_client_of_the_development_version_is_judged_and_a_run_takes_the_unified(installed: Any) -> None:
    installed("head")
    report = probe.check(registry.get("arctic"))
    assert report.can_run, report.stopping
    clients = [part for part in report.parts if part.part == "client"]
    assert [(part.name, part.decides) for part in clients] == [
        ("unified", True), ("unified-blocking", False), ("legacy-http", False),
    ]  # fmt: skip
    assert all((part.missing, part.style_changed, part.signature_changed) == ((), (), ()) for part in clients)
    assert {method.found for method in clients[1].methods} == {"sync"}
    assert clients[0].package is not None
    assert clients[0].package.folder == str(STANDINS / "head" / "arctic_platform")


def test_the_published_release_is_read_from_source_and_keeps_the_contract(published: Path) -> None:
    folder = published
    report = probe.check(registry.get("arctic"))
    clients = {part.name: part for part in report.parts if part.part == "client"}
    assert set(clients) == {"legacy-http", "legacy-ray"}
    http = clients["legacy-http"]
    assert http.package is not None
    assert (http.package.version, http.package.folder) == ("0.1.2", str(folder))
    assert http.read == f"read from source: {folder / 'rl' / 'http_client.py'}"
    for part in clients.values():
        assert (part.missing, part.extra, part.style_changed, part.signature_changed) == ((), (), (), ())
    assert styles(http)["shutdown"] == ("sync", PLAIN)
    assert styles(clients["legacy-ray"])["shutdown"] == ("async", "awaited")


@pytest.mark.slow
def test_live_starts_a_server_with_the_defaults_and_trains_on_it(tmp_path: Path) -> None:
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        port = probe_socket.getsockname()[1]
    settings = {"port": port, "attn_implementation": "eager", "checkpoint_path": tmp_path / "server"}
    sets = [f"--set=remote_backend.arctic.{name}={value}" for name, value in settings.items()]
    env = {**os.environ, "PYTHONPATH": f"{STANDINS / 'head'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlctl", "check-backend", "arctic", "--live", "--format", "json", *sets]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False, timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    trial = json.loads(done.stdout)["trial"]
    assert {check["outcome"] for check in trial["checks"]} == {"ok"}
    assert [check["name"] for check in trial["checks"]] == [
        "starts", "samples with ids and log-probs", "scores as it sampled", "an update raises what was better",
        "the sampler follows the trainer", "an update that is no number changes nothing", "saves and loads",
        "closes, twice",
    ]  # fmt: skip
    # Loading torch holds Python's lock for a moment at the start.
    assert all(check["stall_seconds"] < 1 for check in trial["checks"] if check["name"] != "starts")
    assert "tiled_logits_compute = true: without zorro_train the platform cannot" in done.stderr
    with socket.socket() as gone:
        assert gone.connect_ex(("127.0.0.1", port)) != 0  # the server was stopped
