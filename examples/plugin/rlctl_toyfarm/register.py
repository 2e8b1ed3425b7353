"""Announces `toyfarm`. Strings only, so that importing this imports nothing else."""

from __future__ import annotations

from rlctl.backends.registry import register

register(
    "toyfarm",
    backend="rlctl_toyfarm.backend:ToyFarmBackend",
    settings="rlctl_toyfarm.settings:ToyFarmSettings",
    contract="rlctl_toyfarm:contract.toml",
    install="pip install rlctl-toyfarm",
)
