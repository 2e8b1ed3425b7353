"""A blocking HTTP session for the stand-in clients, which reports errors as `requests` does."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from typing import Any
from urllib.parse import urlencode


class Response:
    def __init__(self, status: int, content: bytes, kind: str) -> None:
        self.status_code, self.content, self.kind = status, content, kind

    def json(self) -> Any:
        return json.loads(self.content)


class HTTPError(OSError):
    """As requests.HTTPError: the status is on its response, the body is not in its text."""

    def __init__(self, response: Response, path: str) -> None:
        super().__init__(f"{response.status_code} error for {path}")
        self.response = response


class Session:
    """One kept connection, as a client of the platform has."""

    def __init__(self, host: str, port: int) -> None:
        self.address = ("127.0.0.1" if host == "localhost" else host, port)
        self._connection: http.client.HTTPConnection | None = None

    def request(self, method: str, path: str, *, params: Any = None, body: Any = None, octets: bytes | None = None):
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*self.address, timeout=600)
        query = f"?{urlencode(params)}" if params else ""
        content, kind = (octets, "application/octet-stream") if octets is not None else (None, "application/json")
        if octets is None and body is not None:
            content = json.dumps(body).encode()
        try:
            self._connection.request(method, f"{path}{query}", content, {"Content-Type": kind})
            reply = self._connection.getresponse()
            response = Response(reply.status, reply.read(), reply.headers.get("Content-Type", ""))
        except OSError:
            self._connection.close()
            self._connection = None
            raise
        except http.client.HTTPException as error:
            self._connection.close()
            self._connection = None
            raise ConnectionResetError(str(error)) from error
        if response.status_code >= 400:
            raise HTTPError(response, path)
        return response

    def post(self, path: str, **kwargs: Any) -> Response:
        return self.request("POST", path, **kwargs)

    def get(self, path: str) -> Response:
        return self.request("GET", path)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def launch(config: Any, *, host: str, port: int, release: str, log_prob_engine: str) -> subprocess.Popen[bytes]:
    """Start a server with the flags that the clients pass, and wait until it answers."""
    command = [sys.executable, "-m", "tests.arctic.server", "--host", "0.0.0.0", "--port", str(port)]
    for name in ("training", "sampling", "log_prob"):
        command += [f"--{name.replace('_', '-')}-gpus", str(getattr(config, f"{name}_gpus"))]
    command += ["--release", release, "--log-prob-engine", log_prob_engine]
    colocate = config.colocate if hasattr(config, "colocate") else config.backend.colocate
    process = subprocess.Popen([*command, *(["--colocate"] if colocate else [])])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            Session(host, port).get("/health")
            return process
        except OSError:
            time.sleep(0.1)
    process.kill()
    raise TimeoutError("no server")
