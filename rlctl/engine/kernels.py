"""Build and load the C kernels of this folder, once for each machine, element type and what else they are built for.

Decoding is a thousand small tensor operations a token, and an update passes over memory many times for little
arithmetic. The kernels do such work in one pass on a CPU where a C compiler is at hand; elsewhere the same is computed
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
from ctypes import c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch

from rlctl import bounded
from rlctl.cache import cache_folder

FOLDER = Path(__file__).parent
HEADER = FOLDER / "element.h"
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
DEFINES = {torch.bfloat16: ("-DBF16",), torch.float32: ()}

COMPILER_TIMEOUT_S = 120.0

Kernel = Callable[..., int]

_SOURCES: dict[str, dict[str, tuple[Any, ...]]] = {
    "adamw": {
        "adamw": (*(c_void_p,) * 4, c_int64, *(c_float,) * 9),
        "publish": (c_void_p, c_void_p, c_int64),
    },
    "attention_tiles": {
        "softmax": (*(c_void_p,) * 3, *(c_int64,) * 6, c_float),
        "softmax_backward": (*(c_void_p,) * 5, *(c_int64,) * 6, c_float),
        "row_dots": (*(c_void_p,) * 3, *(c_int64,) * 2),
    },
    "decode_attention": {"decode_attention": (*(c_void_p,) * 12, *(c_int64,) * 6, c_float)},
    "draw": {"draw": (*(c_void_p,) * 5, *(c_int64,) * 2, c_float)},
    "elementwise": {
        "add_rms_norm": (*(c_void_p,) * 4, *(c_int64,) * 2, c_float),
        "rms_norm_backward": (*(c_void_p,) * 6, *(c_int64,) * 3, c_float),
        "rotate": (*(c_void_p,) * 6, *(c_int64,) * 6, c_float),
        "rotate_backward": (*(c_void_p,) * 3, *(c_int64,) * 3),
        "silu_mul": (*(c_void_p,) * 3, *(c_int64,) * 3),
        "silu_mul_backward": (*(c_void_p,) * 3, *(c_int64,) * 2),
    },
    "flash_amx": {
        "enable": (),
        "there": (*(c_void_p,) * 6, *(c_int64,) * 9, c_float),
        "back": (*(c_void_p,) * 10, *(c_int64,) * 11, c_float),
    },
    "logits": {
        "statistics": (*(c_void_p,) * 5, *(c_int64,) * 2, c_float),
        "to_gradient": (*(c_void_p,) * 6, *(c_int64,) * 2, c_float),
        "add_into": (c_void_p, c_void_p, c_int64),
    },
}
"""The functions of each source: pointers first, then sizes, then numbers."""

_COUNTS = {"adamw", "publish"}
"""Functions that give a number of values, 64 bits wide."""


class Functions:
    """The functions of one source, built for one element type, as attributes."""

    def __init__(self, library: ctypes.CDLL, arguments: dict[str, tuple[Any, ...]]) -> None:
        for name, types in arguments.items():
            function = getattr(library, name)
            function.argtypes = types
            function.restype = c_int64 if name in _COUNTS else c_int
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Kernel:
        raise AttributeError(f"no kernel {name}")


def elementwise(dtype: torch.dtype) -> Functions | None:
    """None without a C compiler, for other types than float32 and bfloat16, or with RLCTL_NO_KERNELS set."""
    return _functions("elementwise", dtype)


def attention_tiles(dtype: torch.dtype) -> Functions | None:
    """None as for `elementwise`."""
    return _functions("attention_tiles", dtype)


def flash_amx(dtype: torch.dtype) -> Functions | None:
    """None as for `elementwise`; its `enable` tells whether the machine has the units."""
    return _functions("flash_amx", dtype)


def logits(dtype: torch.dtype) -> Functions | None:
    """None as for `elementwise`."""
    return _functions("logits", dtype)


def adamw(dtype: torch.dtype) -> Functions | None:
    """For compute weights of that type; None as for `elementwise`."""
    return _functions("adamw", dtype)


def draw(dtype: torch.dtype) -> Kernel | None:
    """Draws from the full softmax of logits of that type; None as for `elementwise`."""
    found = _functions("draw", dtype)
    return None if found is None else found.draw


def decode_attention(dtype: torch.dtype, width: int) -> Kernel | None:
    """Attention of a decode step for elements of that type and heads of that width; None as for `elementwise`."""
    found = _functions("decode_attention", dtype, f"-DWIDTH={width}")
    return None if found is None else found.decode_attention


def everywhere() -> bool:
    """Whether the kernels can be built for every type: a model is taken apart in one and used in another."""
    return all(elementwise(dtype) is not None and attention_tiles(dtype) is not None for dtype in DEFINES)


@functools.cache
def _functions(source: str, dtype: torch.dtype, *defines: str) -> Functions | None:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if dtype not in DEFINES or compiler is None or os.environ.get("RLCTL_NO_KERNELS"):
        return None
    library = _built(FOLDER / f"{source}.c", compiler, (*FLAGS, *DEFINES[dtype], *defines))
    return None if library is None else Functions(library, _SOURCES[source])


def _built(source: Path, compiler: str, flags: tuple[str, ...]) -> ctypes.CDLL | None:
    """The shared library, from the cache folder or built into it.

    None when the compiler or the folder refuses, or what came out cannot be loaded.
    """
    key = "\0".join([source.read_text(), HEADER.read_text(), compiler, *flags, _cpu_features()])
    library = cache_folder() / f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    try:
        if library.exists():
            return ctypes.CDLL(str(library))
    except OSError:
        # Built by a compiler that failed half-way, or not for this system: once more.
        pass
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as aside:
            built = Path(aside) / library.name
            command = [*compiler.split(), *flags, str(source), "-o", str(built), "-lm"]
            bounded.run(command, timeout_s=COMPILER_TIMEOUT_S).check_returncode()
            ctypes.CDLL(str(built))
            built.replace(library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu_features() -> str:
    """What -march=native depends on: a cache folder may be shared by machines whose processors have one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
