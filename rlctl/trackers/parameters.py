"""A run's settings as flat parameters, without anything that is secret; and the numbers among its metrics."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

SECRET_NAME = re.compile(r"(^|[_-])(token|secret|password|passwd|api[_-]?key|credentials?)$", re.IGNORECASE)
"""Keys that hold secrets in tables where anything may stand; `max_tokens` and `end_token_ids` are none."""
CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
"""`user:password@` in an address."""


def parameters(config: Mapping[str, Any]) -> dict[str, object]:
    """The record of config.resolved.json -> {dotted name: value}: settings, then the rest, then origins."""
    settings = dict(_leaves(config.get("settings", {})))
    rest = {key: value for key, value in config.items() if key not in ("settings", "origins") and value is not None}
    origins = {
        f"origin/{name}": _without_credentials(str(origin))
        for name, origin in config.get("origins", {}).items()
        if origin != "default" and name in settings
    }
    return {**settings, **dict(_leaves(rest)), **origins}


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        name = f"{above}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{name}.")
        elif not is_secret(key, value):
            yield name, _plain(value)


def is_secret(key: str, value: object) -> bool:
    """Whether a setting is left out: by its name, or because it came masked."""
    masked = isinstance(value, str) and len(value) > 3 and set(value) == {"*"}
    return masked or (value is not None and SECRET_NAME.search(key) is not None)


def _plain(value: object) -> object:
    """A number, a boolean or a text: what every tracker takes."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return _without_credentials(text)


def _without_credentials(text: str) -> str:
    return CREDENTIALS.sub("***@", text)


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """What of a record is a finite number; what could not be computed (null) and reasons (texts) are left out."""
    return {key: value for key, value in record.items() if isinstance(value, int | float) and math.isfinite(value)}
