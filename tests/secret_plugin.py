"""A backend with a secret in its settings, to see that it is never shown."""

from __future__ import annotations

from pydantic import Field, SecretStr

from rlctl.backends.registry import register
from rlctl.backends.settings import RemoteBackendSettings


class SecretiveSettings(RemoteBackendSettings):
    token: SecretStr = Field(SecretStr("none-given-yet"), min_length=10)
    """A secret."""


register("secretive", backend="tests.fakes:FakeBackend", settings="tests.secret_plugin:SecretiveSettings")
