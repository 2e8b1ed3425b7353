"""One call of a server, as often as it takes: a lost connection is made again, and the verb is asked for by its key.

The server carries out each key once, so that asking again is always safe, and cheap where the verb has ended.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn, TypeVar
from uuid import uuid4

import httpx

from rlctl import __version__
from rlctl.backends.http import codec, messages
from rlctl.backends.http.codec import WireError
from rlctl.backends.http.failures import Failure
from rlctl.backends.http.frames import BEAT, FAILURE, PART, RESULT, Reader, pack
from rlctl.backends.http.settings import HttpSettings
from rlctl.errors import BackendError, BackendUnavailable, ConfigError, RlctlError

T = TypeVar("T")

LARGEST_REPLY = 2**31
"""Bytes of one frame."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
PASSING = frozenset({429, 502, 503, 504})
"""What proxies answer while a server cannot be reached."""


class Lost(Exception):
    """The connection ended before the reply did."""


class Transport:
    """Calls of one server; `note` tells a person of trouble that is being dealt with."""

    def __init__(self, settings: HttpSettings, *, note: Callable[[str], None]) -> None:
        self.settings, self.note = settings, note
        self.sent_bytes = self.received_bytes = 0
        self._unacknowledged: list[str] = []
        self._client = httpx.AsyncClient(**client_options(settings))

    async def close(self) -> None:
        await self._client.aclose()

    async def verb(self, session: str, request: Any, reply: type[T], *, name: str, part: Callable[[bytes], None]) -> T:
        """Carry a verb out, once. `part` gets what comes before the reply; once more from the first after a loss.

        Raises what the verb raised there, and BackendError when the server cannot be reached any more.
        """
        key, content = uuid4().hex, await asyncio.to_thread(lambda: pack_body(codec.encode(request)))
        acknowledged, self._unacknowledged = self._unacknowledged, []

        async def once() -> T:
            end = b""
            async for kind, payload in self._frames(f"/sessions/{session}/verbs/{name}", key, content, acknowledged):
                if kind == PART:
                    part(payload)
                elif kind == FAILURE:
                    raise codec.decode(payload, Failure).error()
                else:
                    end = payload
            return codec.decode(end, reply)

        result: T = await self.again_and_again(once, what=name)
        self._unacknowledged.append(key)
        return result

    async def ask(self, method: str, path: str, request: Any = None, *, key: str = "", once: bool = False) -> bytes:
        """A short call. Raises what the server says is wrong, BackendUnavailable when it does not answer."""
        body, headers = pack_body(codec.encode(request)) if request is not None else (b"", {})

        async def ask() -> bytes:
            try:
                response = await self._client.request(
                    method, path, content=body, headers={**headers, messages.KEY: key or uuid4().hex}
                )
            except httpx.TransportError as error:
                raise Lost(_words(error)) from error
            must_be_fine(response.status_code, response.content, self.settings)
            return response.content

        return await (ask() if once else self.again_and_again(ask, what=path))

    async def again_and_again(self, once: Callable[[], Any], *, what: str) -> Any:
        """Until it succeeds, fails for good, or `reconnect_s` have passed without a connection."""
        lost_at, pause = 0.0, FIRST_PAUSE_S
        while True:
            start = time.monotonic()
            try:
                return await once()
            except Lost as error:
                now = time.monotonic()
                # A connection that held for a while was no part of the trouble before it.
                if not lost_at or now - start > self.settings.silence_timeout_s:
                    lost_at, pause = now, FIRST_PAUSE_S
                    self.note(f"{self.settings.url}: {error} during {what}; trying again")
                if now - lost_at > self.settings.reconnect_s:
                    raise BackendError(
                        f"{self.settings.url} could not be reached for {now - lost_at:.0f} s: {error}.",
                        hint="start the run again when it can; it goes on after its last checkpoint.",
                    ) from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _frames(
        self, path: str, key: str, content: tuple[bytes, dict[str, str]], acknowledged: list[str]
    ) -> AsyncIterator[tuple[int, bytes]]:
        """(kind, payload) of all but beats, to the end. Raises Lost when the connection ends before."""
        body, encoding = content
        headers = {messages.KEY: key, messages.ACKNOWLEDGED: ",".join(acknowledged), **encoding}
        reader = Reader(LARGEST_REPLY)
        self.sent_bytes += len(body)
        try:
            async with self._client.stream("POST", path, content=body, headers=headers) as response:
                if response.status_code != httpx.codes.OK:
                    must_be_fine(response.status_code, await response.aread(), self.settings)
                async for data in response.aiter_raw():
                    self.received_bytes += len(data)
                    for frame in reader.feed(data):
                        if frame.kind != BEAT:
                            yield frame.kind, frame.payload
                        if frame.kind in (RESULT, FAILURE):
                            return
        except httpx.TransportError as error:
            raise Lost(_words(error)) from error
        raise Lost("the connection ended before the reply did")


def client_options(settings: HttpSettings) -> dict[str, Any]:
    """What every client of this server is made with."""
    return {
        "base_url": settings.url,
        "headers": {
            "Authorization": f"Bearer {settings.token.get_secret_value()}",
            "Content-Type": messages.CONTENT,
            "User-Agent": f"rlctl/{__version__}",
        },
        "timeout": httpx.Timeout(settings.silence_timeout_s, connect=settings.connect_timeout_s),
        "verify": _trust(settings),
        # A proxy of the environment is for the outer world; the server is named by its user.
        "trust_env": False,
    }


def _trust(settings: HttpSettings) -> ssl.SSLContext | bool:
    """Whose certificates are believed. Raises ConfigError when `ca_file` cannot be read."""
    if settings.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"remote_backend.http.ca_file {settings.ca_file} cannot be used: {error.strerror or error}.",
            hint="it holds the certificate, PEM, that signed the server's.",
        ) from error


def pack_body(body: bytes) -> tuple[bytes, dict[str, str]]:
    """A request's body and the header that says how it is packed."""
    packed = pack(body)
    return packed, {"Content-Encoding": messages.COMPRESSED} if packed is not body else {}


def must_be_fine(status: int, content: bytes, settings: HttpSettings) -> None:
    """Raises what a reply says is wrong: Lost for trouble that passes."""
    if status < httpx.codes.BAD_REQUEST:
        return
    if status in PASSING:
        raise Lost(f"a proxy answered {status}")
    if status == httpx.codes.UNAUTHORIZED:
        raise BackendUnavailable(
            f"{settings.url} does not take this token.",
            hint="set RLCTL_REMOTE_BACKEND__HTTP__TOKEN to what `rlctl serve` was given or printed.",
        )
    _raise_failure(status, content, settings)


def _raise_failure(status: int, content: bytes, settings: HttpSettings) -> NoReturn:
    try:
        error: RlctlError = codec.decode(content, Failure).error()
    except WireError:
        text = content[:200].decode("utf-8", "replace").strip()
        error = BackendUnavailable(f"{settings.url} answered {status}{': ' + text if text else ''}.")
    raise error


def _words(error: httpx.TransportError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
