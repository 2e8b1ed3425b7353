"""The manifest of a checkpoint: size and SHA-256 of each of its files, written last.

A checkpoint is what its manifest says, whatever its folder is called. The manifest has a digest of its own and one way
of being written down, so that no byte of a checkpoint, and none of the manifest, can change unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl import __version__, durable, regular
from rlctl.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says of itself. `files` maps a name to (bytes, SHA-256); `metrics` are those of its step."""

    step: int
    files: Mapping[str, tuple[int, str]]
    metrics: Mapping[str, float]
    rlctl_version: str = __version__

    @property
    def num_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


def seal(folder: Path, *, step: int, metrics: Mapping[str, float], expected: Mapping[str, str]) -> Manifest:
    """Flush all files of a checkpoint, hash them as they read back, and write the manifest.

    `expected` names the SHA-256 of what was meant to be written, where that is known. Raises OSError when a file holds
    something else.
    """
    durable.flush_tree(folder)
    files = {}
    for path in durable.files_in(folder):
        name = path.relative_to(folder).as_posix()
        files[name] = (path.stat().st_size, durable.sha256_of(path))
        if name in expected and expected[name] != files[name][1]:
            raise OSError(f"{name} does not read back as it was written")
    manifest = Manifest(step, files, metrics)
    durable.write(folder / MANIFEST, _text(_content(manifest)))
    durable.flush_folder(folder)
    return manifest


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises CheckpointError that says what is wrong with it."""
    path = folder / MANIFEST
    try:
        written = regular.read_bytes(path)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {MANIFEST}, so it was never finished.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        content = json.loads(written)
        manifest = Manifest(
            step=content["step"],
            files={name: (mark["bytes"], mark["sha256"]) for name, mark in content["files"].items()},
            metrics=content["metrics"],
            rlctl_version=content["rlctl_version"],
        )
        whole = content["format"] == FORMAT and written == _text(_content(manifest))
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise CheckpointError(f"{path} is damaged, or of another version's format.")
    return manifest


def verify(folder: Path) -> Manifest:
    """The manifest, once every file holds what it says. Raises CheckpointError naming the first that does not."""
    manifest = read(folder)
    for name, (size, sha256) in manifest.files.items():
        path = folder / name
        try:
            actual = path.stat().st_size
            if actual != size:
                raise CheckpointError(f"{path} has {actual:,} bytes, its manifest says {size:,}.")
            if durable.sha256_of(path) != sha256:
                raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one in the manifest.")
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing.") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    return manifest


def _content(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "rlctl_version": manifest.rlctl_version,
        "step": manifest.step,
        "metrics": dict(manifest.metrics),
        "files": {name: {"bytes": size, "sha256": sha256} for name, (size, sha256) in manifest.files.items()},
    }


def _text(content: dict[str, Any]) -> bytes:
    """The one way a manifest is written: with the digest of the rest at its end."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return (json.dumps({**content, "sha256": digest}, indent=1) + "\n").encode()
