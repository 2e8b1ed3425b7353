"""Configs that people ran: every setting accounted for once, what comes out loads, other tools are named."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rlctl.config import load
from rlctl.errors import ConfigError
from rlctl.peers import writing
from rlctl.peers.entries import flattened
from rlctl.peers.findings import Translation
from rlctl.peers.reading import read
from rlctl.peers.tables import load as load_peer
from rlctl.peers.translate import translate
from tests.needs import needs

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "grpo_configs"
FOREIGN = {
    "swift-cli": "ms-swift", "axolotl-yaml": "axolotl", "easyr1-hydra": "EasyR1", "prime-toml": "prime-rl",
    "areal-yaml": "AReaL", "skyrl-hydra": "SkyRL", "slime-cli": "slime", "open-instruct-cli": "Open Instruct",
    "oat-cli": "Oat", "mlx-cli": "MLX",
}  # fmt: skip
OURS = {"trl-yaml": "trl", "trl-cli": "trl", "trl-python": "trl", "verl-hydra": "verl", "openrlhf-cli": "openrlhf"}


def rows() -> list[dict[str, Any]]:
    if not CASES.is_dir():
        return []
    lines = (CASES / "configs.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for line in lines if (row := json.loads(line))["native"]]


def files(kinds: dict[str, str]) -> list[Any]:
    chosen = [
        (path, row) for row in rows() if row["framework"] in kinds for path in sorted(CASES.glob(f"{row['id']}.*"))
    ]
    return [pytest.param(path, row, id=path.name) for path, row in chosen] or [pytest.param(None, None, id="none")]


@cache
def translation(path: Path) -> Translation:
    return translate(read(str(path)))


@pytest.mark.parametrize(("path", "row"), files(OURS))
def test_every_setting_of_a_case_is_accounted_for_once(path: Path | None, row: dict[str, Any]) -> None:
    needs("the cases", there=path is not None, how=f"they lie in {CASES}")
    assert path is not None
    peer = load_peer(OURS[row["framework"]])
    written = {key.lstrip("+") for key, _ in flattened(row["parameters"])}
    accounted = [key for finding in translation(path).findings for key in finding.keys]
    assert sorted(accounted) == sorted({peer.spelled(key) for key in written})


@pytest.mark.parametrize(("path", "row"), files(OURS))
def test_what_becomes_of_a_case_loads_with_the_same_values(
    path: Path | None, row: dict[str, Any], tmp_path: Path
) -> None:
    needs("the cases", there=path is not None, how=f"they lie in {CASES}")
    assert path is not None
    made = translation(path)
    file = tmp_path / "imported.toml"
    file.write_text(writing.toml(made), encoding="utf-8")
    for loaded in (load(config=str(file), environ={}), load(preset=str(file), environ={})):
        assert loaded.settings.trainer.train_batch_size == made.settings.get("trainer.train_batch_size", 32)
        assert loaded.settings.rollout.n == made.settings.get("rollout.n", 8)
        assert loaded.settings.trainer.lr == made.settings.get("trainer.lr", 1e-6)
        assert loaded.settings.algorithm.kl_coef == made.settings.get("algorithm.kl_coef", 0.0)
        written = {name for name, origin in loaded.origins.items() if origin != "default"}
        assert {name for name in made.settings if not isinstance(made.settings[name], list)} <= written


@pytest.mark.parametrize(("path", "row"), files(FOREIGN))
def test_other_tools_are_refused_by_name(path: Path | None, row: dict[str, Any]) -> None:
    needs("the cases", there=path is not None, how=f"they lie in {CASES}")
    assert path is not None
    with pytest.raises(ConfigError, match=FOREIGN[row["framework"]]) as caught:
        translate(read(str(path)))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["cfg-021", "cfg-039", "cfg-006"])
def test_a_script_and_its_arguments_say_the_same(name: str, shared: Path) -> None:
    script, arguments = (translation(CASES / f"{name}{end}") for end in (".sh", ".argv.txt"))
    assert script.settings == arguments.settings
    assert [f.subject for f in script.findings] == [f.subject for f in arguments.findings]


# Worked by hand from the files: prompts a step, prompts an update, completions a prompt.
@pytest.mark.parametrize(
    ("name", "devices", "batch", "mini", "n"),
    [
        ("cfg-000.yaml", 8, 16 * 8 * 4 // 16, None, 16),
        ("cfg-003.yaml", 7, 16 * 7 * 4 // 14, None, 14),
        ("cfg-006.sh", 8, 8 * 8 * 2 // 8, None, 8),
        ("cfg-021.sh", None, 128, 16, 4),
        ("cfg-024.sh", None, 1024, 128, 5),
        ("cfg-030.sh", None, 512, 256, 5),
        ("cfg-039.sh", None, 128, 128 // 8, 8),
        ("cfg-042.sh", None, 128, None, 8),
        ("cfg-069.sh", None, 8, None, 16),
        ("cfg-084.sh", None, 1024, 512, None),
        ("cfg-096.json", 2, 1, None, 8),
    ],
)
def test_batches_of_cases(
    name: str, devices: int | None, batch: int, mini: int | None, n: int | None, shared: Path
) -> None:
    settings = translate(read(str(CASES / name)), devices=devices, whole=True).settings
    assert settings["trainer.train_batch_size"] == batch
    assert settings.get("trainer.mini_batch_size") == mini
    assert settings.get("rollout.n") == n
