"""Every test runs offline, with no RLCTL_ variable of the developer's, and a cache folder of its own."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.needs import needs

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"
# Idle OpenMP threads that spin take the processor from the other process that runs tests.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# Two threads in each of several processes on two cores wait for one another more than they compute: what took 9 s alone
# took 100 s beside three others. The engine's own tests take two all the same.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# torch would start a pool of compilers, each with an import of torch, for kernels of which a test makes a few.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
for _name in [name for name in os.environ if name.startswith("RLCTL_")]:
    del os.environ[_name]

# How long an example takes says more of the machine than of the code.
settings.register_profile("rlctl", deadline=None)
settings.load_profile("rlctl")

SHARED = Path(__file__).resolve().parents[2] / "shared"


RAY_FIXTURES = {"ray_stack", "cluster", "shared_ray"}
BESIDE_RAY = {"trackers", "doctor", "test_resume_test.py"}
"""What is left for the process that is done first, so that both take about as long (scripts/test.sh)."""
TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever shares the cluster runs in one process (scripts/test.sh)."""
    for item in items:
        if RAY_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.ray)
        elif any(part in BESIDE_RAY for part in item.path.relative_to(TESTS).parts):
            item.add_marker(pytest.mark.beside_ray)


@pytest.fixture(autouse=True)
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCTL_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "rlctl-cache"))


@pytest.fixture
def fake_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend `fake` is registered."""
    monkeypatch.setenv("RLCTL_PLUGINS", "tests.fake_plugin")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of forty sums, for runs of the fake backend."""
    from tests.runs import write_problems

    return write_problems(tmp_path)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of cases and data beside the checkout."""
    needs("the folder of cases and data", there=SHARED.is_dir(), how=f"it lies in {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Llama of 2 layers with a byte tokenizer: 260 words, ids 256 = end, 257 = pad."""
    from tests.tiny import save_tiny_llama

    folder = tmp_path_factory.mktemp("tiny-llama")
    save_tiny_llama(folder)
    return folder


@pytest.fixture(scope="session")
def ray_stack() -> None:
    """Ray, vLLM and DeepSpeed."""
    missing = [name for name in ("ray", "vllm", "deepspeed") if importlib.util.find_spec(name) is None]
    needs(", ".join(missing), there=not missing, how="make test installs it on Linux x86-64")


@pytest.fixture(scope="session")
def cluster(ray_stack: None) -> Iterator[None]:
    """A Ray cluster of this machine with room for every test, to which backends connect in place of starting one."""
    import ray

    # Actors import the tests' own helpers too, and rlctl from the checkout.
    environment = {"env_vars": {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}}
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


@pytest.fixture(scope="session")
def shared_ray(cluster: None, llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running Ray backend of two ranks and a sampler for the job of the contract's tests."""
    from dataclasses import replace

    from rlctl.backends.ray.backend import RayBackend
    from rlctl.backends.ray.settings import RaySettings
    from tests.backends.test_contract import JOB
    from tests.ray import shared

    settings = RaySettings(trainer_ranks=2, dtype="float32", device="cpu", kv_cache_gb=0.25)
    running = shared.start(
        lambda: RayBackend(settings, replace(JOB, model=str(llama))), tmp_path_factory.mktemp("first") / "saved"
    )
    yield running
    running.stop()


@pytest.fixture(scope="session")
def http_server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`rlctl serve` of the local backend in float32, which lends the tiny Llama."""
    from tests.http import servers

    server = servers.start(
        tmp_path_factory.mktemp("serve"), f'serve.models=["{tiny_llama}"]', "local.dtype=float32", "serve.beat_s=0.2"
    )
    yield server
    server.end()
