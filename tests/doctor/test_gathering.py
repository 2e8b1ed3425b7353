"""How `rlctl doctor` finds its facts: broken packages, tools that hang, control groups, folders, no network."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest

from rlctl.doctor import gathering, gpus, machine, network, software, versions

ROOT = Path(__file__).resolve().parents[2]


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("module", "state", "words"),
    [
        (
            "import sys; raise ImportError('libcudart.so.12: cannot open shared object file')",
            "broken",
            "libcudart.so.12",
        ),
        ("import missing_part", "broken", "missing_part"),
        ("import os; os.abort()", "broken", "signal 6"),
        ("import sys; sys.exit(3)", "broken", "exit code 3"),
        ("import time; time.sleep(60)", "timeout", "more than 1 s"),
    ],
)
def test_a_torch_that_is_broken_is_found_out_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, state: str, words: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(module + "\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = software.torch(timeout_s=1.0 if state == "timeout" else 30.0)
    assert found.state == state
    assert words in found.error


def test_the_torch_of_this_environment_works() -> None:
    found = software.torch()
    assert (found.state, found.error) == ("ok", "")


def test_a_python_that_cannot_be_run_is_told() -> None:
    assert software.torch(executable="/no/such/python").state == "broken"


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        ("sleep 60", "timeout", "within 0.5 s"),
        ("trap '' TERM; sleep 60 & wait", "timeout", "within 0.5 s"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "failed", "mismatch"),
        ("exit 9", "failed", "exit code 9"),
        ("echo hello", "failed", "not understood: hello"),
    ],
)
def test_an_nvidia_smi_that_hangs_or_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, state: str, words: str
) -> None:
    script(tmp_path / "nvidia-smi", answer)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    begun = time.monotonic()
    found = gpus.driver(timeout_s=0.5 if state == "timeout" else 30.0)
    assert time.monotonic() - begun < 30
    assert found.state == state
    assert words in found.error


def test_a_compiler_that_is_missing_or_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(script(tmp_path / "cc", "echo 'fatal: no libgomp.spec' >&2; exit 1")))
    assert software.compiler().error == "fatal: no libgomp.spec"
    monkeypatch.setenv("CC", "/no/such/cc")
    assert software.compiler().error == "No such file or directory"
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert software.compiler().command is None


def test_control_groups_of_version_2_limit_by_the_least_above(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/pod/run\n")
    write(tmp_path / "sys/fs/cgroup/pod/cpu.max", "250000 100000\n")
    write(tmp_path / "sys/fs/cgroup/pod/run/cpu.max", "max 100000\n")
    write(tmp_path / "sys/fs/cgroup/pod/memory.max", f"{8 * 2**30}\n")
    write(tmp_path / "sys/fs/cgroup/pod/memory.current", f"{3 * 2**30}\n")
    write(tmp_path / "sys/fs/cgroup/pod/run/memory.max", "max\n")
    write(tmp_path / "proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\nHugePages_Total: 0\n")
    assert machine.cpu_quota(tmp_path) == 2.5
    memory = machine.memory(tmp_path)
    assert (memory.total, memory.available) == (64 * 2**30, 32 * 2**30)
    assert (memory.limit, memory.used_of_limit) == (8 * 2**30, 3 * 2**30)


def test_control_groups_of_version_1_and_of_containers_are_read(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert machine.cpu_quota(tmp_path) == 1.5
    assert machine.memory(tmp_path).limit is None


def test_a_system_without_proc_has_no_limits(tmp_path: Path) -> None:
    assert machine.cpu_quota(tmp_path) is None
    assert machine.memory(tmp_path).total is None
    assert machine.cpu(tmp_path).flags == frozenset()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_looking_at_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    found = machine.space("runs", tmp_path / "not/yet/there")
    assert found.error == ""
    assert found.free is not None
    assert list(tmp_path.iterdir()) == []
    assert machine.space("runs", Path("/proc/nowhere")).error


def test_paths_are_shown_without_the_name_of_who_is_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert machine.shown(Path("/home/somebody/runs")) == "~/runs"
    assert machine.shown(Path("/data/runs")) == "/data/runs"


def test_proxies_are_told_without_their_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*network.PROXIES, *map(str.upper, network.PROXIES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://me:s3cr3t@proxy:3128")
    assert network.proxies() == ["https_proxy=http://***@proxy:3128"]


def test_a_hub_that_never_answers_costs_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://me:s3cr3t@127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.delenv("HF_HUB_OFFLINE")
        begun = time.monotonic()
        found = network.hub_facts(timeout_s=0.5)
    assert time.monotonic() - begun < 60  # and not for ever
    assert found.reachable
    assert found.skew_s is None
    assert "s3cr3t" not in repr(found)


def test_a_port_that_somebody_listens_on_is_taken() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        number = server.getsockname()[1]
        assert [port.taken for port in network.ports([(number, "a test")])] == [True]
    assert [port.taken for port in network.ports([(number, "a test")])] == [False]


def test_a_backend_is_imported_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bad_plugin.py").write_text(
        "from rlctl.backends.registry import register\n"
        "register('bad', backend='no_such_module:Class', settings='no_such_module:Settings')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', ROOT)}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RLCTL_PLUGINS", "bad_plugin")
    found = software.backend("bad")
    assert "no_such_module" in found.error
    assert found.hint
    assert "no_such_module" not in sys.modules


def test_what_is_installed_is_read_from_metadata_alone() -> None:
    found = software.packages(["torch", "pytest", "no-such-package"])
    assert sorted(found) == ["pytest", "torch"]
    assert software.unmet(["pytest"], extras=[]) == software.unmet([], extras=[])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "name no version"),
        (b"", "name no version"),
        (b"Metadata-Version: 2.1\nName: broken-one\n", "name no version"),
        (b"\xff\xfe\x00", "cannot be read: UnicodeDecodeError"),
    ],
)
def test_a_package_with_damaged_metadata_is_not_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, words: str
) -> None:
    """As an installation leaves it that was killed."""
    folder = tmp_path / "broken_one-1.0.dist-info"
    folder.mkdir()
    if content is not None:
        (folder / "METADATA").write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path)
    names = ["broken-one", "pytest", "no-such-package"]
    (found,) = software.damaged(names).items()
    assert found[0] == "broken-one"
    assert words in found[1]
    assert list(software.packages(names)) == ["pytest"]


@pytest.mark.parametrize("memory", ["[N/A]", "-5", "\u00b2\u00b3", ""])
def test_a_gpu_whose_memory_the_driver_does_not_tell_has_none(memory: str) -> None:
    found = gpus.parsed(f"580.1, GB10, GPU-1, {memory}, [N/A], [N/A]", device_files=True)
    assert [(gpu.name, gpu.memory, gpu.used) for gpu in found.gpus] == [("GB10", None, 0)]


def test_the_least_versions_are_those_of_the_package_itself() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for group in project["optional-dependencies"].values() for text in group)]
    asked: dict[str, set[str]] = {}
    for requirement in map(Requirement, texts):
        asked.setdefault(requirement.name, set()).update(
            str(one.version) for one in requirement.specifier if one.operator == ">="
        )
    known = versions.read()
    for name, package in known.packages.items():
        if name in asked:
            assert asked[name] == {package.least}, name
    extras = {package.extra for package in known.packages.values() if package.extra}
    assert extras <= set(project["optional-dependencies"])


def test_the_tested_versions_are_those_of_the_constraints() -> None:
    known = versions.read().packages
    texts = [(ROOT / "constraints" / name).read_text() for name in ("cpu.txt", "ray-cpu.txt")]
    pinned = dict(
        line.split("==") for text in texts for line in text.splitlines() if "==" in line and not line.startswith("#")
    )
    pinned = {name.partition("[")[0]: version.partition("+")[0] for name, version in pinned.items()}
    for name in ("torch", "ray", "deepspeed"):
        assert pinned[name] in known[name].tested


def test_what_never_answers_is_told_and_keeps_nobody_waiting() -> None:
    for_ever = threading.Event()
    asked = gathering.Asked(lambda: str(for_ever.wait()), "no answer", within=0.1)
    assert asked.answer() == "no answer"
    for_ever.set()


def test_what_answers_in_time_is_told_and_an_error_of_ours_is_raised() -> None:
    assert gathering.Asked(lambda: "found", "no answer", within=60.0).answer() == "found"
    with pytest.raises(ZeroDivisionError):
        gathering.Asked(lambda: 1 / 0, 0.0, within=60.0).answer()
