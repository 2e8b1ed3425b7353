"""No byte of a checkpoint changes unnoticed, and no name decides what is the latest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.checkpoints import manifest, shelf
from rlctl.checkpoints.shelf import Keeping
from rlctl.errors import CheckpointError


def checkpoint(folder: Path, step: int, **metrics: float) -> Path:
    (folder / "adapter").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(bytes(range(100)) * 3)
    (folder / "adapter" / "config.json").write_text('{"r": 8}')
    (folder / "empty").touch()
    manifest.seal(folder, step=step, metrics=metrics, expected={})
    return folder


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("sealed") / "step_000007", 7, score=0.5)


def test_a_sealed_checkpoint_is_good(sealed: Path) -> None:
    read = manifest.verify(sealed)
    assert (read.step, read.metrics, read.num_bytes) == (7, {"score": 0.5}, 308)
    assert set(read.files) == {"weights.bin", "adapter/config.json", "empty"}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_in_any_file_is_found(sealed: Path, data: st.DataObject) -> None:
    # The manifest itself is one of the files.
    path = sealed / data.draw(st.sampled_from(["weights.bin", "adapter/config.json", manifest.MANIFEST]))
    content = path.read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    flipped = bytearray(content)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(flipped)
    try:
        with pytest.raises(CheckpointError, match=path.name):
            manifest.verify(sealed)
    finally:
        path.write_bytes(content)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_cut_short_or_made_longer_is_found(sealed: Path, data: st.DataObject) -> None:
    path = sealed / data.draw(st.sampled_from(["weights.bin", "adapter/config.json", "empty", manifest.MANIFEST]))
    content = path.read_bytes()
    length = data.draw(st.integers(0, len(content) + 3).filter(lambda n: n != len(content)))
    path.write_bytes((content + b"   ")[:length])
    try:
        with pytest.raises(CheckpointError, match=path.name):
            manifest.verify(sealed)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["weights.bin", "adapter/config.json", "empty", manifest.MANIFEST])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "step_000001", 1)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        manifest.verify(folder)


def test_a_file_that_does_not_read_back_as_meant_is_not_sealed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"half")
    with pytest.raises(OSError, match="a does not read back"):
        manifest.seal(tmp_path, step=1, metrics={}, expected={"a": "0" * 64})
    assert not (tmp_path / manifest.MANIFEST).exists()


def test_the_latest_is_the_one_whose_manifest_says_so(tmp_path: Path) -> None:
    # Field fault 124: the highest name is neither the latest nor whole.
    checkpoint(tmp_path / "step_000099", 10)
    checkpoint(tmp_path / "step_000002", 20)
    (tmp_path / "step_000100").mkdir()
    (tmp_path / "step_000100" / "weights.bin").write_bytes(b"half")
    (tmp_path / ".step_000101.partial").mkdir()
    found = shelf.latest(tmp_path)
    assert found.held is not None
    assert found.held.folder.name == "step_000002"
    assert len(found.complaints) == 1
    assert "step_000100 has no manifest.json" in found.complaints[0]


def test_a_damaged_one_is_passed_over_with_what_is_wrong(tmp_path: Path) -> None:
    checkpoint(tmp_path / "step_000001", 1)
    bad = checkpoint(tmp_path / "step_000002", 2)
    (bad / "weights.bin").write_bytes(b"short")
    found = shelf.latest(tmp_path)
    assert found.held is not None
    assert found.held.step == 1
    assert found.complaints == [f"{bad / 'weights.bin'} has 5 bytes, its manifest says 300."]


def test_leftovers_of_a_killed_run_are_cleared_away(tmp_path: Path) -> None:
    checkpoint(tmp_path / "step_000001", 1)
    for name in (".step_000002.partial", ".step_000000.removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights.bin").touch()
    assert shelf.tidy(tmp_path) == [".step_000000.removed", ".step_000002.partial"]
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


@pytest.mark.parametrize(
    ("keeping", "stay"),
    [
        (Keeping(None, None, None), [1, 2, 3, 4, 5, 6]),
        (Keeping(1, None, None), [6]),
        (Keeping(2, None, None), [5, 6]),
        (Keeping(1, 3, None), [3, 6]),
        (Keeping(1, None, "score"), [2, 6]),
        (Keeping(1, None, "-score"), [4, 6]),
        (Keeping(1, 3, "score"), [2, 3, 6]),
        (Keeping(1, None, "no such metric"), [6]),
    ],
)
def test_what_stays_is_what_was_asked_for(tmp_path: Path, keeping: Keeping, stay: list[int]) -> None:
    # Equal scores: the earlier one is the best. Step 5 has none.
    scores = {1: 0.2, 2: 0.9, 3: 0.9, 4: 0.1, 6: 0.5}
    for step in range(1, 7):
        checkpoint(shelf.folder_of(tmp_path, step), step, **({"score": scores[step]} if step in scores else {}))
    shelf.prune(tmp_path, keeping, good=6)
    assert sorted(each.step for each in shelf.list_held(tmp_path)[0]) == stay


def test_the_last_verified_one_stays_whatever_is_newer(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint(shelf.folder_of(tmp_path, step), step)
    shelf.prune(tmp_path, Keeping(1, None, None), good=1)
    assert sorted(each.step for each in shelf.list_held(tmp_path)[0]) == [1, 3]
