"""What W&B wrote while offline, read from its file: records of protobuf in LevelDB's log format.

Source: https://github.com/google/leveldb/blob/main/doc/log_format.md; the file begins with seven bytes of W&B's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER, FULL, LAST = 32768, 7, 1, 4


def records(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    raw, at, content = path.read_bytes(), HEADER, b""
    while at < len(raw):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        length, kind = int.from_bytes(raw[at + 4 : at + 6], "little"), raw[at + 6]
        content += raw[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            yield record
            content = b""


def name(item: Any) -> str:
    return item.key or ".".join(item.nested_key)
