"""Weights on their way from trainer to sampler: what was sent, what was expected, and proof that it arrived.

Trainer rank 0 writes the compute weights as safetensors into the machine's shared memory, in pieces, with a manifest:
name, shape, dtype and checksum of each. Names are those of the Hugging Face checkpoint; a tied head is not one of them,
the sampler ties it again. The sampler compares the manifest with what its own model needs before it reads a byte, and
the checksums while it reads.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.errors import BackendError

if TYPE_CHECKING:  # torch is loaded only in actors
    from torch import Tensor

SHARED_MEMORY = Path("/dev/shm")
PIECE_BYTES = 2**30
"""Most bytes of one file: what a sampler on another machine holds twice while it arrives."""


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """What is known of one tensor without its values; `checksum` is CRC-32 of its bytes."""

    shape: tuple[int, ...]
    dtype: str
    checksum: int = 0


Manifest = Mapping[str, TensorRecord]


@dataclass(frozen=True, slots=True)
class Tensors:
    """Weights that lie in files of this machine."""

    files: tuple[Path, ...]
    manifest: Manifest
    version: int


@dataclass(frozen=True, slots=True)
class Received:
    """What a sampler took: how many names its model needs, and how many came."""

    expected: int
    sent: int


def folder_of(run_id: str, *, who: str) -> Path:
    """Where an actor of a run keeps its files: in the machine's shared memory, or a temporary folder without one."""
    base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path("/tmp")
    return base / f"rlctl-{run_id}-{who.replace(' ', '-')}"


def differences(sent: Manifest, expected: Manifest) -> str | None:
    """How what was sent differs from what the sampler's model needs, as a sentence; None when it does not."""
    missing = sorted(expected.keys() - sent.keys())
    unknown = sorted(sent.keys() - expected.keys())
    empty = sorted(name for name, record in sent.items() if 0 in record.shape)
    wrong = [
        f"{name} is {_form(sent[name])}, not {_form(expected[name])}"
        for name in sorted(expected.keys() & sent.keys())
        if _form(sent[name]) != _form(expected[name])
    ]
    parts = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for names, what in ((missing, "missing"), (unknown, "unknown"), (empty, "empty: gather them first"))
        if names
    ]
    parts += [f"{len(wrong)} of another form ({wrong[0]})"] if wrong else []
    return f"sent {len(sent)}, expected {len(expected)}: {'; '.join(parts)}" if parts else None


def _form(record: TensorRecord) -> str:
    return f"{record.dtype}{list(record.shape)}"


def require_same(sent: Manifest, expected: Manifest) -> None:
    """Raises BackendError naming what is missing, unknown, empty or of another form."""
    told = differences(sent, expected)
    if told is not None:
        raise BackendError(f"the weights do not fit the sampler's model: {told}.")


def record_of(tensor: Tensor, *, checksum: bool) -> TensorRecord:
    """What is told of a tensor on the CPU."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorRecord(tuple(tensor.shape), dtype, _checksum(tensor) if checksum else 0)


def _checksum(tensor: Tensor) -> int:
    import torch

    return zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def write(folder: Path, weights: Iterable[tuple[str, Tensor]], *, version: int) -> Tensors:
    """Put CPU tensors into files of at most PIECE_BYTES (one larger tensor has its own). Raises BackendError."""
    from safetensors.torch import save_file

    manifest: dict[str, TensorRecord] = {}
    files: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for piece in _pieces(weights):
            files.append(folder / f"v{version}-{len(files)}.safetensors")
            save_file(piece, files[-1])
            manifest |= {name: record_of(tensor, checksum=True) for name, tensor in piece.items()}
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise BackendError(
            f"the weights cannot be written to {folder}: {error}.",
            hint="the machine's shared memory must hold the model once; mount a larger /dev/shm.",
        ) from error
    return Tensors(tuple(files), manifest, version)


def _pieces(weights: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    piece: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights:
        if piece and size + tensor.nbytes > PIECE_BYTES:
            yield piece
            piece, size = {}, 0
        piece[name] = tensor.contiguous()
        size += tensor.nbytes
    if piece:
        yield piece


def read(files: Sequence[str], manifest: Manifest) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the files, each compared with its checksum. Raises BackendError at the first that differs."""
    from safetensors import safe_open

    for file in files:
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118  # not a dict
                tensor = stored.get_tensor(name)
                if record_of(tensor, checksum=True) != manifest[name]:
                    raise BackendError(f"the weight {name} arrived with other values than were sent.")
                yield name, tensor
