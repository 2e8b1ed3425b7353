"""The real HTTP client of release 0.1.2 against the wire-compatible server, where the package is installed.

As published it cannot be imported on a machine without vLLM and Ray: its package imports both. So the modules that
it only takes one name from are filled in here, and its own two, config and http_client, are the real ones.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlctl.backends.arctic.backend import ArcticBackend
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.errors import BackendError
from tests.arctic import server as servers
from tests.arctic.conftest import forget_platform
from tests.arctic.platform import Platform
from tests.arctic.server import Server
from tests.backends.test_contract import LOSS, num_tokens, run, sampled


def stub(name: str, **names: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module


@pytest.fixture
def real_client(published: Path) -> Iterator[None]:
    """Makes `arctic_platform.rl.http_client` importable."""
    for library in ("aiohttp", "requests"):
        pytest.importorskip(library)
    forget_platform()
    for package in ("arctic_platform.rl", "arctic_platform.rl.utils"):
        stub(package, __path__=[str(published.parent / package.replace(".", "/"))])
    stub("arctic_platform.rl.http_server", ArcticRLHTTPServerState=object)
    stub("arctic_platform.rl.ray_cluster", primary_ip=lambda: "127.0.0.1")

    class Timers:
        def __init__(self, **_: Any) -> None: ...
        def start(self, *_: Any) -> None: ...
        def stop_and_print_elapsed(self, *_: Any) -> None: ...

    stub("arctic_platform.rl.utils.debug", pr0=lambda *_: None, SynchronizedWallClockTimerSimpleDummy=Timers)
    importlib.import_module("arctic_platform.rl.http_client")
    yield
    forget_platform()


def backend_at(server: Server, job: Any, tmp_path: Path) -> ArcticBackend:
    settings = ArcticSettings(
        host="127.0.0.1", port=server.port, launch_server=False, destroy_foreign_jobs=True,
        attn_implementation="eager", checkpoint_path=str(tmp_path / "server"),
    )  # fmt: skip
    return ArcticBackend(settings, job)


@pytest.mark.slow
def test_the_published_client_trains_and_saves(
    real_client: None, serve: Callable[..., Server], platform: Platform, arctic_job: Any, tmp_path: Path
) -> None:
    async def work(backend: Any) -> Any:
        rows = await sampled(backend, 1, 2)
        before = await backend.log_probs(rows)
        stats = await backend.forward_backward(rows, loss=LOSS, loss_denominator=num_tokens(rows))
        step = await backend.optim_step(0.0)
        await backend.sync_weights()
        await backend.save(tmp_path / "saved")
        return before, stats, step

    before, stats, step = run(backend_at(serve("0.1.2"), arctic_job, tmp_path), work)
    assert len(before) == 8
    assert stats.tokens > 0
    assert step.grad_norm > 0
    assert (tmp_path / "saved" / "arctic.json").is_file()
    assert [asked["colocate"] for asked in platform.named("sync-weights")] == [True]
    assert platform.jobs == {}


class Bomb:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("exploded",))


def test_a_reply_that_holds_a_pickled_object_is_not_unpickled(
    real_client: None, serve: Callable[..., Server], arctic_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = serve("0.1.2")
    monkeypatch.setattr(servers, "_saved", lambda value: (servers.wire.torch_encode({"batch": Bomb()}), servers.OCTETS))
    with pytest.raises(BackendError, match="fwd_no_grad failed: UnpicklingError"):
        run(backend_at(server, arctic_job, tmp_path), score)
    assert not (tmp_path / "exploded").exists()
    assert pickle.dumps(Bomb())  # it would have exploded


async def score(backend: Any) -> None:
    await backend.log_probs(await sampled(backend, 1, n=2))
