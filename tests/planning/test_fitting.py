"""Runs that do not fit: the cheapest change, its peak, and settings that the command line takes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from rlctl.config import load
from rlctl.planning.device import Wanted
from rlctl.planning.fitting import Cure, cheapest_cure, fits
from rlctl.planning.plan import Plan, plan_of
from rlctl.planning.table import assigned
from rlctl.settings import Settings
from tests.planning.models import config_folder


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return config_folder(tmp_path_factory.mktemp("models") / "qwen3")


def planned(model: Path, gigabytes: float, *assignments: str) -> tuple[Settings, Plan]:
    settings = load(assignments=[f"model.path={model}", *assignments]).settings
    return settings, plan_of(settings, Wanted(gpu_memory_gb=gigabytes))


def cured(model: Path, gigabytes: float, *assignments: str) -> Cure | None:
    settings, plan = planned(model, gigabytes, *assignments)
    assert fits(plan.places) is False
    return cheapest_cure(settings, plan)


def test_fewer_tokens_a_micro_batch_come_before_checkpointing(qwen3: Path) -> None:
    """16384 tokens keep 48 GiB beside 29 of weights and optimizer; half of them fit into 60."""
    cure = cured(qwen3, 60)
    assert cure is not None
    assert cure.assignments == {"trainer.max_tokens_per_device": 8192}
    assert cure.places[0].peak_bytes <= 60 * 2**30


def test_the_first_change_that_suffices_is_taken_at_its_mildest(qwen3: Path) -> None:
    """With 45 GiB a half (54 GiB) is too much, and a quarter (41.5) is not."""
    cure = cured(qwen3, 45)
    assert cure is not None
    assert cure.assignments == {"trainer.max_tokens_per_device": 4096}


def test_a_large_cache_is_made_smaller_before_anything_of_the_update(qwen3: Path) -> None:
    sets = ("local.kv_cache_gb=64", "local.max_num_seqs=512", "trainer.max_tokens_per_device=2048")
    cure = cured(qwen3, 45, *sets)
    assert cure is not None
    assert set(cure.assignments) <= {"local.kv_cache_gb", "local.max_num_seqs"}


def test_what_no_smaller_batch_can_save_takes_lora(qwen3: Path) -> None:
    """Weights, masters, gradients and moments alone are 18 bytes a parameter, 28.8 GiB."""
    cure = cured(qwen3, 24)
    assert cure is not None
    assert "model.lora.rank" in cure.assignments
    assert any("another training" in cost for cost in cure.costs)
    assert fits(cure.places) is True


def test_a_combination_holds_nothing_that_it_does_not_need(qwen3: Path) -> None:
    settings, plan = planned(qwen3, 24)
    cure = cheapest_cure(settings, plan)
    assert cure is not None
    for left_out in cure.assignments:
        fewer = [text for name, text in zip(cure.assignments, sets_of(cure), strict=True) if name != left_out]
        assert fits(planned(qwen3, 24, *fewer)[1].places) is False


def sets_of(cure: Cure) -> list[str]:
    return [shlex.split(text)[1] for text in assigned(cure.assignments)]


def test_nothing_helps_where_the_weights_alone_are_too_large(qwen3: Path) -> None:
    assert cured(qwen3, 2) is None


@pytest.mark.parametrize("gigabytes", [12.0, 20.0, 30.0])
def test_a_cure_of_ray_is_taken_by_the_command_line_and_fits(qwen3: Path, gigabytes: float) -> None:
    ranks = ("backend=ray", "remote_backend.ray.trainer_ranks=4", "remote_backend.ray.sampler_replicas=4")
    cure = cured(qwen3, gigabytes, *ranks)
    assert cure is not None
    assert fits(planned(qwen3, gigabytes, *ranks, *sets_of(cure))[1].places) is True
