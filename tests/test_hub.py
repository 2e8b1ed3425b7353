"""What the hub's cache holds, and whether the hub answers: from folders and one connection, here to this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from rlctl import hub

VARIABLES = [
    *("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_ENDPOINT", "HF_HOME", "XDG_CACHE_HOME"),
    *("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
]


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))


@pytest.fixture
def listening():
    """The port of a socket on this machine that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port():
    """A port of this machine that nothing listens on: bound, so that nobody else takes it, but not listening."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_model_is_cached_when_a_snapshot_has_a_file(tmp_path):
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    assert not hub.is_cached_model("org/name")
    (snapshot / "config.json").write_text("{}")
    assert hub.is_cached_model("org/name")
    assert not hub.is_cached_model("org/other")


def test_model_without_organisation_is_found(tmp_path):
    (tmp_path / "hub" / "models--gpt2" / "snapshots" / "abc" / "config.json").mkdir(parents=True)
    assert hub.is_cached_model("gpt2")


def test_data_set_is_cached_when_it_was_prepared(tmp_path):
    prepared = tmp_path / "datasets" / "org___camel_case" / "main" / "0.0.0" / "hash"
    prepared.mkdir(parents=True)
    assert not hub.is_cached_dataset("org/CamelCase")
    (prepared / "dataset_info.json").write_text("{}")
    assert hub.is_cached_dataset("org/CamelCase")


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        ("HF_HUB_CACHE", hub.hub_cache),
        ("HUGGINGFACE_HUB_CACHE", hub.hub_cache),
        ("HF_DATASETS_CACHE", hub.datasets_cache),
    ],
)
def test_cache_folder_can_be_set(variable, found, tmp_path, monkeypatch):
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    assert found() == tmp_path / "elsewhere"


def test_cache_folders_are_found_where_the_libraries_put_them(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert hub.hub_cache() == tmp_path / "cache" / "huggingface" / "hub"


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("true", True), ("ON", True), ("0", False), ("", False)])
def test_offline_is_read_as_the_hub_reads_it(value, offline):
    assert hub.is_offline({"HF_HUB_OFFLINE": value}) is offline
    assert hub.is_offline({"TRANSFORMERS_OFFLINE": value}) is offline


def test_offline_opens_no_connection(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket, "create_connection", lambda *a, **k: pytest.fail("a connection was opened"))
    assert hub.hub_reachable() == (False, "HF_HUB_OFFLINE is set")


def test_endpoint_that_accepts_is_reachable(listening, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listening}")
    assert hub.hub_reachable() == (True, "")


def test_endpoint_that_refuses_is_not(closed_port, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port}")
    reachable, reason = hub.hub_reachable()
    assert not reachable
    assert reason.startswith(f"127.0.0.1:{closed_port} cannot be reached (")


def test_proxy_is_asked_in_place_of_the_endpoint(listening, closed_port, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"https://127.0.0.1:{closed_port}")
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listening}")
    assert hub.hub_reachable() == (True, "")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert hub.hub_reachable()[0] is False


def test_name_lookup_that_hangs_ends_with_the_time_out(monkeypatch):
    released = threading.Event()

    def hangs(address, timeout):
        released.wait()
        raise OSError("no such name")

    monkeypatch.setattr(socket, "create_connection", hangs)
    assert hub.hub_reachable(0.1) == (False, "huggingface.co:443 did not answer within 0.1 s")
    released.set()


def test_hub_imports_nothing_heavy():
    program = "import sys, rlctl.hub; print({'torch', 'datasets', 'huggingface_hub', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
