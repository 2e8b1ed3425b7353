"""What `rlctl doctor` says of GPUs, from facts: on a machine without any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlctl.doctor.facts import GIB, Device, Driver, Torch
from rlctl.doctor.gpus import parsed
from rlctl.doctor.judging_gpus import compiled_for
from tests.doctor.facts import CUDA, DRIVER, H100, HEALTHY, WITH_GPUS, found, trouble


def test_gpus_that_work_are_named_with_their_memory() -> None:
    assert trouble(WITH_GPUS) == []
    assert found("GPU driver", WITH_GPUS) == "570.86.15, 2 x NVIDIA H100 80GB HBM3 (80.0 GiB)"
    assert found("torch works", WITH_GPUS) == "built for CUDA 12.8"
    assert found("GPUs", HEALTHY) == "none: runs use the CPU"


@pytest.mark.parametrize(
    ("cuda", "driver", "fails"),
    [("13.0", "570.86.15", True), ("13.0", "580.65.06", False), ("12.8", "525.60.13", False),
     ("12.8", "525.60.2", True), ("12.8", "535.129.03", False), ("11.8", "450.80.02", False), ("14.0", "1.0", False)],
)  # fmt: skip
def test_a_driver_older_than_torchs_cuda_fails(cuda: str, driver: str, fails: bool) -> None:
    told = trouble(WITH_GPUS, torch=replace(CUDA, cuda=cuda), driver=replace(DRIVER, version=driver))
    wanted = [("fail", "GPU driver")] if fails else []
    assert [one[:2] for one in told] == wanted


def test_a_cpu_build_leaves_gpus_idle() -> None:
    assert trouble(WITH_GPUS, torch=Torch("ok")) == [("warn", "GPUs", "torch is a CPU build, and leaves them idle")]


def test_gpus_that_torch_cannot_use_fail() -> None:
    assert trouble(WITH_GPUS, torch=replace(CUDA, available=False, devices=())) == [
        ("fail", "GPUs", "torch cannot use them")
    ]


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ("sm_80", "sm_90"), True),
        ((8, 9), ("sm_80",), True),  # binary code runs on later minors of its major
        ((8, 0), ("sm_86",), False),
        ((9, 0), ("sm_80",), False),
        ((12, 0), ("sm_90", "compute_90"), True),  # compiled anew
        ((12, 0), ("sm_90", "sm_100"), False),
        ((9, 0), ("sm_90a",), True),
        ((7, 0), ("sm_75", "compute_90"), False),
    ],
)
def test_torch_must_be_compiled_for_the_gpu(
    capability: tuple[int, int], architectures: tuple[str, ...], runs: bool
) -> None:
    device = Device("GPU", capability, GIB)
    assert compiled_for(device, architectures) is runs
    told = trouble(WITH_GPUS, torch=replace(CUDA, devices=[device], architectures=architectures))
    assert [one[:2] for one in told] == ([] if runs else [("fail", "GPUs")])


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1", None), ("1", None), ("GPU-2b", None), ("GPU-2", None), ("MIG-7", None),
        ("", ("warn", "'' hides all 2 GPUs")),
        ("-1", ("warn", "'-1' hides all 2 GPUs")),
        ("0,2", ("fail", "0,2: there is no GPU 2 among 2")),
        ("0,0", ("fail", "0,0: GPU 0 twice")),
        ("cuda:0", ("fail", "cuda:0: there is no GPU cuda:0 among 2")),
    ],
)  # fmt: skip
def test_cuda_visible_devices_must_name_gpus_that_are_there(visible: str, expected: tuple[str, str] | None) -> None:
    told = trouble(WITH_GPUS, environment={"CUDA_VISIBLE_DEVICES": visible})
    assert [(status, words) for status, _, words in told] == ([expected] if expected else [])


def test_gpus_in_use_and_mixed_ones_are_told() -> None:
    busy = replace(DRIVER, gpus=[H100, replace(H100, used=30 * GIB)])
    assert trouble(WITH_GPUS, driver=busy) == [("warn", "GPU memory", "in use already: GPU 1 30.0 of 80.0 GiB")]
    mixed = replace(CUDA, devices=[*CUDA.devices, Device("NVIDIA A100", (8, 0), 40 * GIB)])
    assert trouble(WITH_GPUS, torch=mixed)[0][:2] == ("warn", "GPUs")
    assert trouble(WITH_GPUS, driver=replace(DRIVER, gpus=[replace(H100, mig=True)]))[0][:2] == ("warn", "MIG")


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (Driver("timeout", "did not answer within 15 s"), "nvidia-smi: did not answer within 15 s"),
        (Driver("failed", "Failed to initialize NVML: Driver/library version mismatch"), "mismatch"),
        (Driver("failed", "No devices were found"), "No devices were found"),
    ],
)
def test_a_driver_that_does_not_answer_fails(driver: Driver, words: str) -> None:
    ((status, name, told),) = trouble(driver=driver)
    assert (status, name) == ("fail", "GPU driver")
    assert words in told


def test_a_gpu_without_its_tools_is_told() -> None:
    ((status, name, told),) = trouble(driver=Driver("absent", device_files=True))
    assert (status, name, told) == ("warn", "GPU driver", "/dev/nvidia0 is there, nvidia-smi is not")


def test_the_answer_of_nvidia_smi_is_read() -> None:
    text = (
        "570.86.15, NVIDIA H100 80GB HBM3, GPU-1a, 81559, 4, Disabled\n570.86.15, Tesla T4, GPU-2b, 15360, 0, [N/A]\n"
    )
    read = parsed(text, device_files=True)
    assert (read.state, read.version) == ("ok", "570.86.15")
    assert [(gpu.name, (gpu.memory or 0) // 2**20, gpu.used // 2**20, gpu.mig) for gpu in read.gpus] == [
        ("NVIDIA H100 80GB HBM3", 81559, 4, False),
        ("Tesla T4", 15360, 0, False),
    ]
    assert parsed("", device_files=False).gpus == []
    assert parsed("something else\n", device_files=False).state == "failed"
    unified = parsed("580.1, NVIDIA GB10, GPU-3, [N/A], [N/A], [N/A]\n", device_files=True).gpus[0]
    assert (unified.name, unified.memory) == ("NVIDIA GB10", None)
