"""Memory by role and place, worked out by hand for Qwen3-1.7B on GPUs of 80 GiB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlctl.config import load
from rlctl.errors import ConfigError, ModelError
from rlctl.planning.device import Wanted
from rlctl.planning.fitting import fits
from rlctl.planning.memory import GIB, Place, Role
from rlctl.planning.plan import Plan, plan_of
from tests.planning.models import PARAMETERS as N
from tests.planning.models import config_folder

EIGHT = Wanted(gpu_memory_gb=80, num_gpus=8)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return config_folder(tmp_path_factory.mktemp("models") / "qwen3")


def plan(model: Path, wanted: Wanted, *assignments: str) -> Plan:
    return plan_of(load(assignments=[f"model.path={model}", *assignments]).settings, wanted)


def on_ray(model: Path, *assignments: str, wanted: Wanted = EIGHT) -> Plan:
    ranks = ["remote_backend.ray.trainer_ranks=8", "remote_backend.ray.sampler_replicas=8"]
    return plan(model, wanted, "backend=ray", *ranks, *assignments)


def roles(place: Place) -> dict[str, Any]:
    return {role.name: role.num_bytes for role in place.roles}


def test_parameters_are_those_of_the_model(qwen3: Path) -> None:
    assert N == 1_720_574_976
    assert plan(qwen3, EIGHT).facts.parameters == N


def test_files_are_as_large_as_their_dtype_says(qwen3: Path, tmp_path: Path) -> None:
    (cpu,) = plan(qwen3, Wanted(device="cpu")).places
    assert roles(cpu)["weights' files"] == 2 * N
    (cpu,) = plan(config_folder(tmp_path / "wide", dtype="float32"), Wanted(device="cpu")).places
    assert roles(cpu)["weights' files"] == 4 * N


def test_one_gpu_holds_18_bytes_a_parameter_whatever_it_does(qwen3: Path) -> None:
    """2 of the weights in bfloat16, 4 of masters, 4 of gradients, 8 of moments."""
    device, host = plan(qwen3, Wanted(gpu_memory_gb=80)).places
    held = roles(device)
    always = [held[name] for name in ("weights", "master weights", "gradients", "optimizer")]
    assert always == [2 * N, 4 * N, 4 * N, 8 * N]
    assert roles(host) == {"checkpoint's copy": 14 * N}


def test_activations_of_a_gpu_are_counted_by_hand(qwen3: Path) -> None:
    """One micro-batch of 4096 tokens. Through autograd a token keeps in a layer, in bytes:

    two norms, input in float32, normalised and outcome in bfloat16     2 x 2048 x 8   = 32768
    q and k before their norms in float32, and normalised               3072 x 6       = 18432
    attention: q, k, v, outcome, log-sum-exp                            2 x 6144 + 64  = 12352
    gate, silu(gate), up, their product                                 4 x 6144 x 2   = 49152
    """
    (device, _) = plan(qwen3, Wanted(gpu_memory_gb=80), "trainer.max_tokens_per_device=4096").places
    of_layers = 4096 * 28 * (32768 + 18432 + 12352 + 49152)
    # Prompts of 1024 at most: of 4096 tokens of one group, 3072 are predicted.
    at_head = 2 * 2048 * (2 * 4096 + 3072)
    assert roles(device)["activations"] == of_layers + at_head
    assert roles(device)["logits tile"] == 1024 * 151936 * 2


def test_checkpointing_keeps_one_vector_a_layer(qwen3: Path) -> None:
    sets = ("trainer.max_tokens_per_device=4096", "local.gradient_checkpointing=true")
    (device, _) = plan(qwen3, Wanted(gpu_memory_gb=80), *sets).places
    assert roles(device)["activations"] == 4096 * 28 * 2048 * 2 + 2 * 2048 * (2 * 4096 + 3072)


def test_the_cache_holds_the_larger_of_training_and_evaluation(qwen3: Path) -> None:
    """114688 bytes a token (2 x 28 x 8 x 128 x 2). In training 2 groups of 8 run, whose 4 slots for prompts hold 100
    tokens each and whose completions 99 more; an evaluation runs 64 completions of as many prompts.
    """
    sets = ("data.max_prompt_length=100", "rollout.max_response_length=100", "rollout.n=8")
    few = ("trainer.train_batch_size=4", "local.max_num_seqs=16")
    (device, _) = plan(qwen3, Wanted(gpu_memory_gb=80), *sets, *few, "trainer.eval_freq=0").places
    assert roles(device)["KV cache"] == 114688 * (4 * 100 + 16 * 99)
    (device, _) = plan(qwen3, Wanted(gpu_memory_gb=80), *sets, *few, "local.max_num_seqs=64").places
    assert roles(device)["KV cache"] == 114688 * (64 * 100 + 64 * 99)


def test_a_reference_model_is_held_beside_the_policy(qwen3: Path) -> None:
    (device, _) = plan(qwen3, Wanted(gpu_memory_gb=80), "algorithm.kl_coef=0.01").places
    assert roles(device)["reference model"] == 2 * N


def test_lora_trains_its_factors_alone_and_needs_no_reference(qwen3: Path) -> None:
    """rank x (inputs + outputs) of each product: q and o 2048 + 2048, k and v 2048 + 1024, the MLP's 2048 + 6144."""
    factors = 28 * 16 * (2 * 4096 + 2 * 3072 + 3 * 8192)
    sets = ("model.lora.rank=16", "algorithm.kl_coef=0.01")
    (device, _) = plan(qwen3, Wanted(gpu_memory_gb=80), *sets).places
    held = roles(device)
    assert held["weights"] == 2 * (N + factors)
    assert held["optimizer"] == 8 * factors
    assert "reference model" not in held


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "others"),
    [(1, 2 * N, 4 * N, 12 * N / 8), (2, 2 * N, 4 * N / 8, 12 * N / 8), (3, 2 * N / 8, 4 * N / 8, 12 * N / 8)],
)
def test_zero_spreads_more_with_each_stage(
    qwen3: Path, stage: int, weights: float, gradients: float, others: float
) -> None:
    """ZeRO's table 1 (https://arxiv.org/abs/1910.02054) with K = 12, and gradients summed in float32."""
    device, _ = on_ray(qwen3, f"remote_backend.ray.zero_stage={stage}").places
    held = roles(device)
    assert device.count == 8
    assert held["weights"] == weights
    assert held["gradients"] == gradients
    assert held["master weights"] + held["optimizer"] == others
    assert held.get("gathered weights", 0) == (2e9 if stage == 3 else 0)


def test_a_colocated_sampler_and_an_update_are_never_held_at_once(qwen3: Path) -> None:
    """While sampling: 0.4 of 80 GiB beside the ranks' 2 + 12 / 8 bytes a parameter; while updating, it sleeps."""
    device, host = on_ray(qwen3).places
    assert device.held("sample") == pytest.approx(0.4 * 80 * GIB + 3.5 * N)
    assert device.held("sync") == pytest.approx(device.held("sample") + 2**30)
    updating = [r.num_bytes or 0.0 for r in device.roles if "update" in r.phases]
    assert device.held("update") == sum(updating)
    assert not {"sampler weights", "KV cache and work"} & {r.name for r in device.roles if "update" in r.phases}
    assert device.peak_bytes == max(device.held("update"), device.held("sync"))
    assert device.peak_bytes < sum(r.num_bytes or 0.0 for r in device.roles)
    assert roles(host)["sleeping samplers"] == 8 * 2 * N


def test_apart_trainers_and_samplers_have_devices_of_their_own(qwen3: Path) -> None:
    ranks = ("remote_backend.ray.trainer_ranks=4", "remote_backend.ray.sampler_replicas=2")
    apart = ("remote_backend.ray.tensor_parallel_size=2", "remote_backend.ray.colocate=false")
    trainer, sampler, _ = on_ray(qwen3, *ranks, *apart).places
    assert (trainer.count, sampler.count) == (4, 4)
    assert "KV cache and work" not in roles(trainer)
    assert roles(sampler)["sampler weights"] == 2 * N / 2
    assert sampler.held("sample") == pytest.approx(0.92 * 80 * GIB)
    assert roles(sampler)["weight-sync buffers"] == 2 * 2**30


def test_offload_moves_the_optimizer_to_the_machine(qwen3: Path) -> None:
    device, host = on_ray(qwen3, "remote_backend.ray.offload=optimizer").places
    assert not {"master weights", "optimizer", "gradients"} & set(roles(device))
    assert roles(host)["offloaded optimizer"] == 16 * N


def test_more_devices_than_there_are_do_not_fit(qwen3: Path) -> None:
    device, _ = on_ray(qwen3, wanted=Wanted(gpu_memory_gb=80, num_gpus=4)).places
    assert device.complaint == "the run needs 8 GPUs, and there are 4"
    assert device.fits is False


def test_a_sampler_whose_share_is_smaller_than_its_weights_does_not_fit(qwen3: Path) -> None:
    device, _ = on_ray(qwen3, 'remote_backend.ray.vllm={"gpu_memory_utilization": 0.04}').places
    assert "vLLM's share of 0.04 is 3.2 GiB" in device.complaint
    assert device.fits is False


@pytest.mark.parametrize(
    "table",
    [
        'vllm={"gpu_memory_utilization": "most"}',
        'vllm={"gpu_memory_utilization": 40}',
        'deepspeed={"zero_optimization": {"reduce_bucket_size": "auto"}}',
        'deepspeed={"zero_optimization": 2}',
    ],
)
def test_a_table_of_others_that_makes_no_size_is_refused(qwen3: Path, table: str) -> None:
    with pytest.raises(ConfigError, match=r"remote_backend\.ray\.(vllm|deepspeed): "):
        on_ray(qwen3, f"remote_backend.ray.{table}")


def test_buffers_of_deepspeed_are_there_as_long_as_it_keeps_them(qwen3: Path) -> None:
    """Half a gigabyte of numbers in bfloat16: while gradients come in stage 2, for good in stage 3."""
    for stage, sampling in ((2, 0.0), (3, 1e9)):
        device, _ = on_ray(qwen3, f"remote_backend.ray.zero_stage={stage}").places
        buckets = [role for role in device.roles if role.name == "gradient bucket"]
        assert [role.num_bytes for role in buckets] == [1e9]
        assert sum(role.num_bytes or 0 for role in buckets if "sample" in role.phases) == sampling


def test_colocation_that_does_not_come_out_even_is_refused(qwen3: Path) -> None:
    with pytest.raises(ConfigError, match="trainer_ranks = 8 must equal"):
        on_ray(qwen3, "remote_backend.ray.sampler_replicas=3")


def test_heads_that_cannot_be_split_are_refused_with_those_that_can(qwen3: Path) -> None:
    ranks = ("remote_backend.ray.trainer_ranks=3", "remote_backend.ray.sampler_replicas=1")
    with pytest.raises(ModelError, match="does not divide the model's 16 attention heads") as told:
        on_ray(qwen3, *ranks, "remote_backend.ray.tensor_parallel_size=3")
    assert "1, 2, 4, 8, 16" in told.value.hint


def test_what_a_family_keeps_is_not_guessed(tmp_path: Path) -> None:
    """Gemma does more in a layer than the formulas know."""
    gemma = config_folder(
        tmp_path / "gemma", architectures=["Gemma2ForCausalLM"], model_type="gemma2", hidden_size=64,
        intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        vocab_size=512, layer_types=["full_attention"] * 2,
    )  # fmt: skip
    device, _ = plan(gemma, Wanted(gpu_memory_gb=80)).places
    assert roles(device)["activations"] is None
    assert device.fits is None
    assert "family gemma2" in device.unknown[0].formula


def test_what_float32_attention_keeps_on_a_gpu_is_not_guessed(qwen3: Path) -> None:
    (device, _) = plan(qwen3, Wanted(gpu_memory_gb=80), "local.dtype=float32").places
    assert roles(device)["activations"] is None
    assert roles(device)["weights"] == 4 * N


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers = 1,000,000, and at most 4,000"),
        ({"vocab_size": 0}, "vocab_size = 0"),
        ({"hidden_size": "big"}, "hidden_size"),
        ({"model_type": "mamba", "num_attention_heads": None}, "num_attention_heads = None"),
        ({"model_type": "nobody_knows"}, "nobody_knows"),
    ],
)
def test_a_config_that_makes_no_decoder_is_refused(tmp_path: Path, changed: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        plan(config_folder(tmp_path / "odd", **changed), Wanted(gpu_memory_gb=80))


def test_a_place_of_unknown_size_decides_nothing() -> None:
    role = Role("weights", 5.0, ("start",), "")
    known, unknown = Place("gpu", 1, 10.0, "", (role,)), Place("host", 1, None, "", (role,))
    assert fits([known, unknown]) is True
    assert fits([unknown]) is None
    assert fits([Place("gpu", 1, 4.0, "", (role,)), unknown]) is False
    assert fits([]) is None
