"""Which variant of a preset fits this machine, decided in seconds and explained in one line.

Looks at the machine without importing torch: CUDA through nvidia-smi, the hub through a short
connection, and not at all with HF_HUB_OFFLINE=1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rlctl import bounded
from rlctl.errors import ConfigError
from rlctl.presets import Preset, Variant

DRIVER_TIMEOUT_S = 5.0
"""Of nvidia-smi, which takes seconds to wake a machine with eight GPUs, and hangs when one is lost."""


@dataclass(frozen=True, slots=True)
class VariantChoice:
    """The variant taken (None for a preset without) and why, as one sentence."""

    variant: Variant | None
    reason: str


def choose(preset: Preset, name: str | None, *, said: Mapping[str, Any]) -> VariantChoice:
    """The variant called `name`, else the first whose requirements hold.

    `said` is everything the user set: a model or data path of theirs decides what must be reachable.
    Raises ConfigError when no variant fits.
    """
    if name is not None:
        return VariantChoice(preset.variant(name), "named by --variant")
    if not preset.variants:
        return VariantChoice(None, "")
    passed_over: list[str] = []
    for variant in preset.variants:
        if variant.by_name_only:
            continue
        obstacle = _obstacle(variant, (said, variant.settings, preset.settings))
        if obstacle is None:
            return VariantChoice(variant, "; ".join(passed_over) or "all it requires is here")
        passed_over.append(f"not {variant.name}: {obstacle}")
    raise ConfigError(
        f"no variant of preset {preset.name} fits this machine: {'; '.join(passed_over)}.",
        hint=f"name one with --variant: {', '.join(variant.name for variant in preset.variants)}.",
    )


def _obstacle(variant: Variant, sources: Sequence[Mapping[str, Any]]) -> str | None:
    """What keeps the variant from running here; None when nothing does. `sources` of settings: the first wins."""
    gigabytes = variant.requires.get("cuda_memory_gb")
    if gigabytes is not None and (reason := cuda_obstacle(gigabytes)):
        return reason
    if variant.requires.get("model") and (reason := _unreachable(_value(sources, "model", "path"), "model")):
        return reason
    if variant.requires.get("data"):
        return _unreachable(_value(sources, "data", "path") or _value(sources, "data", "source"), "dataset")
    return None


def _value(sources: Sequence[Mapping[str, Any]], block: str, key: str) -> Any:
    """The first value that is set; a block that is no table is complained of elsewhere."""
    tables = (source.get(block) for source in sources)
    values = (table.get(key) for table in tables if isinstance(table, Mapping))
    return next((value for value in values if value is not None), None)


def cuda_obstacle(gigabytes: float, environ: Mapping[str, str] | None = None) -> str | None:
    """Why no CUDA device with that much memory (GiB) can be used; None when one can."""
    environ = os.environ if environ is None else environ
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every device"
    command = shutil.which("nvidia-smi")
    if command is None:
        return "no CUDA device"
    if _torch_is_cpu_build():
        return "the installed torch is a CPU build"
    query = [command, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = bounded.run(query, timeout_s=DRIVER_TIMEOUT_S)
        answer.check_returncode()
        largest = max((float(line) / 1024 for line in answer.stdout.split("\n") if line.strip()), default=0.0)
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not answer within {DRIVER_TIMEOUT_S:g} s"
    except (subprocess.SubprocessError, OSError, ValueError):
        return "nvidia-smi names no device"
    return None if largest >= gigabytes else f"{largest:.0f} GiB of CUDA memory, {gigabytes:g} wanted"


def _torch_is_cpu_build() -> bool:
    try:
        return "+cpu" in metadata.version("torch")
    except metadata.PackageNotFoundError:
        return False


def _unreachable(where: Any, kind: str) -> str | None:
    from rlctl import hub, sources

    text = str(where)
    if missing := sources.missing(text):
        return f"{kind} {text} is not there: {missing}"
    if text.startswith(("embedded:", "pkg:", *sources.LOADERS)) or Path(text).exists():
        return None
    cached = hub.is_cached_model(text) if kind == "model" else hub.is_cached_dataset(text)
    if cached:
        return None
    reachable, reason = hub.hub_reachable()
    return None if reachable else f"{kind} {text} is not cached and {reason}"
