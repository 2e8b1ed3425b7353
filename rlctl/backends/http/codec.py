"""Records to MessagePack and back, each checked against the type that its reader asks for.

Arrays travel as their bytes, little-endian, under a number that tells their type; they are read without a copy and are
read-only then. A reader gets the type it asked for or a WireError: no name in a message is ever looked up.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

import msgspec
import numpy as np

from rlctl.errors import BackendError

T = TypeVar("T")

_TYPES = {1: np.dtype("<i4"), 2: np.dtype("<f4"), 3: np.dtype("?")}
_CODES = {dtype: code for code, dtype in _TYPES.items()}


class WireError(BackendError):
    """Bytes that are not the message they should be."""


def encode(record: Any) -> bytes:
    return _ENCODER.encode(record)


def decode(data: bytes | memoryview, kind: type[T]) -> T:
    """The record in `data`. Raises WireError, with the field that is wrong."""
    try:
        return _decoder(kind).decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not a {getattr(kind, '__name__', kind)}: {error}.") from error


def plain(record: Any) -> Any:
    """The record as what JSON can say; it may hold no array."""
    return msgspec.to_builtins(record)


def _array_to_ext(value: Any) -> msgspec.msgpack.Ext:
    if not isinstance(value, np.ndarray) or value.ndim != 1:
        raise TypeError(f"{type(value).__name__} does not travel")
    code = _CODES[value.dtype.newbyteorder("<") if sys.byteorder == "big" else value.dtype]
    return msgspec.msgpack.Ext(code, np.ascontiguousarray(value, dtype=_TYPES[code]).view(np.uint8).data)


def _array_of_ext(code: int, data: memoryview) -> Any:
    if code not in _TYPES or len(data) % _TYPES[code].itemsize:
        raise ValueError(f"{len(data)} bytes under the type {code} are no array")
    return np.frombuffer(data, dtype=_TYPES[code])


def _checked_array(kind: Any, value: Any) -> Any:
    """`kind` is numpy's alias of an array type: int32 where log-probs should be is refused."""
    wanted = np.dtype(kind.__args__[1].__args__[0]) if getattr(kind, "__origin__", None) is np.ndarray else None
    if wanted is None or not isinstance(value, np.ndarray) or value.dtype != wanted:
        raise ValueError(f"{type(value).__name__} where an array of {wanted} should be")
    return value


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_array_to_ext)
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def _decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    if kind not in _decoders:
        _decoders[kind] = msgspec.msgpack.Decoder(kind, ext_hook=_array_of_ext, dec_hook=_checked_array)
    return _decoders[kind]
