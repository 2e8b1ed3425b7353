"""Weights & Biases, online or offline.

Nothing of the process goes along but its settings: no console output, code, git state or command line, which may hold
secrets. W&B cannot take steps back (its `resume_from` is by invitation), so each step stays as it was first computed.
"""

from __future__ import annotations

import contextlib
import netrc
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rlctl.errors import ConfigError
from rlctl.trackers.base import State, TrackedRun

if TYPE_CHECKING:  # the settings load pydantic
    from rlctl.settings.tracking import WandbSettings

LOG_BLOCK, LOG_HEADER, LOG_ENDS = 32768, 7, (1, 4)
"""Of LevelDB's log format: bytes of a block and of a header, and the types of a fragment that ends a record."""
INIT_TIMEOUT_S = 90.0
"""Seconds until a run that cannot be begun is given up; the run's own steps do not wait for it."""
WRITTEN_TIMEOUT_S = 5.0
"""Seconds that the last steps may take to be in its files once a run is ended: W&B returns some hundredths earlier."""


class WandbTracker:
    """A W&B run with the id that rlctl keeps, so that a run that goes on is the same one there.

    Raises ConfigError when it is to be online and has no credentials: W&B would ask for them at the terminal.
    """

    def __init__(self, settings: WandbSettings, *, run_dir: str) -> None:
        import wandb

        # What it tells of itself would tear the table of a run on a terminal.
        wandb.setup(wandb.Settings(silent=True))
        self.settings = settings
        self.mode: Any = settings.mode or os.environ.get("WANDB_MODE", "online")
        if self.mode == "online" and not has_credentials():
            raise ConfigError(
                "tracker wandb is to be online, and has no API key.",
                hint="wandb login, or set WANDB_API_KEY, or tracking.wandb.mode=offline and `wandb sync` later.",
            )
        self.run: Any = None
        self.folder, self.id, self.last_step = Path(), "", -1

    def start(self, run: TrackedRun) -> int:
        import wandb

        self.folder, self.id = run.folder / "wandb", run.id
        own, offline = self.settings, last_written(self.folder, run.id)
        self.run = wandb.init(
            project=own.project,
            entity=own.entity,
            group=own.group,
            tags=own.tags,
            mode=self.mode,
            name=run.name,
            id=run.id,
            dir=str(run.folder),
            config=dict(run.parameters),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                save_code=False,
                disable_git=True,
                disable_job_creation=True,
                x_disable_meta=True,
                init_timeout=INIT_TIMEOUT_S,
            ),
        )
        return self._held(run, offline=offline)

    def _held(self, run: TrackedRun, *, offline: int | None) -> int:
        """The last step that W&B holds: a kill loses what its own process had not written or sent by then."""
        if self.mode == "online":
            return self.run.step - 1 if self.run.resumed else -1
        # Nothing there: synced and cleaned up.
        return run.sent if offline is None else offline

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        with _torn_down_if_it_fails():
            # Without commit a step waits for the next one, and a kill loses it.
            self.run.log(dict(metrics), step=step, commit=True)
        self.last_step = step

    def finish(self, state: State) -> None:
        with _torn_down_if_it_fails():
            self.run.summary["rlctl_state"] = state
            if state == "interrupted":
                self.run.mark_preempting()
            self.run.finish(exit_code=0 if state == "finished" else 1)
        if self.mode == "offline":
            self._must_be_written()

    def _must_be_written(self) -> None:
        """Raises OSError where its files lack steps: that its own process could not write them, W&B tells nobody."""
        until = time.monotonic() + WRITTEN_TIMEOUT_S
        while (held := last_written(self.folder, self.id)) is None or held < self.last_step:
            if time.monotonic() > until:
                there = "no file" if held is None else "no step" if held < 0 else f"no step after {held}"
                raise OSError(f"{self.folder} has {there} of the run, whose last step is {self.last_step}")
            time.sleep(0.1)


@contextlib.contextmanager
def _torn_down_if_it_fails() -> Iterator[None]:
    """Without its own process, W&B ends this one with a traceback, unless it is told to end before."""
    try:
        yield
    except Exception:
        import wandb

        with contextlib.suppress(Exception):  # fails in the same way, and has taken its leave first
            wandb.teardown(exit_code=1)
        raise


def last_written(folder: Path, run_id: str) -> int | None:
    """The last step in the files of a run that was offline; None where there are none, -1 where they hold no step.

    A life that begins in the second in which another did has a folder whose name goes on behind the id.
    """
    files = list(folder.glob(f"offline-run-*-{run_id}*/run-{run_id}.wandb"))
    return max((step for file in files for step in _steps(file)), default=-1) if files else None


def _steps(file: Path) -> Iterator[int]:
    """The steps in a file of W&B's: records of protobuf in LevelDB's log format after seven bytes of its own.

    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    from wandb.proto.wandb_internal_pb2 import Record

    raw, at, content = file.read_bytes(), LOG_HEADER, b""
    while at + LOG_HEADER <= len(raw):
        if LOG_BLOCK - at % LOG_BLOCK < LOG_HEADER:  # too small for a header, so it is padding
            at += LOG_BLOCK - at % LOG_BLOCK
            continue
        end = at + LOG_HEADER + int.from_bytes(raw[at + 4 : at + 6], "little")
        if end > len(raw):  # cut short by the kill
            return
        content += raw[at + LOG_HEADER : end]
        if raw[at + 6] in LOG_ENDS:
            record = Record.FromString(content)
            if record.HasField("history"):
                yield record.history.step.num
            content = b""
        at = end


def has_credentials() -> bool:
    """Whether W&B finds an API key without asking: in the environment, a netrc file, or its own settings."""
    import wandb

    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = wandb.setup().settings
    host = urlsplit(str(settings.base_url)).netloc
    # W&B's own service has had several addresses, and takes the key of any.
    hosts = [host, "api.wandb.ai"] if host.endswith((".wandb.ai", ".coreweave.com")) else [host]
    return bool(settings.api_key) or any(_netrc_knows(path, one) for path in _netrc_files() for one in hosts)


def _netrc_files() -> list[Path]:
    """Source: https://docs.wandb.ai/ref/cli/wandb-login, and NETRC as requests reads it."""
    named = os.environ.get("NETRC")
    return [Path(path).expanduser() for path in ([named] if named else ["~/.netrc", "~/_netrc"])]


def _netrc_knows(path: Path, host: str) -> bool:
    try:
        return netrc.netrc(str(path)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
