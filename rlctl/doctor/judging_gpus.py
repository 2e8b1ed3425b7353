"""torch, the driver and the GPUs: facts -> lines. Nothing here needs a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rlctl.doctor.facts import GIB, Device, Facts, Gpu
from rlctl.doctor.lines import Line, fail, gib, ok, warn

BUSY = 0.1
"""Share of a GPU's memory in use from which another process surely computes on it."""


def torch(facts: Facts) -> Iterator[Line]:
    found = facts.torch
    if found.state == "absent":
        return  # said by the packages
    if found.state != "ok":
        what = "hangs as it is imported" if found.state == "timeout" else "cannot be imported"
        yield fail("torch works", f"no: it {what}: {found.error}", "pip install --force-reinstall torch")
        return
    build = (
        f"built for CUDA {found.cuda}" if found.cuda else f"built for ROCm {found.hip}" if found.hip else "CPU build"
    )
    yield ok("torch works", build)


def gpus(facts: Facts, *, drivers: Mapping[int, str]) -> Iterator[Line]:
    driver, build = facts.driver, facts.torch
    if driver.state in ("failed", "timeout"):
        yield fail("GPU driver", f"nvidia-smi: {driver.error}", _driver_cure(driver.error))
        return
    if driver.state == "absent":
        yield from _without_nvidia_smi(facts)
        return
    if not driver.gpus:
        yield warn("GPU driver", f"{driver.version or 'n/a'}, and no GPU", "give the machine or container a GPU")
        return
    yield ok("GPU driver", f"{driver.version}, {_named(driver.gpus)}")
    yield from _driver_for(facts, drivers)
    if build.state == "ok":
        yield from _torch_on(facts)
    yield from _chosen(facts.environment.get("CUDA_VISIBLE_DEVICES"), driver.gpus)
    yield from _occupied(driver.gpus)


def _driver_cure(error: str) -> str:
    if "mismatch" in error.lower():
        return "reboot: the driver's library was upgraded under the running kernel module"
    return "look at `dmesg | grep -i nvrm`; a GPU that is lost comes back with a reboot"


def _without_nvidia_smi(facts: Facts) -> Iterator[Line]:
    if facts.torch.hip and facts.torch.available:
        yield ok("GPUs", _devices(facts.torch.devices))
    elif facts.torch.available:
        yield ok("GPUs", f"{_devices(facts.torch.devices)}; no nvidia-smi to ask about memory in use")
    elif facts.driver.device_files:
        yield warn(
            "GPU driver", "/dev/nvidia0 is there, nvidia-smi is not",
            "add the driver's tools: a container gets them with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )  # fmt: skip
    else:
        yield ok("GPUs", "none: runs use the CPU")


def _driver_for(facts: Facts, drivers: Mapping[int, str]) -> Iterator[Line]:
    build, version = facts.torch.cuda, facts.driver.version
    major = int(build.partition(".")[0]) if build and build.partition(".")[0].isdigit() else None
    least = drivers.get(major) if major else None
    if least and version and _numbers(version) < _numbers(least):
        yield fail(
            "GPU driver", f"{version}; torch for CUDA {build} needs {least} or newer",
            "upgrade the driver, or install a torch that is built for an older CUDA",
            source="https://docs.nvidia.com/deploy/cuda-compatibility/",
        )  # fmt: skip


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def _torch_on(facts: Facts) -> Iterator[Line]:
    build = facts.torch
    if not build.cuda and not build.hip:
        yield warn("GPUs", "torch is a CPU build, and leaves them idle", "pip install torch from an index with CUDA")
    elif not build.available and facts.environment.get("CUDA_VISIBLE_DEVICES") != "":
        cure = "python -c 'import torch; torch.cuda.init()' tells why; in a container, start it with --gpus all"
        yield fail("GPUs", "torch cannot use them", cure)
    for device in build.devices:
        if build.architectures and not compiled_for(device, build.architectures):
            wanted = ".".join(map(str, device.capability))
            has = ", ".join(build.architectures)
            yield fail("GPUs", f"{device.name} is of capability {wanted}; torch has {has}", "install another torch")
            break
    models = {device.name for device in build.devices}
    if len(models) > 1:
        mixed = ", ".join(sorted(models))
        yield warn("GPUs", f"of several kinds: {mixed}", "the slowest sets the pace: CUDA_VISIBLE_DEVICES chooses")


def compiled_for(device: Device, architectures: Sequence[str]) -> bool:
    """Whether torch has code for a GPU: `sm_80` runs on 8.0 to 8.9, `compute_80` is compiled anew on any later one."""
    own = device.capability
    for name in architectures:
        kind, _, digits = name.partition("_")
        digits = digits.rstrip("af")
        if not digits.isdigit():
            continue
        has = (int(digits[:-1]), int(digits[-1]))
        if (kind == "sm" and has[0] == own[0] and has[1] <= own[1]) or (kind == "compute" and has <= own):
            return True
    return False


def _chosen(visible: str | None, there: Sequence[Gpu]) -> Iterator[Line]:
    """CUDA_VISIBLE_DEVICES: what does not exist hides everything after it, and a device twice is one."""
    if visible is None:
        return
    name, chosen = "CUDA_VISIBLE_DEVICES", [item.strip() for item in visible.split(",") if item.strip()]
    if not chosen or chosen[0] == "-1":
        yield warn(name, f"{visible!r} hides all {len(there)} GPUs", f"unset {name}")
        return
    known = {str(index) for index in range(len(there))} | {gpu.uuid for gpu in there}
    unknown = [item for item in chosen if item not in known and not any(uuid.startswith(item) for uuid in known)]
    twice = [item for item, count in Counter(chosen).items() if count > 1]
    if unknown and not any(item.startswith("MIG-") for item in unknown):
        yield fail(name, f"{visible}: there is no GPU {unknown[0]} among {len(there)}", f"export {name}=0,...")
    elif twice:
        yield fail(name, f"{visible}: GPU {twice[0]} twice", "name each once")
    else:
        yield ok(name, f"{visible}: {len(chosen)} of {len(there)} GPUs")


def _occupied(gpus: Sequence[Gpu]) -> Iterator[Line]:
    busy = [(index, gpu) for index, gpu in enumerate(gpus) if gpu.memory and gpu.used > BUSY * gpu.memory]
    if busy:
        words = ", ".join(f"GPU {index} {gpu.used / GIB:.1f} of {gib(gpu.memory)}" for index, gpu in busy)
        yield warn("GPU memory", f"in use already: {words}", "nvidia-smi names the processes")
    if any(gpu.mig for gpu in gpus):
        yield warn(
            "MIG", "some GPUs are cut into instances", "name one instance a process: CUDA_VISIBLE_DEVICES=MIG-..."
        )


def _named(gpus: Sequence[Gpu]) -> str:
    counted = Counter((gpu.name, gpu.memory) for gpu in gpus)
    return ", ".join(f"{count} x {name} ({gib(memory)})" for (name, memory), count in counted.items())


def _devices(devices: Sequence[Device]) -> str:
    counted = Counter((device.name, device.memory) for device in devices)
    return ", ".join(f"{count} x {name} ({gib(memory)})" for (name, memory), count in counted.items())
