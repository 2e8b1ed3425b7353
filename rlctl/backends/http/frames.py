"""How the reply to a verb is cut up: a beat now and then while it runs, parts as they come, then one end.

    [kind: 1 byte][flags: 1 byte][length: 4 bytes, big-endian][payload]

A verb may run for an hour; proxies cut a connection that says nothing for a minute. A payload above COMPRESS_ABOVE
bytes is compressed with zstd, level 1, where that makes it smaller: token ids shrink to a half, log-probs hardly.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import zstandard

from rlctl.backends.http.codec import WireError

BEAT, PART, RESULT, FAILURE = range(4)
Kind = Literal[0, 1, 2, 3]

COMPRESS_ABOVE = 4096
"""Bytes; less is one packet or two."""

_HEADER = struct.Struct(">BBI")
_COMPRESSED = 1


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    payload: bytes = b""

    def bytes(self) -> bytes:
        packed = pack(self.payload)
        flags = _COMPRESSED if packed is not self.payload else 0
        return _HEADER.pack(self.kind, flags, len(packed)) + packed


def pack(payload: bytes) -> bytes:
    """The payload, compressed where that pays; the very same object where it does not."""
    if len(payload) <= COMPRESS_ABOVE:
        return payload
    packed = zstandard.ZstdCompressor(level=1).compress(payload)
    return packed if len(packed) < len(payload) else payload


def unpack(data: bytes, *, limit: int) -> bytes:
    """What `pack` compressed. Raises WireError when it would be larger than `limit` bytes, before it is."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > limit or size < 0:
            raise WireError(f"a compressed message of {size:,} bytes, where at most {limit:,} are taken.")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=limit)
    except zstandard.ZstdError as error:
        raise WireError(f"a message that is not zstd: {error}.") from error


@dataclass
class Reader:
    """Frames out of bytes as they arrive, whatever the cuts between them."""

    limit: int
    """Bytes of the largest payload."""
    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete. Raises WireError."""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            kind, flags, length = _HEADER.unpack_from(self._buffer)
            if kind > FAILURE or flags > _COMPRESSED or length > self.limit:
                raise WireError(f"not a frame: kind {kind}, flags {flags}, {length:,} bytes.")
            if len(self._buffer) < _HEADER.size + length:
                return
            payload = bytes(self._buffer[_HEADER.size : _HEADER.size + length])
            del self._buffer[: _HEADER.size + length]
            yield Frame(kind, unpack(payload, limit=self.limit) if flags else payload)

    @property
    def is_between_frames(self) -> bool:
        return not self._buffer
