"""The farm's server: POST /METHOD with a JSON object of arguments. `python -m rlctl_toyfarm.server` prints its port."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlctl_toyfarm.policy import Policy


class Farm:
    """One policy behind a lock, and the methods that a request may name."""

    def __init__(self) -> None:
        self.policy = Policy(1)
        self.lock = threading.Lock()
        self.methods: dict[str, Callable[..., Any]] = {
            "create": self.create,
            "sample": lambda requests: [self.policy.sample(request) for request in requests],
            "score": lambda completions, temperature: self.policy.score(completions, temperature),
            "gradient": lambda rows, temperature, clip: self.policy.gradient(rows, temperature, tuple(clip)),
            "step": lambda lr, max_norm: self.policy.step(lr, max_norm),
            "publish": lambda: self.policy.publish(),
            "save": lambda: self.policy.save(),
            "load": lambda state: self.policy.load(state),
        }

    def create(self, vocab_size: int) -> dict[str, int]:
        self.policy = Policy(vocab_size)
        return {"version": 0}

    def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        with self.lock:
            return self.methods[name](**arguments)


def handler_of(farm: Farm) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                self._send(200, farm.answer(self.path.strip("/"), json.loads(body)))
            except (KeyError, TypeError, ValueError, IndexError) as error:
                self._send(400, {"detail": f"{type(error).__name__}: {error}"})

        def _send(self, status: int, value: Any) -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), handler_of(Farm()))
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
