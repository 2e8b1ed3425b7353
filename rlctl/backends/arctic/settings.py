"""The keys of `[remote_backend.arctic]`."""

from __future__ import annotations

from rlctl.backends.settings import RemoteBackendSettings


class ArcticSettings(RemoteBackendSettings):
    """The settings every remote backend has; the platform's own come with its adapter."""
