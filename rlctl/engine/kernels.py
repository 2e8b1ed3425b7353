"""Build and load the C kernel of `decode_attention.c`, once for each machine, element type and width of a head.

Decoding is a thousand small tensor operations a token; in torch, attention alone is 25 of them a layer and a third of
the time. The kernel replaces those on a CPU where a C compiler is at hand; elsewhere `decode.py` computes the same
in torch, slower.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from rlctl.engine.peak import cache_folder

SOURCE = Path(__file__).with_name("decode_attention.c")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
DEFINES = {torch.bfloat16: ("-DBF16",), torch.float32: ()}

Kernel = Callable[..., int]


@functools.cache
def decode_attention(dtype: torch.dtype, width: int) -> Kernel | None:
    """The C function for elements of that type and heads of that width.

    None without a C compiler, or with RLCTL_NO_KERNELS set.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if dtype not in DEFINES or compiler is None or os.environ.get("RLCTL_NO_KERNELS"):
        return None
    library = _built(compiler, (*FLAGS, *DEFINES[dtype], f"-DWIDTH={width}"))
    return None if library is None else ctypes.CDLL(str(library)).decode_attention


def _built(compiler: str, flags: tuple[str, ...]) -> Path | None:
    """The shared library, from the cache folder or built into it; None when the compiler or the folder refuses."""
    key = "\0".join([SOURCE.read_text(), compiler, *flags, _cpu_features()])
    library = cache_folder() / f"decode_attention-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if library.exists():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as aside:
            built = Path(aside) / library.name
            subprocess.run(
                [*compiler.split(), *flags, str(SOURCE), "-o", str(built), "-lm"],
                check=True,
                capture_output=True,
                timeout=120,
            )
            built.replace(library)
    except (OSError, subprocess.SubprocessError):
        return None
    return library


def _cpu_features() -> str:
    """What -march=native depends on: a cache folder may be shared by machines whose processors have one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
