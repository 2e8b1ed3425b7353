"""Which variant is taken, and that the decision is quick and explained."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rlctl import variants
from rlctl.errors import ConfigError
from rlctl.presets import Preset, Variant, available, find, read
from rlctl.variants import choose, cuda_obstacle

GPU = Variant("gpu", "", {"model": {"path": "no/model"}}, {"cuda_memory_gb": 24, "model": True, "data": True})
FREE = Variant("free", "", {})
NAMED = Variant("named", "", {}, by_name_only=True)


def preset(*list_: Variant) -> Preset:
    return Preset("p", Path("p.toml"), "", {}, list_)


def nvidia_smi(folder: Path, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's command on the PATH that answers so, and a torch that is not a CPU build."""
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\n{answer}\n")
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(variants.metadata, "version", lambda name: "2.13.0")


def test_the_first_variant_that_fits_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    choice = choose(preset(GPU, NAMED, FREE), None, said={})
    assert choice.variant is FREE
    assert choice.reason == "not gpu: CUDA_VISIBLE_DEVICES hides every device"


def test_a_named_variant_is_taken_whatever_it_requires() -> None:
    assert choose(preset(GPU, NAMED), "named", said={}).variant is NAMED
    assert choose(preset(GPU, NAMED), "gpu", said={}).variant is GPU


def test_no_variant_that_fits_is_an_error_with_every_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(ConfigError, match="not gpu: CUDA_VISIBLE_DEVICES") as caught:
        choose(preset(GPU, NAMED), None, said={})
    assert "gpu, named" in caught.value.hint


def test_enough_memory_on_any_device_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, "echo 16384; echo 81920", monkeypatch)
    assert cuda_obstacle(70) is None
    assert cuda_obstacle(90) == "80 GiB of CUDA memory, 90 wanted"


@pytest.mark.parametrize("answer", ["exit 9", "echo No devices were found", "true"])
def test_a_driver_without_devices_is_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    nvidia_smi(tmp_path, answer, monkeypatch)
    assert cuda_obstacle(1) is not None


def test_a_cpu_build_of_torch_is_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, "echo 81920", monkeypatch)
    monkeypatch.setattr(variants.metadata, "version", lambda name: "2.13.0+cpu")
    assert cuda_obstacle(1) == "the installed torch is a CPU build"


def test_what_the_user_named_decides_reachability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, "echo 81920", monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    choice = choose(preset(GPU, FREE), None, said={"data": {"source": "no/data"}})
    assert choice.variant is FREE
    assert choice.reason == "not gpu: model no/model is not cached and HF_HUB_OFFLINE is set"
    here = {"model": {"path": str(tmp_path)}, "data": {"path": str(tmp_path)}}
    assert choose(preset(GPU, FREE), None, said=here).variant is GPU


def test_presets_ship_with_a_summary_each() -> None:
    assert {"gsm8k-grpo", "smoke"} <= set(available())
    for path in available().values():
        shipped = read(path)
        assert shipped.summary
        assert all(variant.summary for variant in shipped.variants)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[[variant]]\nsettings = {}\n", "needs a `name`"),
        ('[[variant]]\nname = "a"\nneeds = {}\n', "unknown key 'needs'"),
        ('[[variant]]\nname = "a"\nrequires = { cuda_memory = 3 }\n', "Did you mean cuda_memory_gb?"),
        ("summary = 3\n", "`summary` must be text"),
        ('[[variant]]\nname = "a"\nrequires = "s"\n', "`requires` must be a table"),
        ('[[variant]]\nname = "a"\nsettings = 5\n', "`settings` must be a table"),
        ('[[variant]]\nname = "a"\nby_name_only = "no"\n', "`by_name_only` must be true or false"),
        ('[[variant]]\nname = "a"\nrequires = { cuda_memory_gb = "lots" }\n', "must be a number of GiB"),
        ('[[variant]]\nname = "a"\n[[variant]]\nname = "a"\n', "two variants have one name"),
        ("x = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ],
)
def test_a_broken_preset_names_its_fault(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        find(str(path))
    assert part in caught.value.message
