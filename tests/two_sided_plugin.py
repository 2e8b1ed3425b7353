"""Registers the fake of two sides, as `RLCTL_PLUGINS=tests.two_sided_plugin` would."""

from __future__ import annotations

from rlctl.backends.registry import register

register(
    "two_sided",
    backend="tests.two_sided:TwoSidedBackend",
    settings="tests.two_sided:TwoSidedSettings",
    install="it ships with the tests",
)
