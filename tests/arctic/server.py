"""The platform's HTTP server, compatible on the wire with both of its releases: `Server(platform, release=...)`.

`python -m tests.arctic.server --port N --training-gpus 1 ...` takes the flags that the clients start a server with.
"""

from __future__ import annotations

import argparse
import json
import threading
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from tests.arctic import wire
from tests.arctic.platform import Platform, Refused

OCTETS = "application/octet-stream"
JSON = "application/json"
Release = Literal["head", "0.1.2"]


class Server:
    """A server in threads of this process, as a context manager."""

    def __init__(self, platform: Platform | None = None, *, release: Release = "head", port: int = 0) -> None:
        self.platform = platform or Platform()
        self.release = release
        self.requests: list[tuple[str, str, dict[str, str], str]] = []
        """(method, path, query, content type)"""
        self._http = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._http.daemon_threads = True
        self.port: int = self._http.server_address[1]

    def __enter__(self) -> Server:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def serve(self) -> None:
        self._http.serve_forever()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self
        routes = Routes(self.platform, self.release)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                self._answer("GET")

            def do_POST(self) -> None:
                self._answer("POST")

            def _answer(self, method: str) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.requests.append((method, parts.path, query, self.headers.get("Content-Type", "")))
                try:
                    with server.platform.lock:
                        content, kind = routes.answer(method, parts.path, query, body)
                    self._send(200, content, kind)
                except Refused as error:
                    self._send(error.status, json.dumps({"detail": error.detail}).encode(), JSON)
                except Exception:  # as uvicorn: no detail, and the connection is closed
                    traceback.print_exc()
                    self._send(500, b"Internal Server Error", "text/plain")
                    self.close_connection = True

            def _send(self, status: int, content: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        return Handler


class Routes:
    """Path, query and body of a request -> content and content type."""

    def __init__(self, platform: Platform, release: Release) -> None:
        self.platform, self.release = platform, release

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[bytes, str]:
        name = path.strip("/")
        if method == "GET" and name.startswith("job/"):
            job = self.platform.jobs.get(int(name.removeprefix("job/")))
            if job is None:
                raise Refused(404, f"Job {name.removeprefix('job/')} not found")
            return _json(job.record())
        table = {**self._common(), **(self._head() if self.release == "head" else self._published())}
        if name not in table:
            raise Refused(404, "Not Found")
        return table[name](query, body)

    def _common(self) -> dict[str, Callable[[dict[str, str], bytes], tuple[bytes, str]]]:
        p = self.platform
        return {
            "health": lambda q, b: _json({"status": "OK"}),
            "status": lambda q, b: _json(p.status()),
            "initialize": lambda q, b: _json(p.initialize(json.loads(b))),
            "destroy": lambda q, b: _json(p.destroy(_id(q)) if json.loads(b)["job_type"] else {}),
            "step": lambda q, b: _json(p.step(p.verified(_id(q), "training"))),
            "sleep-training": lambda q, b: self._training_sleeps(q, _body(b)),
            "wake-training": lambda q, b: self._logged("wake-training", q),
            "reset-prefix-cache": lambda q, b: self._logged("reset-prefix-cache", q),
        }

    def _head(self) -> dict[str, Callable[[dict[str, str], bytes], tuple[bytes, str]]]:
        p = self.platform
        return {
            "forward-backward": lambda q, b: _frame(p.forward_backward(p.verified(_id(q), "training"), wire.decode(b))),
            "forward": lambda q, b: _frame({**p.forward(p.jobs[_id(q)], wire.decode(b)), "avg_loss": 0.0}),
            "generate": self._generate_frame,
            "save": self._save,
            "load-checkpoint": lambda q, b: _json(p.load(p.verified(_id(q), "training"), json.loads(b)["path"])),
            "weight-sync": lambda q, b: _json(p.sync() if json.loads(b)["source_sub_job_id"] else {}),
            "operation": self._operation,
            "sleep-inference": lambda q, b: self._sleep(q, _body(b)),
            "wake-inference": lambda q, b: self._wake(q, _body(b)),
        }

    def _published(self) -> dict[str, Callable[[dict[str, str], bytes], tuple[bytes, str]]]:
        p = self.platform
        return {
            "fwd-bwd": lambda q, b: _saved(p.forward_backward(p.verified(_id(q), "training"), wire.torch_decode(b))),
            "fwd-no-grad": lambda q, b: _saved(p.forward(p.jobs[_id(q)], wire.torch_decode(b))),
            "generate": self._generate_json,
            "save-checkpoint": self._save_published,
            "sync-weights": self._sync_published,
            "sleep-inference": lambda q, b: self._sleep({"level": "missing", **q}, None),
            "wake-inference": lambda q, b: self._wake(q, _body(b)),
        }

    def _generate_frame(self, query: dict[str, str], body: bytes) -> tuple[bytes, str]:
        asked = wire.decode(body)
        job = self.platform.verified(_id(query), "sampling")
        results = self.platform.generate(job, asked["prompts"], asked["sampling_params"])
        return _frame({"job_id": job.id, "results": results})

    def _generate_json(self, query: dict[str, str], body: bytes) -> tuple[bytes, str]:
        asked = json.loads(body)
        job = self.platform.verified(_id(query), "sampling")
        results = self.platform.generate(job, asked["prompts"], asked["sampling_params"])
        return _json({"job_id": job.id, "results": results})

    def _save(self, query: dict[str, str], body: bytes) -> tuple[bytes, str]:
        asked = _body(body) or {}
        job = self.platform.verified(_id(query), "training")
        return _json(self.platform.save(job, path=asked.get("path"), export_hf=asked.get("export_hf", False)))

    def _save_published(self, query: dict[str, str], body: bytes) -> tuple[bytes, str]:
        job = self.platform.verified(_id(query), "training")
        done = self.platform.save(job, path=None, export_hf=False)
        return _json({"job_id": done["job_id"], "path": done["path"]})

    def _sync_published(self, query: dict[str, str], body: bytes) -> tuple[bytes, str]:
        asked = json.loads(body)
        self.platform.verified(asked["training_job_id"], "training")
        self.platform.verified(asked["sampling_job_id"], "sampling")
        self.platform.log("sync-weights", asked)
        return _json(self.platform.sync())

    def _operation(self, query: dict[str, str], body: bytes) -> tuple[bytes, str]:
        asked = json.loads(body)
        kind = asked["operation_type"]
        if kind == "weight-sync":
            self.platform.log("operation", asked)
            return _json(self.platform.sync())
        if kind == "reset-prefix-cache":
            return self._logged("reset-prefix-cache", query)
        raise Refused(400, f"unknown operation_type {kind!r}")

    def _sleep(self, query: dict[str, str], body: Any) -> tuple[bytes, str]:
        level = (body or {}).get("level", query.get("level", "1"))
        return _json(self.platform.sleep(self.platform.verified(_id(query), "sampling"), int(level)))

    def _wake(self, query: dict[str, str], body: Any) -> tuple[bytes, str]:
        tags = body.get("tags") if isinstance(body, dict) else body
        return _json(self.platform.wake(self.platform.verified(_id(query), "sampling"), tags))

    def _training_sleeps(self, query: dict[str, str], body: Any) -> tuple[bytes, str]:
        mode = (body or {}).get("mode", query.get("mode", "all")) if not isinstance(body, list) else "all"
        self.platform.log("sleep-training", mode)
        return _json({"job_id": _id(query), "workers": [{"status": "offloaded"}]})

    def _logged(self, operation: str, query: dict[str, str]) -> tuple[bytes, str]:
        self.platform.log(operation)
        return _json({"job_id": _id(query), "workers": []})


def _id(query: dict[str, str]) -> int:
    if "job_id" not in query:
        raise Refused(422, "job_id is missing")
    return int(query["job_id"])


def _body(body: bytes) -> Any:
    return json.loads(body) if body else None


def _json(value: Any) -> tuple[bytes, str]:
    return json.dumps(value).encode(), JSON


def _frame(value: Any) -> tuple[bytes, str]:
    return wire.encode(value), OCTETS


def _saved(value: Any) -> tuple[bytes, str]:
    return wire.torch_encode(value), OCTETS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", "-p", type=int, default=7000)
    for name in ("training", "sampling", "log-prob"):
        parser.add_argument(f"--{name}-gpus", type=int, default=0)
    parser.add_argument("--log-prob-engine", default="vllm")
    parser.add_argument("--release", default="head")
    for flag in ("colocate", "verbose", "no-ray-auto-attach"):
        parser.add_argument(f"--{flag}", action="store_true")
    arguments = parser.parse_args()
    platform = Platform(
        arguments.training_gpus, arguments.sampling_gpus, arguments.log_prob_gpus, colocate=arguments.colocate
    )
    Server(platform, release=arguments.release, port=arguments.port).serve()


if __name__ == "__main__":
    main()
