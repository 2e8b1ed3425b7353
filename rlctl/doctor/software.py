"""Python and its packages, from their metadata: nothing is imported here but by a process of its own."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rlctl import bounded
from rlctl.doctor.facts import BackendFacts, Compiler, Device, Python, Torch, Unmet

TORCH_TIMEOUT_S = 60.0
"""Importing torch takes 3 s from a warm disk, and a minute from a cold network one."""
COMPILER_TIMEOUT_S = 20.0


def python() -> Python:
    inside = sys.prefix != sys.base_prefix or bool(os.environ.get("CONDA_PREFIX"))
    return Python(platform.python_version(), platform.python_implementation(), inside)


def packages(names: Iterable[str]) -> dict[str, str]:
    """Those of the names that are installed, with their versions."""
    found = ((name, _version(name)) for name in names)
    return {name: version for name, version in found if version is not None}


def damaged(names: Iterable[str]) -> dict[str, str]:
    """Those of the names that are there without telling their version, as a killed pip leaves them; and why."""
    found = ((name, _fault(name)) for name in names)
    return {name: fault for name, fault in found if fault}


def _fault(name: str) -> str:
    try:
        return "" if metadata.version(name) else "its metadata name no version"
    except metadata.PackageNotFoundError:
        return ""
    except (OSError, ValueError, KeyError) as error:
        return f"its metadata cannot be read: {type(error).__name__}: {error}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name) or None
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError):  # absent, or `damaged`
        return None


def unmet(installed: Iterable[str], *, extras: Sequence[str]) -> list[Unmet]:
    """What rlctl, with these extras, and the installed packages ask for, and is not so."""
    wanted = [("rlctl", tuple(extras)), *((name, ()) for name in installed)]
    return [missing for name, chosen in wanted for missing in _unmet_of(name, chosen)]


def _unmet_of(name: str, extras: Sequence[str]) -> Iterator[Unmet]:
    try:
        from packaging.requirements import InvalidRequirement, Requirement

        texts = metadata.requires(name) or []
    except ModuleNotFoundError:  # of packaging, or of the package's metadata, whose error is one of these
        return
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        found = _version(requirement.name)
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            yield Unmet(name, requirement.name, str(requirement.specifier), found, core=name == "rlctl")


PROBE = """
import json, sys
try:
    import torch
except ModuleNotFoundError as error:
    state = "absent" if error.name == "torch" else "broken"
    print("FACTS" + json.dumps({"state": state, "error": str(error)}))
    sys.exit()
cuda, facts = torch.cuda, {"state": "ok", "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None)}
(torch.ones(2, 2) @ torch.ones(2, 2)).sum().item()
facts["available"] = cuda.is_available()
if facts["available"]:
    facts["architectures"] = cuda.get_arch_list()
    found = [cuda.get_device_properties(i) for i in range(cuda.device_count())]
    facts["devices"] = [[p.name, [p.major, p.minor], p.total_memory] for p in found]
print("FACTS" + json.dumps(facts))
"""


def torch(timeout_s: float = TORCH_TIMEOUT_S, *, executable: str = sys.executable) -> Torch:
    """What torch is like, asked of a process of its own: a broken one may crash or hang."""
    try:
        done = bounded.run([executable, "-c", PROBE], timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        return Torch("timeout", f"importing it took more than {timeout_s:g} s")
    except OSError as error:
        return Torch("broken", f"{executable}: {error.strerror or error}")
    answers = [line for line in done.stdout.splitlines() if line.startswith("FACTS")]
    if not answers:
        return Torch("broken", _last_words(done))
    facts: dict[str, Any] = json.loads(answers[-1].removeprefix("FACTS"))
    devices = [Device(name, (major, minor), memory) for name, (major, minor), memory in facts.pop("devices", [])]
    return Torch(devices=devices, **facts)


LOAD = """
import sys
from rlctl.backends import registry
from rlctl.errors import RlctlError
try:
    registry.get(sys.argv[1]).load("backend")
except RlctlError as error:
    print("ERROR" + error.message + "\\0" + error.hint)
"""


def backend(name: str, timeout_s: float = TORCH_TIMEOUT_S) -> BackendFacts:
    """Whether the class of a registered backend can be imported."""
    try:
        done = bounded.run([sys.executable, "-c", LOAD, name], timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        return BackendFacts(name, f"importing it took more than {timeout_s:g} s")
    for line in done.stdout.split("ERROR", 1)[1:]:
        message, _, hint = line.strip().partition("\0")
        return BackendFacts(name, message, hint)
    return BackendFacts(name, "" if done.returncode == 0 else _last_words(done))


def compiler() -> Compiler:
    """The C compiler that builds the kernels, tried on a line of C with OpenMP."""
    command = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if command is None:
        return Compiler()
    try:
        with tempfile.TemporaryDirectory(prefix="rlctl-doctor-") as folder:
            source = Path(folder, "try.c")
            source.write_text("#include <math.h>\nfloat twice(float x) { return fabsf(x) * 2; }\n")
            words = [*command.split(), "-O1", "-fPIC", "-shared", "-fopenmp", str(source), "-o", f"{folder}/try.so"]
            done = bounded.run(words, timeout_s=COMPILER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Compiler(command, f"did not answer within {COMPILER_TIMEOUT_S:g} s")
    except OSError as error:
        return Compiler(command, error.strerror or str(error))
    return Compiler(command, "" if done.returncode == 0 else _last_words(done))


def system() -> str:
    libc = " ".join(platform.libc_ver())
    return f"{platform.system()} {platform.machine()}, {libc or sysconfig.get_platform()}"


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    ended = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return lines[-1][:300] if lines else ended
