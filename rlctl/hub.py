"""Is a model or data set here already, and if not, can the hub be reached: answered in seconds, without a download.

Looks only at folders and opens at most one TCP connection; with HF_HUB_OFFLINE=1 it opens none. Imports nothing
heavy, so it can decide which variant of a preset runs.

Source of the folder layout and the variables: https://huggingface.co/docs/huggingface_hub/guides/manage-cache and
https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

from __future__ import annotations

import os
import re
import socket
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_ENDPOINT = "https://huggingface.co"


def is_cached_model(model_id: str) -> bool:
    """Whether a snapshot of the model lies in the hub cache. It may be an incomplete one: files are not counted."""
    snapshots = hub_cache() / "--".join(["models", *model_id.split("/")]) / "snapshots"
    return any(snapshots.glob("*/*"))


def is_cached_dataset(dataset_id: str) -> bool:
    """Whether `datasets` has prepared the data set here; a bare snapshot is not enough for it to work offline."""
    *namespace, name = dataset_id.split("/")
    prepared = datasets_cache() / "___".join([*namespace, _snakecase(name)])
    return any(prepared.glob("*/*/*/dataset_info.json"))


def hub_reachable(timeout_s: float = 2.0) -> tuple[bool, str]:
    """Whether the hub, or the proxy before it, accepts a connection within `timeout_s` seconds; and if not, why."""
    if is_offline():
        return False, "HF_HUB_OFFLINE is set"
    host, port = _address(os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT)
    reason = _connect(host, port, timeout_s)
    return reason is None, reason or ""


def is_offline(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment forbids to ask the hub, by huggingface_hub's own rule."""
    environ = os.environ if environ is None else environ
    value = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in {"1", "ON", "YES", "TRUE"}


def hub_cache() -> Path:
    """Where huggingface_hub keeps snapshots."""
    return _folder("HF_HUB_CACHE") or _folder("HUGGINGFACE_HUB_CACHE") or _home() / "hub"


def datasets_cache() -> Path:
    """Where `datasets` keeps what it has prepared."""
    return _folder("HF_DATASETS_CACHE") or _home() / "datasets"


def _home() -> Path:
    return _folder("HF_HOME") or (_folder("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"


def _folder(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(os.path.expandvars(value)).expanduser() if value else None


def _snakecase(name: str) -> str:
    """CamelCase -> camel_case, as `datasets.naming.camelcase_to_snakecase` names its folders."""
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z\d])([A-Z])", r"\1_\2", name).lower()


def _address(endpoint: str) -> tuple[str, int]:
    """Host and port to connect to: the proxy's where the environment sends the endpoint through one."""
    target = urlsplit(endpoint)
    proxy = urllib.request.getproxies().get(target.scheme)
    if proxy and not urllib.request.proxy_bypass(target.hostname or ""):
        target = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return target.hostname or "", target.port or (443 if target.scheme == "https" else 80)


def _connect(host: str, port: int, timeout_s: float) -> str | None:
    """Why no connection comes about; None when one does.

    In a daemon thread: looking up a name has no time-out, and can take a minute where there is no network.
    """
    reasons: list[str | None] = []

    def attempt() -> None:
        try:
            socket.create_connection((host, port), timeout=timeout_s).close()
        except OSError as error:
            reasons.append(f"{host}:{port} cannot be reached ({error})")
        else:
            reasons.append(None)

    thread = threading.Thread(target=attempt, name="hub_reachable", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return reasons[0] if reasons else f"{host}:{port} did not answer within {timeout_s:g} s"
