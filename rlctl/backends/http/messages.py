"""What client and server tell each other. Routes are in server/app.py.

A verb is asked for with a key that the client made up; asking again with the same key gives the same reply, and the
verb is carried out once. What a reply's reader has, it acknowledges with its next call, so that the server forgets it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rlctl.types import (
    BackendInfo,
    Completion,
    GenerateStats,
    JobSpec,
    LogProbs,
    LossSpec,
    LossStats,
    OptimStats,
    Prompt,
    Sampling,
    SyncReport,
    TrainRow,
)

PROTOCOL = 1
"""Raised when an older client could misread what a newer server says, or the other way round."""

KEY, ACKNOWLEDGED = "X-Rlctl-Key", "X-Rlctl-Acknowledged"
"""Headers of a verb: its key, and keys whose replies have arrived."""
CONTENT, COMPRESSED = "application/x-msgpack", "zstd"


class Open(msgspec.Struct, frozen=True):
    """Begin a session for a job, or take up one whose driver is gone."""

    protocol: int
    version: str
    client: str
    """Who it is, in words for the one who waits: host and process."""
    job: JobSpec
    attach: str = ""
    queue: bool = False


class Opened(msgspec.Struct, frozen=True):
    session: str
    backend: str
    accumulates: bool
    lease_s: float
    """After so long without a word the job is closed."""
    updates: int
    """Updates taken in this session since its start or its last load; with `gradients` above 0 where one was taken up
    whose driver had trained."""
    gradients: int
    """Calls of forward_backward since the last update."""
    max_body_bytes: int
    abandons: bool
    """Whether the hosted backend can end a running verb soon."""


class Session(msgspec.Struct, frozen=True):
    """Who holds the backend, and how long ago the server last heard of them."""

    session: str
    client: str
    silent_s: float
    updates: int
    verb: str


class About(msgspec.Struct, frozen=True):
    """`GET /health`, all that is told without a token: `version` is rlctl's."""

    protocol: int
    version: str


class Start(msgspec.Struct, frozen=True):
    pass


class Generate(msgspec.Struct, frozen=True):
    prompts: list[Prompt]
    n: int
    sampling: Sampling


class Group(msgspec.Struct, frozen=True):
    """The completions of one prompt, sent when the last of them has ended."""

    index: int
    completions: list[Completion]


class Generated(msgspec.Struct, frozen=True):
    """After every group went as a part."""

    groups: int
    stats: GenerateStats


class LogProbsOf(msgspec.Struct, frozen=True):
    rows: list[TrainRow]
    reference: bool


class ForwardBackward(msgspec.Struct, frozen=True):
    rows: list[TrainRow]
    loss: LossSpec
    loss_denominator: float


class OptimStep(msgspec.Struct, frozen=True):
    lr: float


class SyncWeights(msgspec.Struct, frozen=True):
    pass


class Save(msgspec.Struct, frozen=True):
    """Write a checkpoint into a folder of the server's, to be fetched file by file."""


class TakeSnapshot(msgspec.Struct, frozen=True):
    """The same of a copy, which is written while other verbs run; `Written` waits for that."""


class Written(msgspec.Struct, frozen=True):
    folder: str


class Load(msgspec.Struct, frozen=True):
    folder: str
    """What the files were sent to."""


class File(msgspec.Struct, frozen=True):
    name: str
    num_bytes: int
    sha256: str


class Folder(msgspec.Struct, frozen=True):
    """A checkpoint at the server, for as long as the session lives or until it is removed.

    `expected` are digests of what was meant to be written, as far as the hosted backend knows them.
    """

    folder: str
    files: list[File] = []
    expected: dict[str, str] = {}


class Stacks(msgspec.Struct, frozen=True):
    pass


VERBS: dict[str, tuple[type[Any], Any]] = {
    "start": (Start, BackendInfo),
    "generate": (Generate, Generated),
    "log_probs": (LogProbsOf, list[LogProbs]),
    "forward_backward": (ForwardBackward, LossStats),
    "optim_step": (OptimStep, OptimStats),
    "sync_weights": (SyncWeights, SyncReport),
    "save": (Save, Folder),
    "snapshot": (TakeSnapshot, Folder | None),
    "written": (Written, Folder),
    "load": (Load, None),
    "stacks": (Stacks, dict[str, str]),
}
"""Name -> (what is asked, what is replied)."""
BESIDE = frozenset({"written", "stacks"})
"""Verbs that do not wait for the one before them."""
TRAINING = frozenset({"log_probs", "forward_backward", "optim_step", "snapshot", "save"})
"""Verbs that do not wait for a `generate` where the hosted backend samples beside training, nor that for them."""
