"""Decode attention: the C kernel and the torch path against softmax written out, over rows of all lengths."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlctl.engine import kernels
from rlctl.engine.decode import DecodeStep, KvCache, KvShape

HEADS, KV_HEADS = 6, 2


def cache_of(prompts: list[int], n: int, *, width: int = 16, dtype: torch.dtype = torch.float32) -> KvCache:
    cache = KvCache(
        shape=KvShape(layers=1, heads=KV_HEADS, width=width), rows=len(prompts) * n, groups=len(prompts) + 1,
        prompt_tokens=max(prompts), new_tokens=70, like=torch.zeros(1, dtype=dtype),
    )  # fmt: skip
    kv = tuple(torch.randn(len(prompts), KV_HEADS, max(prompts), width).to(dtype) for _ in range(2))
    cache.enter({0: kv}, prompts, n=n)
    return cache


def written_out(cache: KvCache, q: Tensor, scale: float, window: int | None) -> Tensor:
    """Row by row, over the keys that are in the cache."""
    out = torch.empty(q.shape[0], 1, q.shape[1], q.shape[3])
    for row, (group, length) in enumerate(zip(cache.group_B, cache.lengths_B, strict=True)):
        prompt = int(cache.prompt_lengths_G[group])
        k, v = (
            torch.cat(
                [
                    (cache.prompt_k[0, group, :, :, :prompt].transpose(-1, -2), cache.prompt_v[0, group, :, :prompt])[
                        i
                    ],
                    cache.own_kv[i, 0, row, :, :length],
                ],
                dim=1,
            ).float()
            for i in (0, 1)
        )
        if window is not None:
            k, v = k[:, -window:], v[:, -window:]
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=0) for x in (k, v))
        weights = ((q[row].float() @ k.transpose(-1, -2)) * scale).softmax(-1)
        out[row, 0] = (weights @ v)[:, 0]
    return out


def run_and_compare(
    cache: KvCache, *, steps: int, window: int | None, tolerance: float, leave: list[list[int]] | None = None
) -> None:
    width, dtype = cache.shape.width, cache.own_kv.dtype
    for i in range(steps):
        if leave and i < len(leave):
            done = np.zeros(cache.num_rows, dtype=bool)
            done[[row for row in leave[i] if row < cache.num_rows]] = True
            cache.leave(done)
        if not cache.num_rows:
            return
        step = DecodeStep(cache)
        q = torch.randn(cache.num_rows, HEADS, 1, width).to(dtype)
        k, v = (torch.randn(cache.num_rows, KV_HEADS, 1, width).to(dtype) for _ in range(2))
        ours = step.attend(0, q, k, v, scale=0.3, window=window)
        torch.testing.assert_close(ours.float(), written_out(cache, q, 0.3, window), atol=tolerance, rtol=tolerance)


@pytest.fixture(params=["kernel", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(kernels, "decode_attention", lambda *_: None)
    elif kernels.decode_attention(torch.float32, 16) is None:
        pytest.fail("no C compiler: the kernel cannot be tested")
    return str(request.param)


@pytest.mark.parametrize("window", [None, 1, 5, 40])
def test_attention_of_a_step_equals_softmax_written_out(path: str, window: int | None) -> None:
    torch.manual_seed(0)
    run_and_compare(cache_of([33, 7, 70], 5), steps=66, window=window, tolerance=2e-6)


@pytest.mark.parametrize("width", [8, 64, 80])
def test_bfloat16_differs_by_its_rounding_only(path: str, width: int) -> None:
    # Results are rounded to 8 bits, 2**-8 of their size; in torch, scores and weights are too.
    torch.manual_seed(0)
    cache = cache_of([40, 3], 9, width=width, dtype=torch.bfloat16)
    run_and_compare(cache, steps=40, window=None, tolerance=2**-8 if path == "kernel" else 0.05)


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    n=st.integers(1, 10),
    leave=st.lists(st.lists(st.integers(0, 39), max_size=4), max_size=20),
    window=st.one_of(st.none(), st.integers(1, 50)),
)
@pytest.mark.parametrize("with_kernel", [True, False])
def test_rows_may_leave_in_any_order(
    with_kernel: bool, prompts: list[int], n: int, leave: list[list[int]], window: int | None
) -> None:
    torch.manual_seed(0)
    cache = cache_of(prompts, n)
    if not with_kernel:
        cache.kernel = None
    run_and_compare(cache, steps=20, window=window, tolerance=2e-6, leave=leave)


def test_a_group_whose_last_row_left_makes_room_for_another() -> None:
    cache = cache_of([5, 6], 2)
    assert (cache.free_rows, len(cache.free_groups)) == (0, 1)
    order = cache.leave(np.array([True, False, True, True]))
    assert order.tolist() == [1]
    assert (cache.free_rows, len(cache.free_groups)) == (3, 2)
    kv = tuple(torch.randn(1, KV_HEADS, 4, 16) for _ in range(2))
    cache.enter({0: kv}, [4], n=3)  # type: ignore[dict-item]
    run_and_compare(cache, steps=3, window=None, tolerance=2e-6)


def built_in(folder: Path, **environment: str) -> str:
    """What a fresh process with that cache folder says of the kernel."""
    code = "import torch; from rlctl.engine import kernels; print(kernels.decode_attention(torch.float32, 16))"
    env = {**os.environ, "RLCTL_CACHE_DIR": str(folder), **environment}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


def test_without_a_compiler_there_is_no_kernel_and_no_error(tmp_path: Path) -> None:
    assert built_in(tmp_path, CC="/nowhere/cc").strip() == "None"
    assert built_in(tmp_path, RLCTL_NO_KERNELS="1").strip() == "None"
    assert shutil.which("cc")
    assert "None" not in built_in(tmp_path)
    assert len(list(tmp_path.glob("*.so"))) == 1


def test_a_cache_folder_that_cannot_be_written_means_no_kernel(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert built_in(file).strip() == "None"


def test_a_compiler_that_writes_nonsense_means_no_kernel_and_leaves_nothing(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nfor x; do [ "$last" = -o ] && echo nonsense > "$x"; last=$x; done\n')
    compiler.chmod(0o755)
    cache = tmp_path / "cache"
    assert built_in(cache, CC=str(compiler)).strip() == "None"
    assert list(cache.glob("*.so")) == []


def test_a_library_that_cannot_be_loaded_is_built_again(tmp_path: Path) -> None:
    assert "None" not in built_in(tmp_path)
    (library,) = tmp_path.glob("*.so")
    library.write_text("cut off")
    assert "None" not in built_in(tmp_path)


def test_a_cache_folder_that_cannot_be_looked_into_means_no_kernel(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert built_in(loop / "cache").strip() == "None"
