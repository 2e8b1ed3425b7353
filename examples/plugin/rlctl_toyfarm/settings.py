"""The keys of `[remote_backend.toyfarm]`."""

from __future__ import annotations

from rlctl.backends.settings import RemoteBackendSettings


class ToyFarmSettings(RemoteBackendSettings):
    """Those that every remote backend has, and where the farm is."""

    url: str | None = None
    """Address of a farm that runs ("http://127.0.0.1:8123"); null starts one on this machine."""
