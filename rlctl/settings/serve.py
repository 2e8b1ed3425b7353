"""`[serve]`: what `rlctl serve` listens on, whom it believes, and what it lends out."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr, field_validator, model_validator

from rlctl.settings.block import Block


class ServeSettings(Block):
    host: str = "127.0.0.1"
    """Address to listen on; only this machine reaches the default one."""
    port: int = Field(7077, ge=0, lt=65536)
    """Port to listen on; 0 takes a free one and says which."""
    token: SecretStr = SecretStr("")
    """What clients must know; empty makes one up and prints it once. Best given as RLCTL_SERVE__TOKEN."""
    tls_cert: Path | None = None
    """Certificate, PEM, with the chain that its readers lack."""
    tls_key: Path | None = None
    """Its private key, PEM."""
    insecure_bind: bool = False
    """Listen beyond this machine without TLS: token, prompts and weights can be read on the way."""
    models: tuple[str, ...] = ("embedded:*",)
    """What clients may load: hub ids, `embedded:NAME`, folders and what lies in them; `*` stands for any characters but
    a slash."""
    lease_s: PositiveFloat = Field(300.0, ge=2)
    """Seconds without a word from its client after which a session is closed and its memory freed."""
    beat_s: PositiveFloat = 5.0
    """Seconds between signs of life while a verb runs."""
    max_body_mb: PositiveInt = 512
    """Largest body of a request in MiB, also after decompression; a step of 32 x 8 x 1,000 tokens is about 5."""
    max_checkpoint_gb: PositiveFloat = 200.0
    """Largest file of a checkpoint that a client may send, in GiB."""
    body_timeout_s: PositiveFloat = 60.0
    """Seconds within which a request's head, and then each part of its body, must come."""
    shutdown_grace_s: float = Field(30.0, ge=0)
    """Seconds that a running verb has to end once the server is asked to."""
    spool_dir: Path | None = None
    """Where checkpoints stand on their way; null is a folder in the system's temporary one."""

    @field_validator("token")
    @classmethod
    def token_is_hard_to_guess(cls, token: SecretStr) -> SecretStr:
        value = token.get_secret_value()
        if value and (len(value) < 16 or not value.isascii() or not value.isprintable() or " " in value):
            raise ValueError("must be at least 16 printable characters without spaces: openssl rand -hex 16")
        return token

    @model_validator(mode="after")
    def tls_needs_both_files(self) -> ServeSettings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("serve.tls_cert and serve.tls_key go together")
        return self

    @model_validator(mode="after")
    def beyond_this_machine_needs_tls(self) -> ServeSettings:
        if not (self.tls_cert or self.insecure_bind or _is_loopback(self.host)):
            raise ValueError(
                f"serve.host {self.host} can be reached from other machines: give --tls-cert and --tls-key, or "
                "--insecure-bind to send token, prompts and weights unencrypted"
            )
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
