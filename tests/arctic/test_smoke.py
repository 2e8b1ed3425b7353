"""Six steps of a whole run through the adapter: against the wire-compatible server, and beside the local engine.

`Beside` lets both compute every verb of a run on the same samples, so that their numbers can be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlctl import config, loop, verdict
from rlctl.backends.arctic.backend import ArcticBackend
from rlctl.backends.base import Backend
from rlctl.backends.local.backend import LocalBackend
from rlctl.backends.local.settings import LocalSettings
from rlctl.prepare import prepare
from tests.arctic.platform import Platform
from tests.arctic.server import Server


class Beside(Backend[Any]):
    """Arctic's backend, with a local one that is told the same; `pairs` are (what, arctic's number, the local one)."""

    def __init__(self, arctic: ArcticBackend, local: LocalBackend) -> None:
        super().__init__(arctic.settings, arctic.job)
        self.arctic, self.local = arctic, local
        self.pairs: list[tuple[str, Any, Any]] = []

    async def start(self) -> Any:
        await self.local.start()
        return await self.arctic.start()

    async def generate(self, prompts: Any, **kwargs: Any) -> Any:
        groups = await self.arctic.generate(prompts, **kwargs)
        self.generate_stats = self.arctic.generate_stats
        return groups

    async def log_probs(self, rows: Any, *, reference: bool = False) -> Any:
        mine = await self.arctic.log_probs(rows, reference=reference)
        theirs = await self.local.log_probs(rows, reference=reference)
        self.pairs += [("log_probs", m, t) for m, t in zip(mine, theirs, strict=True)]
        return mine

    async def forward_backward(self, rows: Any, **kwargs: Any) -> Any:
        mine = await self.arctic.forward_backward(rows, **kwargs)
        theirs = await self.local.forward_backward(rows, **kwargs)
        self.pairs.append(("loss", mine.loss, theirs.loss))
        self.pairs.append(("entropy", mine.entropy_sum / mine.tokens, theirs.entropy_sum / theirs.tokens))
        assert mine.flops > theirs.flops  # the platform computes a prompt anew for each of its completions
        return mine

    async def optim_step(self, lr: float) -> Any:
        mine, theirs = await self.arctic.optim_step(lr), await self.local.optim_step(lr)
        self.pairs.append(("grad_norm", mine.grad_norm, theirs.grad_norm))
        self.pairs.append(("lr", mine.lr, theirs.lr))
        return mine

    async def sync_weights(self) -> Any:
        await self.local.sync_weights()
        return await self.arctic.sync_weights()

    async def save(self, path: Path) -> None:
        await self.arctic.save(path)

    async def load(self, path: Path) -> None:
        await self.arctic.load(path)

    async def close(self) -> None:
        await self.local.close()
        await self.arctic.close()


SMOKE = {
    "trainer.old_log_probs": "always", "trainer.train_batch_size": 4, "trainer.mini_batch_size": 2, "rollout.n": 4,
    "rollout.max_response_length": 24, "rollout.temperature": 1.3, "data.eval_size": 8,
    "algorithm.kl_coef": 0.01, "trainer.steps": 6,
    "reward.functions": ["tests.arctic.test_smoke:letters"],
}  # fmt: skip


def letters(problem: Any, completion: str) -> float:
    """A reward that differs between any two completions that differ."""
    return sum(map(ord, completion)) % 97 / 97


@pytest.mark.slow
@pytest.mark.parametrize(("release", "package", "client"), [("head", "head", "unified"), ("0.1.2", "v012", "legacy")])
def test_six_steps_are_those_of_the_local_backend(
    release: str, package: str, client: str, installed: Any, serve: Callable[..., Server], platform: Platform,
    tmp_path: Path,
) -> None:  # fmt: skip
    installed(package)
    server = serve(release)
    chosen = {
        "backend": "arctic", "remote_backend.arctic.client": client, "remote_backend.arctic.port": server.port,
        "remote_backend.arctic.launch_server": False, "remote_backend.arctic.destroy_foreign_jobs": True,
        "remote_backend.arctic.checkpoint_path": str(tmp_path), "remote_backend.arctic.gpu": "NVIDIA H200",
    }  # fmt: skip
    settings = config.load(preset="smoke", options={k: ("test", v) for k, v in {**SMOKE, **chosen}.items()}).settings
    prepared = prepare(settings)
    arctic = loop.backend_for(prepared)
    both = Beside(arctic, LocalBackend(LocalSettings(dtype="float32"), arctic.job))  # type: ignore[arg-type]
    outcome = asyncio.run(
        loop.run(prepared, backend=both, reporter=loop.Reporter(), files=None, keep_reports=True, evaluate=False)
    )

    checks = verdict.judge(outcome.reports, outcome.info, wanted_steps=6)
    assert [check for check in checks if not check.holds] == []
    assert outcome.metrics[-1]["perf/mfu/actor"] > 0
    _must_agree(both.pairs)
    _must_show_defaults(platform, release)
    assert {kind for kind, _ in platform.calls} >= {"sleep-inference", "wake-inference", "weight-sync", "destroy"}
    assert platform.jobs == {}


def _must_agree(pairs: list[tuple[str, Any, Any]]) -> None:
    """bfloat16 keeps 8 bits, so log-probs lie within 2^-8 of each other, and ratios within their size times that."""
    assert sum(what == "grad_norm" for what, _, _ in pairs) >= 9
    for what, mine, theirs in pairs:
        if what == "log_probs":
            np.testing.assert_allclose(mine, theirs, rtol=2**-7, atol=5e-3)
        elif what == "loss":
            assert mine == pytest.approx(theirs, abs=0.02)
        elif what == "entropy":  # before the step's first update, where the local one is of the update itself
            assert mine == pytest.approx(theirs, rel=0.2)
        else:
            assert mine == pytest.approx(theirs, rel=0.05), what


def _must_show_defaults(platform: Platform, release: str) -> None:
    """Colocation and tiles of logits, as they stand on the wire without being set."""
    configs = {config["job_type"]: config for config in platform.named("initialize")}
    assert configs["training"]["ds_worker_config"]["logits_optimization"] == "compute"
    for message in platform.named("forward-backward") + platform.named("forward"):
        assert message["meta"]["logits_optimization"] == "compute"
    assert len(platform.named("sleep-inference")) == 6
    if release == "0.1.2":
        assert all(asked["colocate"] is True for asked in platform.named("sync-weights"))
