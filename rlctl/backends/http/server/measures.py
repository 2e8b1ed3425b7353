"""What `GET /metrics` tells Prometheus."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rlctl.backends.http.server.calls import Tell, Work
from rlctl.backends.http.server.sessions import Host

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Measures:
    """Counters of one server, apart from those of anything else in the process."""

    def __init__(self, host: Host) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "rlctl_verb_seconds", "Time to carry a verb out", ["verb"], registry=self.registry, buckets=SECONDS
        )
        self._failed = Counter("rlctl_verb_failures", "Verbs that failed", ["verb"], registry=self.registry)
        self._received = Counter("rlctl_received_bytes", "Bodies of verbs, decompressed", registry=self.registry)
        self._sent = Counter("rlctl_sent_bytes", "Frames, compressed", registry=self.registry)
        held = Gauge("rlctl_session_held", "1 while a client has the session", registry=self.registry)
        held.set_function(lambda: float(host.held is not None))
        silent = Gauge("rlctl_session_silent_seconds", "Since its client was heard", registry=self.registry)
        silent.set_function(lambda: host.held.silent_s if host.held else 0.0)
        updates = Gauge("rlctl_session_updates", "Updates in the session", registry=self.registry)
        updates.set_function(lambda: float(host.held.updates) if host.held else 0.0)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def timed(self, verb: str, work: Work, *, received: int) -> Work:
        """The same work, measured."""
        self._received.inc(received)

        async def measured(tell: Tell) -> bytes:
            start = time.perf_counter()
            try:
                with self._failed.labels(verb).count_exceptions():
                    return await work(tell)
            finally:
                self._seconds.labels(verb).observe(time.perf_counter() - start)

        return measured

    async def sent(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for frame in frames:
            self._sent.inc(len(frame))
            yield frame
