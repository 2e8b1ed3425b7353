"""docs/coming-from.md says what the maps say, and the maps name settings that exist."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from rlctl.peers.tables import NO_DEFAULT, PEERS, load
from rlctl.settings_tree import field_type

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_coming_from", ROOT / "scripts" / "build_coming_from.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_from_the_maps(builder: ModuleType) -> None:
    text = builder.PAGE.read_text(encoding="utf-8")
    assert builder.page(text) == text, "run: python scripts/build_coming_from.py"
    for name in PEERS:
        assert f"| `{next(iter(load(name).mapped))}` |" in text


@pytest.mark.parametrize("name", PEERS)
def test_maps_name_settings_that_rlctl_has(name: str) -> None:
    peer = load(name)
    for setting in [
        *(mapped.setting for mapped in peer.mapped.values()),
        *(entry["setting"] for entry in peer.implied),
    ]:
        assert field_type(tuple(setting.split("."))) is not None, setting


@pytest.mark.parametrize("name", PEERS)
def test_maps_name_settings_that_the_peer_has_or_had(name: str) -> None:
    """What no table knows is a setting of a fork or of a version before those known, and says so here."""
    peer = load(name)
    elsewhere = {
        "trl": {"system_prompt", "dataset_prompt_column"},
        "verl": {
            "actor_rollout_ref.rollout.n_agent",
            "actor_rollout_ref.actor.tis_imp_ratio_cap",
            "reward_model.overlong_buffer.enable",
        },
        "openrlhf": set(),
    }
    named = {*peer.mapped, *peer.ruled}
    assert {key for key in named if not any(key in table.defaults for table in peer.tables)} == elsewhere[name]


@pytest.mark.parametrize("name", PEERS)
def test_every_setting_of_every_version_is_accounted_for(name: str) -> None:
    """None of the peer's own settings would be told as unknown, or as known and not considered."""
    peer = load(name)
    left = {
        key
        for table in peer.tables
        for key in table.defaults
        if key not in peer.mapped and key not in peer.ruled and not any(entry.covers(key) for entry in peer.without)
    }
    assert sorted(left) == []


@pytest.mark.parametrize("name", PEERS)
def test_each_default_names_its_source(name: str) -> None:
    for table in load(name).tables:
        assert len(table.defaults) > 100
        for key, value in table.defaults.items():
            assert table.version in table.sources[key] or "transformers" in table.sources[key]
            assert value is None or isinstance(value, str | int | float | bool | list | dict)
            assert value != "null"
        assert NO_DEFAULT not in table.defaults
