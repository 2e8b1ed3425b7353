"""Announces `arctic`. This is what its entry point names; importing it imports nothing of the platform."""

from __future__ import annotations

from rlctl.backends.arctic import INSTALL
from rlctl.backends.registry import register

register(
    "arctic",
    backend="rlctl.backends.arctic.backend:ArcticBackend",
    settings="rlctl.backends.arctic.settings:ArcticSettings",
    contract="rlctl.backends.arctic:contract.toml",
    install=INSTALL,
)
