"""Folders in which checkpoints stand at the server, on their way from or to a client.

The names of folders are made here; names of files come from the client only when it sends some, and none of them
leads out of its folder.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlctl import durable
from rlctl.backends.http import messages
from rlctl.errors import BackendError, ConfigError

_PART = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")
"""One part of a file's path: no dot at its start, so neither `..` nor what is hidden."""
MOST_PARTS = 4


@dataclass
class Folder:
    name: str
    path: Path
    written: asyncio.Task[Mapping[str, str]] | None = None
    """What writes into it beside the verbs."""

    def file(self, name: str) -> Path:
        """Where a file of that name stands or goes. Raises ConfigError for a name that leads elsewhere."""
        parts = name.split("/")
        if len(parts) > MOST_PARTS or not all(_PART.match(part) for part in parts):
            raise ConfigError(f"{name[:80]!r} is no name for a file of a checkpoint.")
        return self.path.joinpath(*parts)

    def described(self) -> messages.Folder:
        """Its files, each hashed as it reads back."""
        files = [
            messages.File(path.relative_to(self.path).as_posix(), path.stat().st_size, durable.sha256_of(path))
            for path in durable.files_in(self.path)
        ]
        return messages.Folder(self.name, files)


@dataclass
class Spool:
    """The folders of one session."""

    path: Path
    folders: dict[str, Folder] = field(default_factory=dict)

    def new(self) -> Folder:
        name = secrets.token_hex(6)
        folder = self.folders[name] = Folder(name, self.path / name)
        folder.path.mkdir(parents=True)
        return folder

    def folder(self, name: str) -> Folder:
        if name not in self.folders:
            raise BackendError(f"the session has no folder {name[:40]!r}.")
        return self.folders[name]

    def remove(self, name: str) -> None:
        folder = self.folders.pop(name, None)
        if folder is not None:
            shutil.rmtree(folder.path, ignore_errors=True)
