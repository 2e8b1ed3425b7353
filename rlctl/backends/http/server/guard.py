"""What stands before every route: the token, and limits on what a request may make the server hold or wait for.

A request without the right token is told nothing but 401, before its body is read. A body is refused by its declared
length where it declares one, and otherwise as soon as it has grown too long.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlctl.backends.http.codec import WireError

OPEN_ROUTES = frozenset({"/health"})


class TooLarge(WireError):
    """A body longer than the limit."""


class TooSlow(WireError):
    """A body that did not come in time."""


class Guard:
    """ASGI middleware. `limit_of` gives the bytes that a body of a path may have; the application, which reads the
    body, gets TooLarge and TooSlow from it.
    """

    def __init__(self, app: ASGIApp, *, token: str, limit_of: Callable[[str], int], body_timeout_s: float) -> None:
        self.app, self.limit_of, self.body_timeout_s = app, limit_of, body_timeout_s
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if scope["path"] not in OPEN_ROUTES and not self._knows(headers.get(b"authorization", b"")):
            await _refuse(send, 401, {b"www-authenticate": b"Bearer"})
            return
        limit = self.limit_of(scope["path"])
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            await _refuse(send, 413 if declared.isdigit() else 400, {b"connection": b"close"})
            return
        await self.app(scope, self._bounded(receive, limit), send)

    def _knows(self, given: bytes) -> bool:
        return hmac.compare_digest(given, self._expected)

    def _bounded(self, receive: Receive, limit: int) -> Receive:
        read, ended = 0, False

        async def bounded() -> Message:
            nonlocal read, ended
            if ended:  # what is waited for now is the client's leaving
                return await receive()
            try:
                async with asyncio.timeout(self.body_timeout_s):
                    message = await receive()
            except TimeoutError as error:
                raise TooSlow(f"nothing more of the body came for {self.body_timeout_s:g} s.") from error
            read += len(message.get("body", b""))
            ended = not message.get("more_body", False)
            if read > limit:
                raise TooLarge(f"the body is longer than {limit:,} bytes.")
            return message

        return bounded


async def _refuse(send: Send, status: int, headers: dict[bytes, bytes]) -> None:
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers.items(), (b"content-length", b"0")]}
    )
    await send({"type": "http.response.body", "body": b""})


def patient_protocol(head_timeout_s: float) -> Any:
    """uvicorn's HTTP/1.1 protocol, which hangs up on a connection whose request head takes longer than that.

    uvicorn itself waits for ever for the first request of a connection, byte by byte if need be.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Patient(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._head_timer = self.loop.call_later(head_timeout_s, self._give_up)

        def _give_up(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_timer.cancel()
            super().connection_lost(exc)

    return Patient
