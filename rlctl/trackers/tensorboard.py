"""Event files for TensorBoard, its records written by its own code: torch is not needed.

Not by its `EventFileWriter`, whose thread ends with a traceback on the terminal where a file cannot be written.

A run that goes on writes a new file which begins with a session log: TensorBoard then forgets later steps of the files
before. Source: `purge_orphaned_data` in tensorboard/backend/event_processing/event_accumulator.py.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.trackers.base import State, TrackedRun

if TYPE_CHECKING:  # the settings load pydantic
    from rlctl.settings.tracking import TensorboardSettings

FILE_VERSION = "brain.Event:2"
"""With which each file begins. Source: tensorboard/summary/writer/event_file_writer.py."""

_files = itertools.count()


class TensorboardTracker:
    """Scalars by step, the settings as text and as hyper-parameters, and how the run ended."""

    def __init__(self, settings: TensorboardSettings, *, run_dir: str) -> None:
        self.settings = settings
        self.file = Path()
        self.last_step = -1

    def start(self, run: TrackedRun) -> int:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self.file = _new_file(self.folder(run))
        self._add(step=0, file_version=FILE_VERSION)
        self.last_step = min(run.sent, run.after)
        begin = self.last_step + 1
        self._add(step=begin, session_log=SessionLog(status=SessionLog.START))
        self._add(step=begin, summary=hparams_begin(run))
        self._add(step=begin, summary=text("settings", _table(run.parameters)))
        return self.last_step

    def folder(self, run: TrackedRun) -> Path:
        return Path(self.settings.dir).expanduser() / run.name if self.settings.dir else run.folder / "tensorboard"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(step=step, summary=Summary(value=values))
        self.last_step = step

    def finish(self, state: State) -> None:
        self._add(step=self.last_step, summary=hparams_end(state))

    def _add(self, *, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        # Opened by its name each time: a kill loses nothing, and a file that has been removed is an error.
        with self.file.open("r+b") as stream:
            stream.seek(0, os.SEEK_END)
            RecordWriter(stream).write(Event(wall_time=time.time(), step=step, **content).SerializeToString())


def _new_file(folder: Path) -> Path:
    """A file that TensorBoard finds, and reads after those that are there: it goes by their names."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_files)}"
    file.touch(exist_ok=False)
    return file


def hparams_begin(run: TrackedRun) -> Any:
    """The settings for the HPARAMS page, whose own helpers need tensorflow."""
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    begun = SessionStartInfo(group_name=run.id, start_time_secs=time.time())
    for name, value in run.parameters.items():
        held = begun.hparams[name]
        if isinstance(value, bool):
            held.bool_value = value
        elif isinstance(value, int | float):
            held.number_value = value
        else:
            held.string_value = "null" if value is None else str(value)
    return _hparams(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=begun))


def hparams_end(state: State) -> Any:
    from tensorboard.plugins.hparams import api_pb2, metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    status = api_pb2.STATUS_SUCCESS if state == "finished" else api_pb2.STATUS_FAILURE
    ended = SessionEndInfo(status=status, end_time_secs=time.time())
    return _hparams(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=ended))


def _hparams(tag: str, data: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata

    about = metadata.create_summary_metadata(data)
    return Summary(value=[Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)])


def text(tag: str, markdown: str) -> Any:
    """A text for the TEXT page."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text import metadata

    about = metadata.create_summary_metadata(display_name=None, description=None)
    tensor = TensorProto(dtype=DT_STRING, string_val=[markdown.encode()])
    return Summary(value=[Summary.Value(tag=tag, metadata=about, tensor=tensor)])


def _table(parameters: Mapping[str, object]) -> str:
    """The settings as a table in markdown."""

    def cell(value: object) -> str:
        return str(value).replace("|", "\\|").replace("\n", " ")

    return "\n".join(["| setting | value |", "|---|---|", *(f"| {k} | {cell(v)} |" for k, v in parameters.items())])
