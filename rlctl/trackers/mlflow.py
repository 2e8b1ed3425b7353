"""MLflow: a server, or a store on this machine.

The client that names its run is used, not `mlflow.start_run`, which keeps one run a process and adds the command line.
MLflow keeps every value of a metric, so steps cannot be taken back: each stays as it was first computed.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from rlctl.errors import ConfigError
from rlctl.runfiles import STEP
from rlctl.trackers.base import State, TrackedRun

if TYPE_CHECKING:  # the settings load pydantic
    from rlctl.settings.tracking import MlflowSettings

ID = "rlctl.id"
"""The tag by which a run that goes on is found."""
STATUS: dict[State, str] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
NUM_PARAMS, NUM_METRICS = 100, 900
"""Most in one request, below MLflow's limits of 100 and 1000: https://mlflow.org/docs/latest/api_reference/rest-api.html"""
MAX_VALUE = 500
"""Letters of a parameter's value that every server takes."""

T = TypeVar("T")


class MlflowTracker:
    """An MLflow run, found again by its tag. Raises ConfigError when its address holds a password."""

    def __init__(self, settings: MlflowSettings, *, run_dir: str) -> None:
        self.settings = settings
        folder = Path(os.path.expanduser(run_dir)).absolute()  # noqa: PTH111  # as run_folder does
        chosen = settings.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self.own_store = None if chosen else folder
        self.uri = chosen or f"sqlite:///{folder / 'mlflow.db'}"
        if settings.tracking_uri and urlsplit(settings.tracking_uri).password:
            raise ConfigError(
                "tracking.mlflow.tracking_uri holds a password, and settings are written to the run's folder.",
                hint="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or the whole MLFLOW_TRACKING_URI.",
            )
        if self.uri.partition(":")[0].partition("+")[0] in ("sqlite", "postgresql", "mysql", "mssql"):
            _needs_sqlalchemy(self.uri)
        self.client: Any = None
        self.run_id = ""

    def start(self, run: TrackedRun) -> int:
        import mlflow

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self.client = mlflow.MlflowClient(tracking_uri=self.uri)
        experiment = self._experiment_id()
        query = f"tags.`{ID}` = '{run.id}'"
        found = self.client.search_runs([experiment], filter_string=query, max_results=1)
        held = found[0] if found else self.client.create_run(experiment, run_name=run.name, tags={ID: run.id})
        self.run_id = held.info.run_id
        if found:
            self.client.update_run(self.run_id, status="RUNNING")
        self._log_parameters(run.parameters, held.data.params)
        return int(held.data.metrics.get(STEP, -1))

    def _experiment_id(self) -> str:
        name = self.settings.experiment
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        artifacts = (self.own_store / "mlflow-artifacts").as_uri() if self.own_store else None
        try:
            return str(self.client.create_experiment(name, artifact_location=artifacts))
        except Exception:
            # Another run may have made it meanwhile.
            found = self.client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)

    def _log_parameters(self, parameters: Mapping[str, object], held: Mapping[str, str]) -> None:
        """What is new becomes a parameter; MLflow lets none change, so what is other than it was becomes a tag."""
        from mlflow.entities import Param, RunTag

        given = {plain_name(name): short(value) for name, value in parameters.items()}
        for names in chunks([name for name in given if name not in held], NUM_PARAMS):
            self.client.log_batch(self.run_id, params=[Param(name, given[name]) for name in names])
        changed = [name for name in given if held.get(name, given[name]) != given[name]]
        for names in chunks(changed, NUM_PARAMS):
            tags = [RunTag(f"changed.{name}", given[name]) for name in names]
            self.client.log_batch(self.run_id, tags=tags)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        # The step's own number last: it says that all of them are there.
        ordered = sorted(metrics.items(), key=lambda item: item[0] == STEP)
        for part in chunks(ordered, NUM_METRICS):
            values = [Metric(plain_name(name), float(value), now, step) for name, value in part]
            self.client.log_batch(self.run_id, metrics=values)

    def finish(self, state: State) -> None:
        self.client.set_terminated(self.run_id, status=STATUS[state])


def plain_name(name: str) -> str:
    """The name with the letters that MLflow takes: `mean@8` -> `mean_at_8`, as verl writes it."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"), flags=re.ASCII)


def short(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 3] + "..."


def chunks(items: Iterable[T], size: int) -> Iterable[list[T]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _needs_sqlalchemy(uri: str) -> None:
    import importlib.util

    missing = [name for name in ("sqlalchemy", "alembic") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"tracker mlflow needs {' and '.join(missing)} for a store in a database ({uri.partition(':')[0]}).",
            hint="pip install 'rlctl[mlflow]', or name a server: tracking.mlflow.tracking_uri=https://...",
        )
