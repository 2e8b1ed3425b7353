"""A real `rlctl serve` in a process of its own, and ways to misuse the road to it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlctl.backends.http.backend import HttpBackend
from rlctl.backends.http.settings import HttpSettings
from rlctl.types import JobSpec
from tests import command_line

TOKEN = "a-token-of-the-tests"


@dataclass
class Server:
    """`log` has all that it printed."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


def start(folder: Path, *settings: str, port: int = 0, environment: dict[str, str] | None = None) -> Server:
    """A server that listens; its models are those of `settings`."""
    log = folder / f"serve-{time.monotonic_ns()}.log"
    with log.open("w") as out:
        process = command_line.start(
            "serve", "--port", str(port), *(x for s in settings for x in ("--set", s)), cwd=Path.cwd(),
            environ={**command_line.environment(), "RLCTL_SERVE__TOKEN": TOKEN, **(environment or {})},
            stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    while "listening on" not in (said := log.read_text()):
        if process.poll() is not None:
            raise AssertionError(f"the server ended with {process.returncode}: {said}")
        time.sleep(0.05)
    url = said.partition("listening on ")[2].split()[0]
    return Server(process, url, log)


def client(url: str, job: JobSpec, **settings: object) -> HttpBackend:
    given: dict[str, object] = {"url": url, "token": TOKEN, "reconnect_s": 30.0, **settings}
    return HttpBackend(HttpSettings.model_validate(given), job)


Cut = Callable[[bytes, bool], bool]
"""(what came, whether from the server) -> whether to cut the connection in place of handing it on."""


@dataclass
class Proxy:
    """Hands bytes on between a client and a server, until `cut` says otherwise."""

    target: str
    cut: Cut = lambda data, from_server: False
    cuts: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.removeprefix("http://").partition(":")
        there, back = await asyncio.open_connection(host, int(port))
        for source, sink, from_server in ((reader, back, False), (there, writer, True)):
            task = asyncio.create_task(self._hand_on(source, sink, (writer, back), from_server=from_server))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _hand_on(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        both: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        *,
        from_server: bool,
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(2**16):
                if self.cut(data, from_server):
                    self.cuts += 1
                    break
                sink.write(data)
                await sink.drain()
        for writer in both:
            writer.close()
