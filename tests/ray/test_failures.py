"""Actors that are killed: the run goes on with what is left, or ends with the reason; nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlctl.errors import BackendError
from rlctl.types import Prompt, TrainRow
from tests import defaults
from tests.backends.test_contract import JOB, LOSS
from tests.ray.leftovers import shared_memory

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PROMPTS = 24
"""With 8 completions of up to 64 tokens of each, far more than a third of a second of work."""


@dataclass
class Story:
    """One run in which first the sampler is killed while it draws, then a trainer rank while it updates."""

    groups: list[Any] = field(default_factory=list)
    again: list[Any] = field(default_factory=list)
    reissued: int = 0
    names_after: int = 0
    error: BackendError | None = None
    checkpoint: Path = Path()
    pids: list[int] = field(default_factory=list)
    shared_memory: set[str] = field(default_factory=set)
    placement_groups: list[str] = field(default_factory=list)
    actors: list[str] = field(default_factory=list)


def living(name: str) -> list[int]:
    """Process ids of the living actors of that class."""
    from ray._private.state import actors

    return [a["Pid"] for a in actors().values() if a["ActorClassName"] == name and a["State"] == "ALIVE"]


async def killed_in(seconds: float, pid: int) -> None:
    await asyncio.sleep(seconds)
    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def story(cluster: None, llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    return asyncio.run(told(llama, tmp_path_factory.mktemp("story")))


async def told(llama: Path, folder: Path) -> Story:
    from dataclasses import replace

    from ray._private.state import actors
    from ray.util import placement_group_table

    from rlctl.backends.ray.backend import RayBackend
    from rlctl.backends.ray.guard import descendants
    from rlctl.backends.ray.settings import RaySettings

    before, groups_before = shared_memory(), set(placement_group_table())
    settings = RaySettings(trainer_ranks=2, dtype="float32", device="cpu", kv_cache_gb=0.25, request_timeout_s=600)
    backend = RayBackend(settings, replace(JOB, model=str(llama), max_response_length=64))
    story = Story(checkpoint=folder / "saved")
    others = {a["ActorID"] for a in actors().values() if a["State"] == "ALIVE"} if await _connected() else set()
    asked = [Prompt(np.array([72, 105, 40 + i % 60], np.int32), i) for i in range(PROMPTS)]
    sampling = defaults.sampling(temperature=0.9, max_new_tokens=64)
    try:
        await backend.start()
        mine = [a for a in actors().values() if a["State"] == "ALIVE" and a["ActorID"] not in others]
        story.pids = [a["Pid"] for a in mine]
        story.pids += [child for pid in list(story.pids) for child in descendants(pid)]
        (sampler,) = [a["Pid"] for a in mine if a["ActorClassName"] == "Sampler"]
        story.again = await backend.generate(asked, n=8, sampling=sampling)
        drawing = asyncio.create_task(backend.generate(asked, n=8, sampling=sampling))
        await killed_in(0.3, sampler)
        story.groups = await drawing
        story.reissued = backend.reissued_prompts
        rows = [
            TrainRow(p.token_ids, c.token_ids, 1.0 if i % 2 else -1.0, c.logprobs)
            for p, group in zip(asked, story.groups, strict=True)
            for i, c in enumerate(group)
        ]
        await backend.forward_backward(rows[:16], loss=LOSS, loss_denominator=1.0)
        await backend.optim_step(0.001)
        story.names_after = (await backend.sync_weights()).names_sent
        await backend.save(story.checkpoint)
        # Not the second in Ray's table, which knows no ranks.
        second = backend.fleet.trainers["trainer rank 1"]._actor_id.hex()
        (rank,) = [a["Pid"] for a in mine if a["ActorID"] == second]
        updating = asyncio.create_task(backend.forward_backward(rows * 8, loss=LOSS, loss_denominator=1.0))
        await killed_in(0.3, rank)
        try:
            await updating
        except BackendError as error:
            story.error = error
    finally:
        await backend.close()
    await asyncio.sleep(10)
    story.pids = [pid for pid in story.pids if Path(f"/proc/{pid}").exists() and _state(pid) != "Z"]
    story.shared_memory = shared_memory() - before
    table = placement_group_table()
    story.placement_groups = [key for key in set(table) - groups_before if table[key]["state"] != "REMOVED"]
    story.actors = [
        a["ActorClassName"] for a in actors().values() if a["State"] == "ALIVE" and a["ActorID"] not in others
    ]
    return story


async def _connected() -> bool:
    import ray

    return bool(ray.is_initialized())


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_sampler_killed_while_it_draws_is_replaced_and_every_prompt_answered(story: Story) -> None:
    assert [len(group) for group in story.groups] == [8] * PROMPTS
    assert 0 < story.reissued <= PROMPTS
    # The same seeds on the same weights: what was drawn anew begins as it would have.
    first = [[c.token_ids[0] for c in group] for group in story.groups]
    assert first == [[c.token_ids[0] for c in group] for group in story.again]


def test_the_replacement_takes_part_in_the_next_sync(story: Story) -> None:
    assert story.names_after == 20


def test_a_trainer_rank_killed_while_it_updates_ends_the_run_with_its_name(story: Story) -> None:
    assert story.error is not None
    # The other rank may have died of it.
    assert "trainer rank 1" in story.error.message
    assert " died" in story.error.message


def test_the_checkpoint_before_is_whole(story: Story) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    assert torch.load(story.checkpoint / "trainer.pt", weights_only=True)["version"] == 1
    assert AutoModelForCausalLM.from_pretrained(story.checkpoint).config.vocab_size == 260


def test_nothing_is_left_behind(story: Story) -> None:
    assert story.actors == []
    assert story.placement_groups == []
    assert story.pids == []
    assert story.shared_memory == set()
