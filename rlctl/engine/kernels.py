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
from ctypes import c_float, c_int64, c_void_p
from pathlib import Path

import torch

from rlctl.engine.peak import cache_folder

FOLDER = Path(__file__).parent
HEADER = FOLDER / "element.h"
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
DEFINES = {torch.bfloat16: ("-DBF16",), torch.float32: ()}

Kernel = Callable[..., int]

_ARGUMENTS = {
    "decode_attention": (*(c_void_p,) * 12, *(c_int64,) * 6, c_float),
    "add_rms_norm": (*(c_void_p,) * 4, *(c_int64,) * 2, c_float),
    "rms_norm_backward": (*(c_void_p,) * 6, *(c_int64,) * 3, c_float),
    "rotate": (*(c_void_p,) * 6, *(c_int64,) * 6, c_float),
    "rotate_backward": (*(c_void_p,) * 3, *(c_int64,) * 3),
    "silu_mul": (*(c_void_p,) * 3, *(c_int64,) * 3),
    "silu_mul_backward": (*(c_void_p,) * 3, *(c_int64,) * 2),
    "softmax": (*(c_void_p,) * 3, *(c_int64,) * 6, c_float),
    "softmax_backward": (*(c_void_p,) * 5, *(c_int64,) * 6, c_float),
    "row_dots": (*(c_void_p,) * 3, *(c_int64,) * 2),
    "adamw": (*(c_void_p,) * 4, c_int64, *(c_float,) * 9),
    "publish": (c_void_p, c_void_p, c_int64),
    "statistics": (*(c_void_p,) * 5, *(c_int64,) * 2, c_float),
    "to_gradient": (*(c_void_p,) * 6, *(c_int64,) * 2, c_float),
    "add_into": (c_void_p, c_void_p, c_int64),
    "draw": (*(c_void_p,) * 5, *(c_int64,) * 2, c_float),
}
"""Pointers first, then sizes, then numbers, as the sources say."""


def decode_attention(dtype: torch.dtype, width: int) -> Kernel | None:
    """Attention of a decode step for elements of that type and heads of that width; None as for `elementwise`."""
    library = _library("decode_attention", dtype, f"-DWIDTH={width}")
    return None if library is None else _function(library, "decode_attention")


def draw(dtype: torch.dtype) -> Kernel | None:
    """Draws from the full softmax of logits of that type; None as for `elementwise`."""
    library = _library("draw", dtype)
    return None if library is None else _function(library, "draw")


class Elementwise:
    """The functions of `elementwise.c` for one element type."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.add_rms_norm = _function(library, "add_rms_norm")
        self.rms_norm_backward = _function(library, "rms_norm_backward")
        self.rotate = _function(library, "rotate")
        self.rotate_backward = _function(library, "rotate_backward")
        self.silu_mul = _function(library, "silu_mul")
        self.silu_mul_backward = _function(library, "silu_mul_backward")


class AttentionTiles:
    """The functions of `attention_tiles.c` for one element type."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.softmax = _function(library, "softmax")
        self.softmax_backward = _function(library, "softmax_backward")
        self.row_dots = _function(library, "row_dots")


@functools.cache
def attention_tiles(dtype: torch.dtype) -> AttentionTiles | None:
    """None as for `elementwise`."""
    library = _library("attention_tiles", dtype)
    return None if library is None else AttentionTiles(library)


class Logits:
    """The functions of `logits.c` for one element type."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.statistics = _function(library, "statistics")
        self.to_gradient = _function(library, "to_gradient")
        self.add_into = _function(library, "add_into")


@functools.cache
def logits(dtype: torch.dtype) -> Logits | None:
    """None as for `elementwise`."""
    library = _library("logits", dtype)
    return None if library is None else Logits(library)


class AdamW:
    """The functions of `adamw.c` for compute weights of one type."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.adamw = _function(library, "adamw")
        self.publish = _function(library, "publish")
        self.adamw.restype = self.publish.restype = c_int64  # type: ignore[attr-defined]


@functools.cache
def adamw(dtype: torch.dtype) -> AdamW | None:
    """None as for `elementwise`."""
    library = _library("adamw", dtype)
    return None if library is None else AdamW(library)


@functools.cache
def elementwise(dtype: torch.dtype) -> Elementwise | None:
    """None without a C compiler, for other types than float32 and bfloat16, or with RLCTL_NO_KERNELS set."""
    library = _library("elementwise", dtype)
    return None if library is None else Elementwise(library)


def _function(library: ctypes.CDLL, name: str) -> Kernel:
    function = getattr(library, name)
    function.argtypes = _ARGUMENTS[name]
    kernel: Kernel = function
    return kernel


def everywhere() -> bool:
    """Whether the kernels can be built for every type: a model is taken apart in one and used in another."""
    return all(elementwise(dtype) is not None and attention_tiles(dtype) is not None for dtype in DEFINES)


@functools.cache
def _library(name: str, dtype: torch.dtype, *defines: str) -> ctypes.CDLL | None:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if dtype not in DEFINES or compiler is None or os.environ.get("RLCTL_NO_KERNELS"):
        return None
    return _built(FOLDER / f"{name}.c", compiler, (*FLAGS, *DEFINES[dtype], *defines))


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
            subprocess.run(
                [*compiler.split(), *flags, str(source), "-o", str(built), "-lm"],
                check=True,
                capture_output=True,
                timeout=120,
            )
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
