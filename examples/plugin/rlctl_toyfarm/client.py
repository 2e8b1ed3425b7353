"""The farm's client, as its makers might have written it: what is slow is async, what is quick blocks."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any


class FarmError(RuntimeError):
    """The farm refused a request."""


class FarmClient:
    """Requests to one farm."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._url, self._timeout_s = url.rstrip("/"), timeout_s
        self._closed = False

    async def create(self, vocab_size: int) -> dict[str, Any]:
        return await asyncio.to_thread(self._post, "create", vocab_size=vocab_size)

    async def sample(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._post, "sample", requests=requests)

    async def score(self, completions: list[list[int]], temperature: float = 1.0) -> list[list[float]]:
        return await asyncio.to_thread(self._post, "score", completions=completions, temperature=temperature)

    def gradient(self, rows: list[dict[str, Any]], temperature: float, clip: tuple[float, ...]) -> Any:
        return self._post("gradient", rows=rows, temperature=temperature, clip=clip)

    def step(self, lr: float, max_norm: float) -> Any:
        return self._post("step", lr=lr, max_norm=max_norm)

    async def publish(self) -> dict[str, Any]:
        return await asyncio.to_thread(self._post, "publish")

    def save(self) -> Any:
        return self._post("save")

    def load(self, state: dict[str, Any]) -> Any:
        return self._post("load", state=state)

    def close(self) -> None:
        self._closed = True

    def _post(self, method: str, **arguments: Any) -> Any:
        if self._closed:
            raise FarmError("the client is closed")
        content, headers = json.dumps(arguments).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/{method}", content, headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            raise FarmError(f"{method}: {error.read().decode()}") from error
        except OSError as error:
            raise FarmError(f"{method}: no answer from {self._url}: {error}") from error
