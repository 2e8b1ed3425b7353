"""The `[remote_backend.http]` table: which server, and how patient to be with it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, NonNegativeFloat, PositiveFloat, SecretStr, field_validator, model_validator

from rlctl.backends.settings import RemoteBackendSettings

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class HttpSettings(RemoteBackendSettings):
    """A server of `rlctl serve`. Whether its devices are shared and its logits tiled is that server's own setting."""

    url: str = "http://127.0.0.1:7077"
    """Where `rlctl serve` listens."""
    token: SecretStr = SecretStr("")
    """The token that `rlctl serve` printed; best given as RLCTL_REMOTE_BACKEND__HTTP__TOKEN."""
    attach: str = ""
    """A session whose driver died, to go on with without loading the model anew."""
    queue: bool = False
    """Wait in line while somebody else holds the server; without it the run ends with who that is."""
    ca_file: Path | None = None
    """Certificate that signs the server's, where the system does not know its issuer."""
    insecure_transport: bool = False
    """Send the token, and all else, unencrypted to another machine: only through a tunnel or a network of your own."""
    start_timeout_s: PositiveFloat = 1800.0
    """Seconds that the server may take to load the model."""
    connect_timeout_s: PositiveFloat = 10.0
    """Seconds to wait for a connection."""
    silence_timeout_s: PositiveFloat = 60.0
    """Seconds without a word, while a verb runs, after which the connection is taken for dead and made again; the
    server beats every few seconds."""
    reconnect_s: NonNegativeFloat = Field(180.0)
    """Seconds to go on trying to reach a server that no longer answers."""

    @field_validator("url")
    @classmethod
    def url_is_of_http(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("it is no URL such as https://host:7077")
        if parts.username or parts.password:
            raise ValueError("it holds a name or password; the token goes into remote_backend.http.token")
        return url.rstrip("/")

    @model_validator(mode="after")
    def tokens_are_encrypted_on_their_way(self) -> HttpSettings:
        parts = urlsplit(self.url)
        if parts.scheme == "http" and parts.hostname not in LOOPBACK and not self.insecure_transport:
            raise ValueError(
                f"{self.url} is not encrypted and not this machine: use https, an ssh tunnel, or "
                "insecure_transport = true"
            )
        return self
