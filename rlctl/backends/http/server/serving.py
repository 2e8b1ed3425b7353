"""Run the server: token, TLS, address, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from rlctl.backends import registry
from rlctl.backends.base import AnyBackend, must_overlap
from rlctl.backends.http.server.app import app_of
from rlctl.backends.http.server.guard import Guard, patient_protocol
from rlctl.backends.http.server.models import must_be_allowed
from rlctl.backends.http.server.sessions import SHUTTING_DOWN, Host
from rlctl.backends.http.server.verbs import must_be_able
from rlctl.errors import BackendUnavailable, ConfigError
from rlctl.settings import Settings
from rlctl.types import JobSpec

log = logging.getLogger("rlctl.serve")

TELLING_S = 5
"""Seconds that are left after the grace for those who wait to be told."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that listens, before its first request."""

    url: str
    token: str
    made_up: bool


async def serve(settings: Settings, *, tell: Callable[[Serving], None]) -> None:
    """Serve the backend of the settings until a signal, then end its session. `tell` hears once it listens.

    Raises ConfigError and BackendUnavailable before that.
    """
    own = settings.serve
    make = _maker(settings)
    given = own.token.get_secret_value()
    token = given or secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="rlctl-serve-", dir=own.spool_dir) as spool:
        host = Host(
            make, name=settings.backend, lease_s=own.lease_s, spool=Path(spool),
            max_body_bytes=own.max_body_mb * 2**20,
        )  # fmt: skip
        app = Guard(
            app_of(host, beat_s=own.beat_s), token=token, limit_of=_limits(settings), body_timeout_s=own.body_timeout_s
        )
        listening = _listening(own.host, own.port)
        config = uvicorn.Config(
            app,
            http=patient_protocol(own.body_timeout_s),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=120,
            timeout_graceful_shutdown=math.ceil(own.shutdown_grace_s) + TELLING_S,
            limit_concurrency=64,
            ssl_certfile=own.tls_cert,
            ssl_keyfile=own.tls_key,
            lifespan="on",
        )
        try:
            config.load()
        except (OSError, ValueError) as error:
            listening.close()
            raise ConfigError(f"serve.tls_cert {own.tls_cert} or its key cannot be used: {error}.") from error
        tell(Serving(_url(own.host, listening, tls=own.tls_cert is not None), token, made_up=not given))
        await _until_a_signal(_Server(config), listening, host, grace_s=own.shutdown_grace_s)


class _Server(uvicorn.Server):
    """Leaves signals to `_until_a_signal`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _until_a_signal(server: uvicorn.Server, listening: socket.socket, host: Host, *, grace_s: float) -> None:
    """Serve; at a signal let the running verb end within the grace, then give it up. A second one ends at once."""
    loop = asyncio.get_running_loop()
    giving_up: list[asyncio.Task[None]] = []

    def asked_to_end() -> None:
        if server.should_exit:
            server.force_exit = True
        server.should_exit = True
        host.closing = True
        loop.call_later(grace_s, lambda: giving_up.append(loop.create_task(_give_up(host))))

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with suppress(NotImplementedError, ValueError):  # Windows, or not the main thread
            loop.add_signal_handler(number, asked_to_end)
    await server.serve(sockets=[listening])


async def _give_up(host: Host) -> None:
    """Tell those who wait for a verb, however long the backend takes to leave it."""
    if host.held is not None:
        host.held.give_up(why=SHUTTING_DOWN)
        await host.held.calls.cancel()


def _maker(settings: Settings) -> Callable[[JobSpec], AnyBackend]:
    """How the hosted backend is made for a client's job. Raises what is wrong with the backend itself."""
    if settings.backend == "http":
        raise ConfigError("rlctl serve cannot host the http backend, which is its client.", hint="--backend local.")
    spec = registry.get(settings.backend)
    backend = spec.load("backend")
    own = settings.local if settings.backend == "local" else settings.remote_backend[settings.backend]

    def make(job: JobSpec) -> AnyBackend:
        must_be_allowed(job.model, allowed=settings.serve.models)
        made: AnyBackend = backend(own, job)
        if job.plan is not None:
            must_be_able(made, job.plan.loss)
            must_overlap(made, job.plan.max_off_policy_steps, name=f"{settings.backend}, hosted by the server,")
        return made

    return make


def _limits(settings: Settings) -> Callable[[str], int]:
    files, others = int(settings.serve.max_checkpoint_gb * 2**30), settings.serve.max_body_mb * 2**20
    return lambda path: files if "/folders/" in path else others


def _listening(host: str, port: int) -> socket.socket:
    """Raises BackendUnavailable when the address is not to be had."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        raise BackendUnavailable(
            f"serve.host {host}, serve.port {port} cannot be listened on: {error.strerror or error}.",
            hint="another server may run there; --port 0 takes a free one.",
        ) from error
    return listening


def _url(host: str, listening: socket.socket, *, tls: bool) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{listening.getsockname()[1]}"
