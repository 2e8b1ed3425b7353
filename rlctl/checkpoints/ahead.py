"""Batches drawn ahead of their step, in a checkpoint: one file of arrays, with a text that says what they are.

Nothing is pickled: records are written by the names of their classes, of which only those below are made again.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl import types
from rlctl.errors import CheckpointError
from rlctl.grpo import Sampled
from rlctl.pipeline import Drawn
from rlctl.rollouts import Batch
from rlctl.step_report import Filled

if TYPE_CHECKING:  # numpy is loaded by whoever has arrays
    import numpy as np

FILE = "ahead.npz"
_TEXT, _KIND = "records", "kind"

_CLASSES: dict[str, type[Any]] = {
    each.__name__: each
    for each in (
        Drawn, Sampled, Batch, types.Rollout, types.Problem, types.Prompt, types.Completion, types.Episode, Filled,
        types.GenerateStats,
    )
}  # fmt: skip

Arrays = dict[str, list["np.ndarray[Any, Any]"]]
"""Type -> the arrays of that type, one behind the other in the file."""


def packed(drawn: Sequence[Drawn]) -> bytes:
    """Raises TypeError where a problem holds what is no plain data."""
    import numpy as np

    arrays: Arrays = {}
    text = json.dumps(_plain(list(drawn), arrays)).encode()
    # Any: numpy's types take whatever has a name for a flag.
    joined: dict[str, Any] = {name: np.concatenate(parts) for name, parts in arrays.items()}
    joined[_TEXT] = np.frombuffer(text, dtype=np.uint8)
    stream = io.BytesIO()
    np.savez(stream, **joined)
    return stream.getvalue()


def read(folder: Path) -> list[Drawn]:
    """What `packed` wrote into the checkpoint; [] where there is nothing. Raises CheckpointError."""
    import numpy as np

    if not (folder / FILE).exists():
        return []
    try:
        with np.load(folder / FILE, allow_pickle=False) as stored:
            arrays = dict(stored)
        found = _record(json.loads(arrays.pop(_TEXT).tobytes()), _Cut(arrays))
        if not isinstance(found, list) or not all(isinstance(each, Drawn) for each in found):
            raise TypeError("it holds something else")
    except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{folder / FILE} does not hold the samples of later steps: {error}.") from error
    return found


def _plain(value: Any, arrays: Arrays) -> Any:
    """The value as JSON says it, each array put behind those of its type."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list):
        return [_plain(each, arrays) for each in value]
    if isinstance(value, tuple):
        return {_KIND: "tuple", "items": [_plain(each, arrays) for each in value]}
    if isinstance(value, Mapping):
        return {_KIND: "mapping", "items": [[_plain(k, arrays), _plain(v, arrays)] for k, v in value.items()]}
    if is_dataclass(value) and type(value).__name__ in _CLASSES:
        own = {field.name: _plain(getattr(value, field.name), arrays) for field in fields(value)}
        return {_KIND: type(value).__name__, "fields": own}
    if hasattr(value, "dtype") and value.ndim == 1:
        arrays.setdefault(value.dtype.name, []).append(value)
        return {_KIND: "array", "type": value.dtype.name, "length": len(value)}
    raise TypeError(f"a {type(value).__name__} is no plain data")


class _Cut:
    """Takes the arrays of a file one after the other."""

    def __init__(self, joined: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.joined, self.at = joined, dict.fromkeys(joined, 0)

    def next(self, kind: str, length: int) -> np.ndarray[Any, Any]:
        start = self.at[kind]
        self.at[kind] = start + length
        if self.at[kind] > len(self.joined[kind]):
            raise ValueError(f"there are too few numbers of type {kind}")
        return self.joined[kind][start : start + length]


def _record(plain: Any, arrays: _Cut) -> Any:
    if isinstance(plain, list):
        return [_record(each, arrays) for each in plain]
    if not isinstance(plain, dict):
        return plain
    kind = plain[_KIND]
    if kind == "tuple":
        return tuple(_record(each, arrays) for each in plain["items"])
    if kind == "mapping":
        return {_record(k, arrays): _record(v, arrays) for k, v in plain["items"]}
    if kind == "array":
        return arrays.next(plain["type"], plain["length"])
    return _CLASSES[kind](**{name: _record(value, arrays) for name, value in plain["fields"].items()})
