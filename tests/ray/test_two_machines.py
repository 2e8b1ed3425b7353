"""Two Ray nodes, each with a trainer rank and a sampler, one of which is away from rank 0: by Ray's own harness.

Run in a process of its own, since a process is connected to one cluster at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_stack")]

SCRIPT = """
import asyncio, json, sys
from dataclasses import replace
from ray.cluster_utils import Cluster

def main(model):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=2)
    from rlctl.backends.ray.backend import RayBackend
    from rlctl.backends.ray.settings import RaySettings
    from tests.backends.test_contract import JOB, LOSS, num_tokens, sampled
    settings = RaySettings(
        address=cluster.address, trainer_ranks=2, sampler_replicas=2, device="cpu", dtype="float32", kv_cache_gb=0.25,
        zero_stage=3, cpus_per_rank=2,
    )
    backend = RayBackend(settings, replace(JOB, model=model, needs_reference=False))

    async def work():
        try:
            await backend.start()
            rows = await sampled(backend, 1, 2)
            await backend.forward_backward(rows, loss=LOSS, loss_denominator=num_tokens(rows))
            stats = await backend.optim_step(0.01)
            report = await backend.sync_weights()
            fresh = await sampled(backend, 1, 2)
            scored = await backend.log_probs(fresh)
            gap = max(float(abs(a - r.rollout_logprobs).max()) for a, r in zip(scored, fresh, strict=True))
            return dict(
                machines={name: place.machine for name, place in backend.fleet.places.items()},
                stacks=await backend.stacks(), grad_norm=stats.grad_norm, sent=report.names_sent,
                expected=report.names_expected, gap=gap,
            )
        finally:
            await backend.close()

    found = asyncio.run(work())
    cluster.shutdown()
    print("FOUND", json.dumps(found))

main(sys.argv[1])
"""


def test_ranks_on_two_machines_train_a_sampler_on_each(llama: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(llama)], capture_output=True, text=True, cwd=root, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.split("FOUND ")[1])
    machines = found["machines"]
    assert machines["trainer rank 0"] != machines["trainer rank 1"]
    assert machines["sampler 0"] != machines["sampler 1"]
    assert found["sent"] == found["expected"] == 20
    assert found["grad_norm"] > 0
    assert found["gap"] < 1e-4
    assert sorted(found["stacks"]) == ["sampler 0", "sampler 1", "trainer rank 0", "trainer rank 1"]
    assert all("Thread 0x" in frames or "thread 0x" in frames for frames in found["stacks"].values()), found["stacks"]
