"""What W&B wrote while offline, read from its file: records of protobuf in LevelDB's log format.

Source: https://github.com/google/leveldb/blob/main/doc/log_format.md; the file begins with seven bytes of W&B's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER, FULL, LAST = 32768, 7, 1, 4


def records(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    raw, at, content = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(raw):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        length, kind = int.from_bytes(raw[at + 4 : at + 6], "little"), raw[at + 6]
        at += HEADER + length
        if at > len(raw):
            return
        content += raw[at - length : at]
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            yield record
            content = b""


def files(run: Path) -> list[Path]:
    """The file of each life of a run, whole."""
    found = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    for file in found:
        wait(file)
    return found


def wait(file: Path) -> None:
    """Until W&B's own process has brought a file to its end, shortly after the run's."""
    deadline = time.monotonic() + 30
    while not any(record.HasField("exit") for record in records(file)):
        assert time.monotonic() < deadline, "W&B did not end its file"
        time.sleep(0.02)


def steps(path: Path) -> list[int]:
    return [record.history.step.num for record in records(path) if record.HasField("history")]


def name(item: Any) -> str:
    return item.key or ".".join(item.nested_key)
