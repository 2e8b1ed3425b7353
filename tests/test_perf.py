from __future__ import annotations

import pytest

from rlctl.perf import ModelShape, datasheet_memory, datasheet_names, datasheet_peak, mfu, model_shape

QWEN3_06B = {
    "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
}  # fmt: skip


def test_head_dim_comes_from_the_config() -> None:
    # 28 x (q and o: 2 x 1024 x 2048, k and v: 2 x 1024 x 1024, gate, up, down: 3 x 1024 x 3072); 1024/16 is not 128.
    shape = model_shape(QWEN3_06B)
    assert shape == ModelShape(28 * (4194304 + 2097152 + 9437184), 1024 * 151936, 28 * 16 * 128)


def test_training_costs_six_flops_a_weight_and_token() -> None:
    # Field fault 154: 1,000 real tokens of 0.5e9 weights are 3e12 FLOP, whatever the padding; forward 1e12.
    shape = ModelShape(500_000_000, 0, 0)
    assert shape.train_flops(tokens=1000, predicted=0, pairs=0) == 3.0e12
    assert shape.forward_flops(tokens=1000, predicted=0, pairs=0) == 1.0e12


def test_attention_is_counted_by_causal_pairs() -> None:
    # 6 x L x H x d_head x s^2 for one sequence of s tokens is 12 x width x s^2 / 2 pairs.
    shape = ModelShape(0, 0, 10)
    assert shape.train_flops(tokens=4, predicted=4, pairs=8) == 12 * 10 * 8


def test_an_unknown_family_has_no_formula() -> None:
    assert model_shape({**QWEN3_06B, "model_type": "mixtral"}) is None


def test_mfu_above_one_is_not_a_result() -> None:
    # Field fault 153.
    over = mfu(flops=2.48e12, seconds=0.01, peak_flops=1e14)
    assert over.fraction is None
    assert "2.48e+12 FLOP in 0.01 s" in over.reason
    assert mfu(flops=1e12, seconds=0.01, peak_flops=1e14).fraction == 1.0
    assert mfu(flops=1e12, seconds=0.0, peak_flops=1e14).fraction is None


def test_mfu_without_a_peak_says_why() -> None:
    assert (
        mfu(flops=1.0, seconds=1.0, peak_flops=None, peak_source="no data-sheet peak for X").reason
        == "no data-sheet peak for X"
    )
    assert mfu(flops=float("nan"), seconds=1.0, peak_flops=1.0).fraction is None


def test_mfu_divides_by_all_devices() -> None:
    assert mfu(flops=4e12, seconds=1.0, peak_flops=2e12, num_devices=4).fraction == 0.5


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", None),
        ("NVIDIA A40", 150e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("Tesla T4", None),
        ("NVIDIA A10G", None),
    ],
)
def test_peaks_by_full_name(name: str, peak: float | None) -> None:
    assert datasheet_peak(name) == peak


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("NVIDIA H100 80GB HBM3", 80),
        ("H100 NVL", 94),
        ("nvidia h200", 141),
        ("A100 40GB", 40),
        ("NVIDIA A100-SXM4-80GB", 80),
    ],
)
def test_memory_is_that_of_the_name_or_its_data_sheet(name: str, gigabytes: float) -> None:
    assert datasheet_memory(name) == gigabytes * 1e9


@pytest.mark.parametrize("name", ["A100", "RTX 4090 Laptop", "L40", "a toaster"])
def test_memory_that_no_name_tells_is_none(name: str) -> None:
    assert datasheet_memory(name) is None


def test_every_gpu_with_a_peak_is_named() -> None:
    assert {"H100", "A100", "MI300X"} <= set(datasheet_names())
