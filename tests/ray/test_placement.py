"""Roles -> bundles, and what a cluster lacks, as plain data."""

from __future__ import annotations

from typing import Any

import pytest

from rlctl.backends.ray.placement import plan, shortage
from rlctl.backends.ray.settings import RaySettings
from rlctl.errors import ConfigError


def settings(**values: Any) -> RaySettings:
    return RaySettings.model_validate(values)


def test_colocated_on_a_cpu_a_rank_and_a_sampler_share_a_bundle() -> None:
    made = plan(settings(trainer_ranks=2, sampler_replicas=1, cpus_per_rank=2), device="cpu")
    assert made.bundles == ({"CPU": 2.0}, {"CPU": 2.0})
    assert [(seat.bundle, seat.cpus, seat.threads) for seat in made.trainers] == [(0, 1.0, 2), (1, 1.0, 2)]
    assert [(seat.bundle, seat.cpus, seat.threads) for seat in made.samplers] == [(0, 1.0, 1)]


def test_apart_each_has_a_bundle_of_its_own() -> None:
    made = plan(settings(trainer_ranks=2, sampler_replicas=2, colocate=False, cpus_per_sampler=3), device="cpu")
    assert made.bundles == ({"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 3.0}, {"CPU": 3.0})
    assert [seat.bundle for seat in (*made.trainers, *made.samplers)] == [0, 1, 2, 3]


def test_colocated_on_gpus_a_sampler_shares_its_gpus_with_as_many_ranks() -> None:
    made = plan(settings(trainer_ranks=4, sampler_replicas=2, tensor_parallel_size=2), device="cuda")
    assert made.bundles == ({"CPU": 3.0, "GPU": 2.0},) * 2
    # Halves of two GPUs would be one whole GPU to Ray: the ranks take them, and the sampler borrows both.
    assert [(seat.bundle, seat.gpus) for seat in made.trainers] == [(0, 1.0), (0, 1.0), (1, 1.0), (1, 1.0)]
    assert [(seat.bundle, seat.gpus, seat.borrows_from) for seat in made.samplers] == [(0, 0, (0, 1)), (1, 0, (2, 3))]


def test_colocated_on_gpus_one_rank_and_one_sampler_halve_a_gpu() -> None:
    made = plan(settings(trainer_ranks=2, sampler_replicas=2), device="cuda")
    assert made.bundles == ({"CPU": 2.0, "GPU": 1.0},) * 2
    assert [(seat.bundle, seat.gpus) for seat in (*made.trainers, *made.samplers)] == [(0, 0.5), (1, 0.5)] * 2


def test_no_bundle_is_given_out_twice() -> None:
    for device in ("cpu", "cuda"):
        for colocate in (True, False):
            made = plan(settings(trainer_ranks=4, sampler_replicas=4, colocate=colocate), device=device)  # type: ignore[arg-type]
            for i, bundle in enumerate(made.bundles):
                seats = [seat for seat in (*made.trainers, *made.samplers) if seat.bundle == i]
                assert sum(seat.cpus for seat in seats) <= bundle["CPU"]
                assert sum(seat.gpus for seat in seats) == bundle.get("GPU", 0.0)


def test_colocation_on_gpus_that_does_not_come_out_even_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer_ranks = 3 must equal .* = 2 x 2 = 4"):
        plan(settings(trainer_ranks=3, sampler_replicas=2, tensor_parallel_size=2), device="cuda")


def test_apart_on_gpus_needs_a_device_for_everybody() -> None:
    made = plan(settings(trainer_ranks=2, sampler_replicas=1, tensor_parallel_size=4, colocate=False), device="cuda")
    assert made.bundles == ({"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 4.0})


def test_what_fits_lacks_nothing() -> None:
    assert shortage([{"CPU": 1}, {"CPU": 1}, {"CPU": 2}], [{"CPU": 2}, {"CPU": 2}]) is None


def test_a_bundle_lies_on_one_machine() -> None:
    told = shortage([{"CPU": 1, "GPU": 4}], [{"CPU": 8, "GPU": 2}, {"CPU": 8, "GPU": 2}])
    assert told == (
        "the run needs 4 GPU, 1 CPU in 1 bundles (the largest 4 GPU and 1 CPU on one machine), "
        "and 4 GPU, 16 CPU on 2 machines are free"
    )


def test_asking_for_gpus_where_there_are_none_says_so() -> None:
    told = shortage([{"CPU": 1, "GPU": 1}] * 8, [{"CPU": 16}])
    assert told is not None
    assert "needs 8 GPU, 8 CPU" in told
    assert "0 GPU, 16 CPU on 1 machine are free" in told


def test_two_that_fit_alone_do_not_fit_together() -> None:
    assert shortage([{"CPU": 2}, {"CPU": 2}], [{"CPU": 3}]) is not None


def test_an_empty_cluster_lacks_everything() -> None:
    assert "0 CPU on 0 machines" in str(shortage([{"CPU": 1}], []))
