"""Checkpoints: written aside, flushed to disk, then renamed, so that a name means a whole one.

`checkpoints/step_000050/` is a Hugging Face folder (AutoModelForCausalLM and AutoTokenizer load it)
with the backend's own state beside it, and `data_state.json`: where each source stands. A folder whose
name begins with a dot was being written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlctl.backends.base import AnyBackend
from rlctl.errors import CheckpointError
from rlctl.tokenizer import ChatTokenizer

DATA_STATE = "data_state.json"


async def save(
    backend: AnyBackend, tokenizer: ChatTokenizer, *, folder: Path, step: int, data_state: Mapping[str, Any]
) -> Path:
    """Write the checkpoint of a step and return its folder. Raises CheckpointError; what was there stays."""
    final = folder / f"step_{step:06d}"
    if final.exists():
        return final
    aside = folder / f".step_{step:06d}.partial"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        await backend.save(aside)
        tokenizer.save(aside)
        (aside / DATA_STATE).write_text(json.dumps({"step": step, **data_state}), encoding="utf-8")
        _flush(aside)
        aside.rename(final)
        _flush_folder(folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoint {final} cannot be written: {error.strerror or error}.",
            hint="free some space or set run.dir to another disk; earlier checkpoints are untouched.",
        ) from error
    except CheckpointError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return final


def _flush(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    """Make names and renames within the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
