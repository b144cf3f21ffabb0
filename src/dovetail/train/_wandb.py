# SPDX-License-Identifier: Apache-2.0
"""Shows what happens in a run at Weights & Biases, or keeps it for later: `wandb sync` sends it then."""

import importlib
import importlib.util
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dovetail.config import ConfigBase, ConfigError

from ._observer import Cell, Observer, file_name, is_failing, outside, told
from ._settings import settings_of

_ID = "wandb.json"  # In the directory of a run: by which name the service knows it.
_SECONDS = 60.0  # That a run waits for the service, at its start.


class WandB(Observer):
    """Writes to Weights & Biases (the extra `wandb`). A run that goes on is the same run there.

    Without credentials it keeps everything in `wandb/` in the run's directory, and asks for nothing.
    """

    class Config(Observer.Config):
        project: str = "dovetail"
        entity: str | None = None  # A user or a team; None: the one who is logged in.
        name: str | None = None  # None: that of the run's directory.
        group: str | None = None
        tags: tuple[str, ...] = ()
        mode: Literal["online", "offline"] | None = None  # None: as WANDB_MODE says, else online with credentials.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError("observers: WandB needs the package wandb: pip install 'dovetail[wandb]'")

    def start(self, directory: Path, first_step: int, last_step: int, about: str) -> None:
        with outside():
            wandb = _client()
            quiet = {"silent": True, "console": "off", "init_timeout": _SECONDS, "save_code": False}
            self._run: Any = wandb.init(
                project=self.cfg.project,
                entity=self.cfg.entity,
                name=self.cfg.name or directory.absolute().name,
                group=self.cfg.group,
                tags=self.cfg.tags or None,
                notes=about,
                dir=str(directory),
                id=_id_in(directory),
                resume="allow",
                mode=self.cfg.mode or _mode(wandb),
                settings=wandb.Settings(**quiet),
            )
            # Steps of our own: theirs must not decrease, and after a rollback ours do.
            self._run.define_metric("step")
            self._run.define_metric("*", step_metric="step")

    def config(self, cfg: ConfigBase, facts: Mapping[str, Cell]) -> None:
        with outside():
            about = {f"run/{name}": value for name, value in facts.items()}
            self._run.config.update({**settings_of(cfg), **told(about)}, allow_val_change=True)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._log(step, values)

    def text(self, step: int, name: str, value: str) -> None:
        self._log(step, {name: value})

    def picture(self, step: int, name: str, png: bytes) -> None:
        wandb = _client()
        with outside(), tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / f"{file_name(name).replace('/', '-')}.png"
            file.write_bytes(png)
            self._log(step, {name: wandb.Image(str(file))})

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[float]) -> None:
        wandb = _client()
        with outside():
            self._log(step, {name: wandb.Histogram(np_histogram=(list(counts), list(edges)))})

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        wandb = _client()
        with outside():
            data = [list(row) for row in rows]
            self._log(step, {name: wandb.Table(columns=list(columns), data=data, allow_mixed_types=True)})

    def stop(self) -> None:
        with outside():
            self._run.finish(exit_code=1 if is_failing() else 0)

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        with outside():
            self._run.log({"step": step, **values})


def _client() -> Any:
    return importlib.import_module("wandb")  # It takes a second.


def _mode(wandb: Any) -> str | None:
    """Returns how to run if nobody says so: nobody is asked for an account in the middle of a job."""
    if os.environ.get("WANDB_MODE"):
        return None
    if wandb.login(prompt=False):
        return "online"
    print("WandB: nobody is logged in, so the run is kept here; `wandb sync` sends it.", file=sys.stderr)
    return "offline"


def _id_in(directory: Path) -> str:
    """Returns the name of the run at the service: it is made once, and stays in its directory."""
    file = directory / _ID
    try:
        return str(json.loads(file.read_text("utf-8"))["id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        found = secrets.token_hex(6)
        file.write_text(json.dumps({"id": found}) + "\n", "utf-8")
        return found
