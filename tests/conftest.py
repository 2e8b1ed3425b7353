"""Every test runs offline, with no RLCTL_ variable of the developer's, and a cache folder of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"
for _name in [name for name in os.environ if name.startswith("RLCTL_")]:
    del os.environ[_name]

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(autouse=True)
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCTL_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "rlctl-cache"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of cases and data beside the checkout; a CI without it fails, a developer's machine skips."""
    if not SHARED.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{SHARED} is missing")
        pytest.skip(f"{SHARED} is not here")
    return SHARED


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Llama of 2 layers with a byte tokenizer: 260 words, ids 256 = end, 257 = pad."""
    from tests.tiny import save_tiny_llama

    folder = tmp_path_factory.mktemp("tiny-llama")
    save_tiny_llama(folder)
    return folder
