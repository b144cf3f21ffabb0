# SPDX-License-Identifier: Apache-2.0
"""Writes what happens in a run to MLflow: to a server, or to a store in the run's directory."""

import importlib
import importlib.util
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from dovetail.config import ConfigBase, ConfigError

from ._aside import Aside
from ._observer import Cell, Observer, file_name, is_failing, told
from ._settings import settings_of

_ID = "mlflow.json"  # In the directory of a run: by which name the store knows it, and which store.
_FORBIDDEN = re.compile(r"[^\w\-./: ]")  # In names of metrics and parameters.
_MOST = 100  # Parameters that a store takes at a time,
_LONGEST = 500  # and characters of one, for the oldest servers.


class MLflow(Observer):
    """Writes to MLflow (the extra `mlflow`). A run that goes on is the same run there.

    What is written waits for a thread of its own: a slow server holds nothing up.
    """

    class Config(Observer.Config):
        tracking_uri: str | None = None  # None: as MLFLOW_TRACKING_URI says, else `mlflow/` in the run's directory.
        experiment: str = "dovetail"
        name: str | None = None  # None: that of the run's directory.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        missing = [name for name in ("mlflow", "sqlalchemy") if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(f"observers: MLflow needs {', '.join(missing)}: pip install 'dovetail[mlflow]'")

    def start(self, directory: Path, first_step: int, last_step: int, about: str) -> None:
        self._aside = Aside("MLflow")
        self._aside.do(lambda: self._open(directory.absolute(), about))
        self._aside.wait()

    def _open(self, directory: Path, about: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        tracking = importlib.import_module("mlflow.tracking")  # It takes seconds.
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        local = directory / "mlflow"
        uri = self.cfg.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            local.mkdir(exist_ok=True)
            uri, place = f"sqlite:///{local}/mlflow.db", (local / "artifacts").as_uri()
        else:
            place = None
        self._client: Any = tracking.MlflowClient(tracking_uri=uri)
        self._id = _known(self._client, directory / _ID, uri)
        if self._id:
            self._client.update_run(self._id, status="RUNNING")
        else:
            found = self._client.get_experiment_by_name(self.cfg.experiment)
            experiment = found.experiment_id if found else self._client.create_experiment(self.cfg.experiment, place)
            run = self._client.create_run(experiment, run_name=self.cfg.name or directory.name)
            self._id = run.info.run_id
            (directory / _ID).write_text(json.dumps({"uri": uri, "id": self._id}) + "\n", "utf-8")
        self._client.set_tag(self._id, "mlflow.note.content", about)

    def config(self, cfg: ConfigBase, facts: Mapping[str, Cell]) -> None:
        settings, about = settings_of(cfg), {name: str(told(value)) for name, value in facts.items()}
        self._aside.do(lambda: self._write_config(settings, about))

    def _write_config(self, settings: Mapping[str, Any], about: Mapping[str, str]) -> None:
        kinds = _kinds()
        known = self._client.get_run(self._id).data.params  # A value stays what it was; files say what it is now.
        named = {_name(path): str(value)[:_LONGEST] for path, value in settings.items()}
        new = iter([kinds.Param(name, value) for name, value in named.items() if name not in known])
        while some := list(islice(new, _MOST)):
            self._client.log_batch(self._id, params=some)
        self._client.log_batch(
            self._id, tags=[kinds.RunTag(f"run.{_name(name)}", value) for name, value in about.items()]
        )
        self._client.log_dict(self._id, dict(settings), "config.json")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        kinds = _kinds()
        now = int(time.time() * 1000)
        found = [kinds.Metric(_name(name), float(value), now, step) for name, value in values.items()]
        self._aside.do(lambda: self._client.log_batch(self._id, metrics=found))

    def text(self, step: int, name: str, value: str) -> None:
        self._aside.do(lambda: self._client.log_text(self._id, value, f"texts/{file_name(name)}/{step}.txt"))

    def picture(self, step: int, name: str, png: bytes) -> None:
        def write() -> None:
            place = Path("pictures") / file_name(name)
            with tempfile.TemporaryDirectory() as directory:
                file = Path(directory) / f"{step}.png"
                file.write_bytes(png)
                self._client.log_artifact(self._id, str(file), place.as_posix())

        self._aside.do(write)

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[float]) -> None:
        found = told({"edges": list(edges), "counts": list(counts)})
        self._aside.do(lambda: self._client.log_dict(self._id, found, f"histograms/{file_name(name)}/{step}.json"))

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        # In the form that MLflow shows as a table.
        found = told({"columns": list(columns), "data": [list(row) for row in rows]})
        self._aside.do(lambda: self._client.log_dict(self._id, found, f"tables/{file_name(name)}/{step}.json"))

    def stop(self) -> None:
        status = "FAILED" if is_failing() else "FINISHED"
        self._aside.do(lambda: self._client.set_terminated(self._id, status))
        self._aside.close()


def _kinds() -> Any:
    return importlib.import_module("mlflow.entities")


def _name(text: str) -> str:
    """Returns a name as MLflow allows it.

    >>> _name("model.layers[0].dim"), _name("eval/loss")
    ('model.layers.0.dim', 'eval/loss')
    """
    return _FORBIDDEN.sub("_", re.sub(r"\[(\w+)\]", r".\1", text))


def _known(client: Any, file: Path, uri: str) -> str:
    """Returns the name of the run in this store, if it is there."""
    try:
        found = json.loads(file.read_text("utf-8"))
        if found["uri"] == uri and client.get_run(found["id"]).info.lifecycle_stage == "active":
            return str(found["id"])
    except Exception:  # Whatever is wrong with it: then it is a new one.
        return ""
    return ""
