"""Values as TOML text: what `config show` and `config import` print. TOML has no null: it is written "null"."""

from __future__ import annotations

import json
import math
from typing import Any


def key_text(key: str) -> str:
    """One key, quoted where TOML asks for it."""
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else json.dumps(key)


def value_text(value: Any) -> str:
    """A JSON value as TOML: the two agree on strings, numbers, booleans and lists of them."""
    if value is None:
        return '"null"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key_text(k)} = {value_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
