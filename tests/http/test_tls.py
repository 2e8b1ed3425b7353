"""A server with a certificate: the client believes it by `ca_file`, and nothing else is sent to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import trustme
from pydantic import ValidationError

from rlctl import config
from rlctl.backends.http.settings import HttpSettings
from rlctl.errors import BackendUnavailable, ConfigError
from tests.http import servers
from tests.http.test_faults import job


@pytest.mark.slow
def test_a_certificate_is_checked(tiny_llama: Path, tmp_path: Path) -> None:
    authority, cert, key, ca = trustme.CA(), tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(key))
    for pem in issued.cert_chain_pems:
        pem.write_to_path(str(cert), append=True)
    authority.cert_pem.write_to_path(str(ca))
    server = servers.start(tmp_path, f"serve.tls_cert={cert}", f"serve.tls_key={key}", f'serve.models=["{tiny_llama}"]')
    url = f"https://localhost:{server.url.rpartition(':')[2]}"

    async def start(**settings: object) -> str:
        backend = servers.client(url, job(tiny_llama), reconnect_s=0.1, **settings)
        try:
            return (await backend.start()).device
        finally:
            await backend.close()

    try:
        assert server.url.startswith("https://")
        assert asyncio.run(start(ca_file=ca))
        with pytest.raises(BackendUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            asyncio.run(start())
    finally:
        server.end()


def test_a_token_does_not_travel_unencrypted_to_another_machine() -> None:
    for url in ("http://gpu-box:7077", "http://10.0.0.7:7077"):
        with pytest.raises(ValidationError, match="is not encrypted and not this machine"):
            HttpSettings(url=url)
        assert HttpSettings(url=url, insecure_transport=True).url == url
    assert HttpSettings(url="https://gpu-box:7077/").url == "https://gpu-box:7077"
    assert HttpSettings(url="http://[::1]:7077").url == "http://[::1]:7077"


@pytest.mark.parametrize("url", ["gpu-box:7077", "ftp://gpu-box", "https://user:secret@gpu-box", "https://x/?a=b", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        HttpSettings(url=url)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["serve.host=0.0.0.0"],
            "can be reached from other machines: give --tls-cert and --tls-key, or --insecure-bind",
        ),
        (["serve.host=::"], "can be reached from other machines"),
        (["serve.host=gpu-box"], "can be reached from other machines"),
        (["serve.token=short"], "at least 16 printable characters"),
        (["serve.token=with a space in it"], "at least 16 printable characters"),
        (["serve.tls_cert=cert.pem"], "serve.tls_cert and serve.tls_key go together"),
        (["serve.port=70000"], "serve.port"),
    ],
)
def test_a_server_that_would_not_be_safe_is_refused(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config.load(assignments=settings, environ={})


def test_a_server_beyond_this_machine_is_had_for_the_asking() -> None:
    loaded = config.load(assignments=["serve.host=0.0.0.0", "serve.insecure_bind=true"], environ={})
    assert loaded.settings.serve.insecure_bind
