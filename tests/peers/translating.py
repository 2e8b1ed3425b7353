"""Configs written in a test, translated through the real reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlctl.peers.findings import Finding, Translation
from rlctl.peers.reading import read
from rlctl.peers.translate import translate


def translated(tmp_path: Path, text: str, name: str = "config.yaml", **options: Any) -> Translation:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    variables = options.pop("variables", None)
    return translate(read(str(path), variables=variables), **options)


def verl(tmp_path: Path, *overrides: str, **options: Any) -> Translation:
    """A command of verl with GRPO, groups of 8, and the overrides given, which win."""
    words = ["python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8"]
    return translated(tmp_path, "\n".join([*words, *overrides]) + "\n", "run.argv.txt", **options)


def openrlhf(tmp_path: Path, *arguments: str, **options: Any) -> Translation:
    words = ["python3", "-m", "openrlhf.cli.train_ppo_ray", "--algo.advantage.estimator", "group_norm"]
    return translated(tmp_path, "\n".join([*words, *arguments]) + "\n", "run.argv.txt", **options)


def finding(translation: Translation, key: str) -> Finding:
    """The one finding that accounts for a setting of the file."""
    (found,) = [one for one in translation.findings if key in one.keys]
    return found
