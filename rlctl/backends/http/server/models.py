"""Which models a client may have loaded: a server must not read whatever folder a client names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rlctl.errors import ModelError


def must_be_allowed(model: str, *, allowed: Sequence[str]) -> None:
    """Raises ModelError for a model that no entry of the list covers."""
    if not any(_covers(entry, model) for entry in allowed):
        raise ModelError(
            f"this server does not lend {model[:200]!r}.",
            hint=f"its serve.models allows {', '.join(allowed) or 'nothing'}.",
        )


def _covers(entry: str, model: str) -> bool:
    folder = Path(entry).expanduser()
    if folder.is_absolute():
        # Where it really leads: neither `..` nor a link may leave the folder.
        return Path(model).is_absolute() and Path(model).resolve().is_relative_to(folder.resolve())
    pattern = "".join("[^/]*" if part == "*" else re.escape(part) for part in re.split(r"(\*)", entry))
    return not Path(model).is_absolute() and ".." not in Path(model).parts and bool(re.fullmatch(pattern, model))
