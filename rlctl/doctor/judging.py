"""Every check, in the order in which it is told: facts -> lines."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rlctl.doctor import judging_gpus, judging_versions
from rlctl.doctor.facts import GIB, Facts, Space
from rlctl.doctor.lines import Line, fail, gib, ok, warn
from rlctl.doctor.versions import Needs, Versions

MIN_FREE, LOW_FREE = 1 * GIB, 20 * GIB
"""A checkpoint of a model of 1 billion parameters with its optimizer is 16 GB."""
LOW_MEMORY = 4 * GIB
LOW_SHM, WANTED_SHM_SHARE = 1 * GIB, 0.3
"""Docker gives 64 MB; Ray asks for three tenths of the memory: https://docs.ray.io/en/latest/ray-core/scheduling/memory-management.html"""
LOW_OPEN_FILES = 4096
"""Below Ray's own advice of 65536, from which a node with many actors fails."""
SKEW_S = 300.0
"""Certificates and signed requests fail from five minutes on."""


def judge(facts: Facts, versions: Versions) -> list[Line]:
    """All lines. `facts.backend` adds what that backend needs, whose lack is then a failure."""
    backend = facts.backend.name if facts.backend else None
    needs = versions.backends.get(backend or "", Needs())
    return [
        *judging_versions.python(facts, versions),
        *judging_versions.packages(facts, versions, backend=backend),
        *_backend(facts),
        *judging_gpus.torch(facts),
        *judging_gpus.gpus(facts, drivers=versions.drivers),
        *_cpu(facts),
        *_threads(facts),
        *_compiler(facts),
        *_memory(facts),
        *_shm(facts, needed=needs.shared_memory),
        *(line for space in facts.spaces for line in _space(space)),
        *_hub(facts),
        *_ports(facts, wanted={number for number, _ in needs.ports}),
        *_open_files(facts),
        *_clock(facts),
    ]


def _backend(facts: Facts) -> Iterator[Line]:
    if facts.backend is None:
        return
    name = f"backend {facts.backend.name}"
    if facts.backend.error:
        yield fail(name, facts.backend.error, facts.backend.hint or "`rlctl plugins --verbose` tells more")
    else:
        yield ok(name, f"can be imported; `rlctl check-backend {facts.backend.name}` looks at its methods")


def _cpu(facts: Facts) -> Iterator[Line]:
    cpu = facts.cpu
    special = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "asimd") if name in cpu.flags]
    quota = f", time for {cpu.quota:g} (control group)" if cpu.quota and cpu.quota < cpu.cores else ""
    found = f"{cpu.cores} cores{quota}, {special[0] if special else 'no vector units known'}"
    if cpu.load is not None and cpu.load > 1.5 * cpu.usable:
        yield warn("CPU", f"{found}; load {cpu.load:.1f}", "other processes compute too: times and MFU will be low")
    elif not facts.torch.available and "amx_bf16" not in cpu.flags:
        yield ok("CPU", f"{found}; no matrix units (AMX), so bfloat16 is no faster than float32")
    else:
        yield ok("CPU", found)


def _threads(facts: Facts) -> Iterator[Line]:
    cpu, value = facts.cpu, facts.cpu.omp_num_threads
    fitting = max(1, int(cpu.usable))
    cure = f"export OMP_NUM_THREADS={fitting}"
    if value is None:
        if cpu.usable < cpu.cores:
            found = f"unset: torch starts {cpu.cores} threads where the control group gives time for {cpu.usable:g}"
            yield warn("OMP_NUM_THREADS", found, cure)
        else:
            yield ok("OMP_NUM_THREADS", f"unset: torch starts {cpu.cores} threads")
        return
    first = value.split(",")[0].strip()
    if not first.isdigit() or int(first) < 1:
        yield fail("OMP_NUM_THREADS", f"{value!r} is no number of threads", cure)
    elif int(first) > cpu.usable:
        yield warn("OMP_NUM_THREADS", f"{first} threads for {cpu.usable:g} cores: they wait for each other", cure)
    elif int(first) < fitting and not facts.torch.available:
        yield warn("OMP_NUM_THREADS", f"{first}: a run uses {first} of {fitting} cores", cure)
    else:
        yield ok("OMP_NUM_THREADS", first)


def _compiler(facts: Facts) -> Iterator[Line]:
    found = facts.compiler
    slower = "runs on a CPU are several times slower without rlctl's kernels"
    if facts.environment.get("RLCTL_NO_KERNELS"):
        yield warn("C compiler", f"RLCTL_NO_KERNELS is set: {slower}", "unset RLCTL_NO_KERNELS")
    elif found.command is None:
        yield warn("C compiler", f"none: {slower}", "install gcc or clang, or set CC")
    elif found.error:
        yield warn(
            "C compiler", f"{found.command} does not work: {found.error}; {slower}", "install gcc, or set CC to another"
        )
    else:
        yield ok("C compiler", f"{found.command}, with OpenMP")


def _memory(facts: Facts) -> Iterator[Line]:
    memory = facts.memory
    if memory.total is None:
        yield ok("memory", "n/a: this system does not tell")
        return
    limited = memory.limit is not None and memory.limit < memory.total
    free = memory.available
    if limited and memory.limit is not None:
        left = memory.limit - (memory.used_of_limit or 0)
        free = min(left, free) if free is not None else left
    found = f"{gib(free)} free of {gib(memory.limit if limited else memory.total)}"
    found += f" that the control group allows (the machine has {gib(memory.total)})" if limited else ""
    if free is not None and free < LOW_MEMORY:
        yield warn("memory", found, "smaller batches and models, or a higher limit: the kernel kills what exceeds it")
    else:
        yield ok("memory", found)


def _shm(facts: Facts, *, needed: bool) -> Iterator[Line]:
    shm = facts.shm
    if shm is None or shm.total is None:
        if needed:
            why = shm.error if shm else "not there"
            yield fail("/dev/shm", why, "Ray and the sync of weights need it; docker run --shm-size=8g")
        return
    found = f"{gib(shm.free)} free of {gib(shm.total)}"
    total = facts.memory.limit or facts.memory.total or 0
    wanted = max(LOW_SHM, int(WANTED_SHM_SHARE * total))
    cure = f"docker run --shm-size={max(1, round(wanted / GIB))}g, or mount -o remount,size=... /dev/shm"
    if shm.total < LOW_SHM:
        level = fail if needed else warn
        yield level("/dev/shm", f"{found}: too small for Ray and for weights on their way to samplers", cure)
    elif needed and (shm.free or 0) < wanted:
        yield warn("/dev/shm", f"{found}; Ray wants 30 % of the memory, {gib(wanted)}", cure)
    else:
        yield ok("/dev/shm", found)


def _space(space: Space) -> Iterator[Line]:
    name, where = space.purpose, f"{space.path}: "
    if space.error:
        variable = {
            "runs (run.dir)": "set run.dir to a folder that you may write to",
            "rlctl's cache": "set RLCTL_CACHE_DIR: kernels are built anew in each run until then",
            "the hub's cache": "set HF_HOME to a folder that you may write to",
            "temporary files": "set TMPDIR to a folder that you may write to",
        }
        level = fail if name in ("runs (run.dir)", "temporary files") else warn
        yield level(name, f"{where}{space.error}", variable.get(name, "choose another folder"))
    elif space.free is not None and space.free < MIN_FREE:
        yield fail(name, f"{where}{gib(space.free)} free", "free some space")
    elif space.free is not None and space.free < LOW_FREE and name in ("runs (run.dir)", "the hub's cache"):
        yield warn(
            name, f"{where}{gib(space.free)} free",
            "16 bytes a parameter go into a checkpoint, 2 to 4 into a model: trainer.keep_last bounds them",
        )  # fmt: skip
    else:
        yield ok(name, f"{where}{gib(space.free)} free")


def _hub(facts: Facts) -> Iterator[Line]:
    hub = facts.hub
    if hub.offline:
        yield ok("hub", "HF_HUB_OFFLINE is set: only what lies in the cache")
    elif hub.reachable:
        yield ok("hub", f"{hub.endpoint} can be reached")
    else:
        yield warn(
            "hub", hub.reason,
            "HF_HUB_OFFLINE=1 and a filled cache, HF_ENDPOINT for a mirror, or https_proxy for a proxy",
        )  # fmt: skip
    if facts.proxies:
        yield ok("proxies", ", ".join(facts.proxies))


def _ports(facts: Facts, *, wanted: Collection[int]) -> Iterator[Line]:
    taken = [port for port in facts.ports if port.taken]
    words = ", ".join(f"{port.number} ({port.purpose})" for port in taken)
    if any(port.number in wanted for port in taken):
        yield warn("ports", f"taken: {words}", "nothing, if a cluster of yours listens there; else free them")
    elif taken:
        yield ok("ports", f"taken: {words}")
    elif facts.ports:
        yield ok("ports", f"free: {', '.join(str(port.number) for port in facts.ports)}")


def _open_files(facts: Facts) -> Iterator[Line]:
    if facts.open_files is None:
        yield ok("open files", "no limit")
    elif facts.open_files < LOW_OPEN_FILES:
        yield warn("open files", f"at most {facts.open_files} (ulimit -n)", "ulimit -n 65536, as Ray advises")
    else:
        yield ok("open files", f"at most {facts.open_files} (ulimit -n)")


def _clock(facts: Facts) -> Iterator[Line]:
    skew = facts.hub.skew_s
    cure = "set the clock: `timedatectl set-ntp true`"
    if facts.clock_behind_s is not None and facts.clock_behind_s > SKEW_S:
        yield warn("clock", f"{facts.clock_behind_s / 3600:.1f} h before the date of rlctl's own files", cure)
    elif skew is not None and abs(skew) > SKEW_S:
        side = "ahead of" if skew > 0 else "behind"
        yield warn("clock", f"{abs(skew) / 60:.0f} min {side} the hub's: certificates and signatures fail", cure)
    else:
        yield ok("clock", "agrees with the hub's" if skew is not None else "plausible; not compared with another")
