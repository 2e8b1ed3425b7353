"""The hub, proxies, the clock and ports: at most one request, and none with HF_HUB_OFFLINE=1."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterable
from email.utils import parsedate_to_datetime

from rlctl import hub
from rlctl.doctor.facts import Hub, Port

TIMEOUT_S = 3.0
PROXIES = ("https_proxy", "http_proxy", "all_proxy", "no_proxy")


def hub_facts(timeout_s: float = TIMEOUT_S) -> Hub:
    if hub.is_offline():
        return Hub(endpoint(), offline=True)
    reachable, reason = hub.hub_reachable(timeout_s)
    skew = _skew(os.environ.get("HF_ENDPOINT") or hub.DEFAULT_ENDPOINT, timeout_s) if reachable else None
    return Hub(endpoint(), offline=False, reachable=reachable, reason=without_credentials(reason), skew_s=skew)


def endpoint() -> str:
    """Where the hub is, as it may be printed."""
    return without_credentials(os.environ.get("HF_ENDPOINT") or hub.DEFAULT_ENDPOINT)


def _skew(endpoint: str, timeout_s: float) -> float | None:
    """How far this clock is ahead of the server's, to a second; in a daemon thread, since a look-up has no limit."""
    found: list[float] = []

    def ask() -> None:
        request = urllib.request.Request(endpoint, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                date = answer.headers["Date"]
        except (OSError, ValueError):
            return
        if date:
            found.append(time.time() - parsedate_to_datetime(date).timestamp())

    thread = threading.Thread(target=ask, daemon=True, name="clock")
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else None


def proxies() -> list[str]:
    """The proxies that are set, as NAME=VALUE without their credentials."""
    named = {name: os.environ.get(name) or os.environ.get(name.upper()) for name in PROXIES}
    return [f"{name}={without_credentials(value)}" for name, value in named.items() if value]


def without_credentials(text: str) -> str:
    return re.sub(r"(?<=://)[^/@\s]+@", "***@", text)


def ports(wanted: Iterable[tuple[int, str]]) -> list[Port]:
    return [Port(number, purpose, taken=_is_taken(number)) for number, purpose in wanted]


def _is_taken(number: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        # As servers do: a connection that has just been closed is nobody's.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("0.0.0.0", number))  # closed at once, without listening
        except OSError:
            return True
    return False
