"""What is sent is what is expected, and arrives as it was sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlctl.backends.ray import sync
from rlctl.backends.ray.sync import TensorRecord, differences, require_same
from rlctl.errors import BackendError

EXPECTED = {"embed": TensorRecord((8, 4), "float32"), "norm": TensorRecord((4,), "float32")}


def test_the_same_names_and_shapes_differ_in_nothing() -> None:
    assert differences({name: replace(r, checksum=7) for name, r in EXPECTED.items()}, EXPECTED) is None


def test_a_missing_name_is_told_with_both_counts() -> None:
    assert differences({"embed": EXPECTED["embed"]}, EXPECTED) == "sent 1, expected 2: 1 missing (norm)"


def test_a_head_that_the_sampler_ties_itself_is_unknown_to_it() -> None:
    sent = {**EXPECTED, "lm_head": EXPECTED["embed"]}
    assert differences(sent, EXPECTED) == "sent 3, expected 2: 1 unknown (lm_head)"


def test_an_empty_shard_is_told_apart_from_a_wrong_shape() -> None:
    sent = {**EXPECTED, "norm": TensorRecord((0,), "float32")}
    told = differences(sent, EXPECTED)
    assert told is not None
    assert "1 empty: gather them first (norm)" in told


def test_another_dtype_is_another_form() -> None:
    sent = {**EXPECTED, "norm": TensorRecord((4,), "bfloat16")}
    with pytest.raises(BackendError, match=r"norm is bfloat16\[4\], not float32\[4\]"):
        require_same(sent, EXPECTED)


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"embed": torch.randn(8, 4), "norm": torch.randn(4).bfloat16(), "scale": torch.tensor(2.0)}


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    sent = sync.write(tmp_path / "w", weights().items(), version=3)
    got = dict(sync.read([str(f) for f in sent.files], sent.manifest))
    assert sent.version == 3
    assert got.keys() == weights().keys()
    assert all(torch.equal(got[name], tensor) for name, tensor in weights().items())
    assert sent.manifest["norm"].dtype == "bfloat16"


def test_large_models_travel_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "PIECE_BYTES", 130)
    sent = sync.write(tmp_path / "w", weights().items(), version=0)
    assert len(sent.files) == 2
    assert len(dict(sync.read([str(f) for f in sent.files], sent.manifest))) == 3


def test_a_flipped_bit_is_found_and_named(tmp_path: Path) -> None:
    sent = sync.write(tmp_path / "w", weights().items(), version=0)
    content = bytearray(sent.files[0].read_bytes())
    content[-1] ^= 1
    sent.files[0].write_bytes(content)
    with pytest.raises(BackendError, match="arrived with other values"):
        list(sync.read([str(f) for f in sent.files], sent.manifest))


def test_a_full_memory_is_told_and_leaves_no_files(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(BackendError, match="cannot be written"):
        sync.write(blocked / "w", weights().items(), version=0)
