"""One Ray cluster for all tests of the Ray backend, and a model whose heads vLLM's CPU kernels take."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def stack() -> None:
    """Ray, vLLM and DeepSpeed; a CI without them fails, a developer's machine skips."""
    missing = [name for name in ("ray", "vllm", "deepspeed") if importlib.util.find_spec(name) is None]
    if missing:
        if os.environ.get("CI"):
            pytest.fail(f"{', '.join(missing)} not installed; scripts/install.sh should have done it")
        pytest.skip(f"needs {', '.join(missing)}: make test installs them on Linux x86-64")


@pytest.fixture(scope="session")
def cluster(stack: None) -> Iterator[None]:
    """A Ray cluster of this machine with room for every test, to which backends connect in place of starting one."""
    import ray

    # Actors import the tests' own helpers too, and rlctl from the checkout.
    environment = {"env_vars": {"PYTHONPATH": str(REPOSITORY)}}
    ray.init(
        num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random Llama of the contract, with heads of 32 numbers: the smallest that vLLM's CPU kernels take."""
    from tests.tiny import save_tiny_llama

    folder = tmp_path_factory.mktemp("wide-llama")
    save_tiny_llama(folder, head_dim=32)
    return folder
