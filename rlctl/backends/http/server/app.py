"""The routes of `rlctl serve`.

GET    /health                                   no token: protocol and version
GET    /info                                     what is hosted, who holds it
GET    /metrics                                  for Prometheus
POST   /sessions                                 Open -> Opened; 409 while somebody else has it
POST   /sessions/S/beat                          renew the lease
POST   /sessions/S/abandon                       end the running verb soon
DELETE /sessions/S                               close the job
POST   /sessions/S/verbs/V                       a verb by its key -> frames
POST   /sessions/S/folders                       a new folder to send a checkpoint to
PUT    /sessions/S/folders/F/NAME                one file of it
GET    /sessions/S/folders/F/NAME                one file of a checkpoint that was saved
DELETE /sessions/S/folders/F
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from starlette.requests import ClientDisconnect

from rlctl import __version__
from rlctl.backends.http import codec, messages
from rlctl.backends.http.codec import WireError
from rlctl.backends.http.failures import failure_of
from rlctl.backends.http.frames import unpack
from rlctl.backends.http.server.calls import MOST_REPLIES, frames
from rlctl.backends.http.server.guard import TooLarge, TooSlow
from rlctl.backends.http.server.measures import Measures
from rlctl.backends.http.server.sessions import SHUTTING_DOWN, Held, Host, NoSuchSession
from rlctl.backends.http.server.verbs import work_of
from rlctl.errors import BackendUnavailable, ConfigError, RlctlError

MOST_KEY_CHARACTERS = 64
STATUS: dict[type[RlctlError], int] = {
    NoSuchSession: 404, TooLarge: 413, TooSlow: 408, WireError: 400, ConfigError: 400, BackendUnavailable: 409,
}  # fmt: skip
"""Of errors before a verb begins; the first kind that fits."""
KIND = messages.CONTENT


def app_of(host: Host, *, beat_s: float) -> FastAPI:
    """The application; it closes its session when it ends."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        leases = asyncio.create_task(host.watch_leases())
        try:
            yield
        finally:
            leases.cancel()
            with suppress(asyncio.CancelledError):
                await leases
            host.closing = True
            if host.held is not None:
                await host.close(host.held, why=SHUTTING_DOWN)

    app = FastAPI(lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    measures = Measures(host)
    _add_errors(app)
    _add_about(app, host, measures)
    _add_sessions(app, host)
    _add_verbs(app, host, measures, beat_s=beat_s)
    _add_folders(app, host)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RlctlError)
    async def told(_: Request, error: RlctlError) -> Response:
        status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 422)
        # What follows of a body that was not read to its end must not be taken for the next request.
        unread = {"Connection": "close"} if isinstance(error, TooLarge | TooSlow) else {}
        return Response(codec.encode(failure_of(error)), status, headers=unread, media_type=KIND)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)  # nobody reads it


def _add_about(app: FastAPI, host: Host, measures: Measures) -> None:
    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "closing" if host.closing else "ok", "protocol": messages.PROTOCOL, "version": __version__}

    @app.get("/info")
    async def info() -> Response:
        held = host.held
        about = {
            "backend": host.name,
            "lease_s": host.lease_s,
            "session": None if held is None else held.about(),
            "device": None if held is None or held.info is None else held.info,
        }
        return Response(json.dumps(codec.plain(about)), media_type="application/json")

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(measures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_sessions(app: FastAPI, host: Host) -> None:
    @app.post("/sessions")
    async def open_session(request: Request) -> Response:
        asked = codec.decode(await _body(request, host), messages.Open)
        opened = await host.open(asked, ticket=_key(request))
        return Response(codec.encode(opened), media_type=KIND)

    @app.post("/sessions/{name}/beat")
    async def beat(name: str) -> Response:
        host.session(name).hear()
        return Response(status_code=204)

    @app.post("/sessions/{name}/abandon")
    async def abandon(name: str) -> Response:
        able = host.session(name).backend.abandon()
        return Response(codec.encode(able), media_type=KIND)

    @app.delete("/sessions/{name}")
    async def close(name: str) -> Response:
        await host.close(host.session(name), why="its client closed it")
        return Response(status_code=204)


def _add_verbs(app: FastAPI, host: Host, measures: Measures, *, beat_s: float) -> None:
    @app.post("/sessions/{name}/verbs/{verb}")
    async def carry_out(name: str, verb: str, request: Request) -> Response:
        held = _heard(host, name)
        if verb not in messages.VERBS:
            raise WireError(f"{verb[:40]!r} is no verb; this server knows {', '.join(messages.VERBS)}.")
        body = await _body(request, host)
        held.calls.acknowledge(request.headers.get(messages.ACKNOWLEDGED, "").split(",")[:MOST_REPLIES])
        key = _key(request)
        call = held.calls.known(key, verb)
        if call is None:
            # Decoding a large body would hold up everybody's beats.
            work = measures.timed(verb, await asyncio.to_thread(work_of, held, verb, body), received=len(body))
            call = held.calls.once(key, verb, work, in_turn=verb not in messages.BESIDE)
        return StreamingResponse(measures.sent(frames(call, beat_s=beat_s)), media_type="application/x-rlctl-frames")


def _add_folders(app: FastAPI, host: Host) -> None:
    @app.post("/sessions/{name}/folders")
    async def new_folder(name: str) -> Response:
        folder = _heard(host, name).files.new()
        return Response(codec.encode(messages.Folder(folder.name)), media_type=KIND)

    @app.put("/sessions/{name}/folders/{folder}/{file:path}")
    async def receive(name: str, folder: str, file: str, request: Request) -> Response:
        held = _heard(host, name)
        path = held.files.folder(folder).file(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out:
            async for part in request.stream():
                held.hear()
                await asyncio.to_thread(out.write, part)
        return Response(status_code=204)

    @app.get("/sessions/{name}/folders/{folder}/{file:path}")
    async def give(name: str, folder: str, file: str) -> Response:
        path = _heard(host, name).files.folder(folder).file(file)
        if not path.is_file():
            raise NoSuchSession(f"the folder {folder} has no file {file[:80]!r}.")
        return FileResponse(path)

    @app.delete("/sessions/{name}/folders/{folder}")
    async def remove(name: str, folder: str) -> Response:
        files = _heard(host, name).files
        await asyncio.to_thread(files.remove, folder)
        return Response(status_code=204)


def _heard(host: Host, name: str) -> Held:
    held = host.session(name)
    held.hear()
    return held


def _key(request: Request) -> str:
    key = request.headers.get(messages.KEY, "")
    if not key or len(key) > MOST_KEY_CHARACTERS:
        raise WireError(f"a request without {messages.KEY}, by which a repeated one would be known.")
    return key


async def _body(request: Request, host: Host) -> bytes:
    body = await request.body()
    if request.headers.get("content-encoding") == messages.COMPRESSED:
        return unpack(body, limit=host.max_body_bytes)
    return body
