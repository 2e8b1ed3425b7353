"""Registers the fake backend, as `RLCTL_PLUGINS=tests.fake_plugin` would."""

from __future__ import annotations

from rlctl.backends.registry import register

register(
    "fake", backend="tests.fakes:FakeBackend", settings="tests.fakes:FakeSettings", install="it ships with the tests"
)
