"""Checkpoints on their way from and to the server, a file at a time, each checked by size and SHA-256."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import httpx

from rlctl import durable
from rlctl.backends.http import messages
from rlctl.backends.http.settings import HttpSettings
from rlctl.backends.http.transport import Lost, client_options, must_be_fine
from rlctl.errors import BackendError, CheckpointError, RlctlError

if TYPE_CHECKING:  # which imports this module
    from rlctl.backends.http.backend import HttpBackend

PIECE = 2**20
PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """A copy at the server, written there while the run goes on, then fetched."""

    backend: HttpBackend
    folder: str
    loop: asyncio.AbstractEventLoop

    def write(self, path: Path) -> Mapping[str, str]:
        """From any thread but the loop's own."""
        work = asyncio.run_coroutine_threadsafe(self.backend.written(self.folder, path), self.loop)
        try:
            return work.result()
        except RlctlError as error:
            raise OSError(error.message) from error


def fetch(settings: HttpSettings, session: str, folder: messages.Folder, path: Path) -> None:
    """Bring every file of the folder into `path`. Raises OSError, and BackendError when it cannot be reached."""
    path.mkdir(parents=True, exist_ok=True)
    with httpx.Client(**client_options(settings)) as client:
        for file in folder.files:
            target = path / _inside(file.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            address = f"/sessions/{session}/folders/{folder.folder}/{file.name}"
            _again_and_again(settings, lambda a=address, f=file, t=target: _fetch_one(client, a, f, t, settings))  # type: ignore[misc]


def _fetch_one(client: httpx.Client, address: str, file: messages.File, target: Path, settings: HttpSettings) -> None:
    digest = hashlib.sha256()
    with client.stream("GET", address, headers={messages.KEY: uuid4().hex}) as response:
        if response.status_code != httpx.codes.OK:
            must_be_fine(response.status_code, response.read(), settings)
        with target.open("wb") as out:
            for piece in response.iter_raw(PIECE):
                digest.update(piece)
                out.write(piece)
    if digest.hexdigest() != file.sha256:
        raise Lost(f"{file.name} came damaged")


def send(settings: HttpSettings, session: str, folder: messages.Folder, path: Path) -> None:
    """Bring a checkpoint's files to the server. Raises CheckpointError when they cannot be read."""
    with httpx.Client(**client_options(settings)) as client:
        for file in durable.files_in(path):
            address = f"/sessions/{session}/folders/{folder.folder}/{file.relative_to(path).as_posix()}"
            _again_and_again(settings, lambda a=address, f=file: _send_one(client, a, f, settings))  # type: ignore[misc]


def _send_one(client: httpx.Client, address: str, file: Path, settings: HttpSettings) -> None:
    response = client.put(address, content=_pieces(file), headers={messages.KEY: uuid4().hex})
    must_be_fine(response.status_code, response.content, settings)


def _pieces(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as stream:
            while piece := stream.read(PIECE):
                yield piece
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}.") from error


def _again_and_again(settings: HttpSettings, once: Callable[[], None]) -> None:
    """Repeating the transfer of a file is always safe."""
    began = time.monotonic()
    while True:
        try:
            once()
            return
        except (httpx.TransportError, Lost) as error:
            if time.monotonic() - began > settings.reconnect_s:
                raise BackendError(
                    f"{settings.url}: a checkpoint's file could not be brought over: {error}."
                ) from error
        time.sleep(PAUSE_S)


def _inside(name: str) -> Path:
    """The server's word for a file, which must not lead out of the checkpoint."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise BackendError(f"the server names a file {name[:80]!r}, which would lead out of the checkpoint.")
    return path
