# SPDX-License-Identifier: Apache-2.0
"""`Run`: a run as its directory tells it, for who reads it in a notebook or a script. It changes nothing there."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.checkpoint import checkpoints_of, load_config
from dovetail.config import ConfigError, from_json
from dovetail.pictures import Picture, bold, dim, html_table, inline, lines_of_text, number, shown
from dovetail.progress import LEDGER, METRICS, Account, Ledger, Metrics, Text, read_metrics

from ._curves import X, curves

_CONFIG = "config.txt"
_LAST = 8  # Metrics in a notebook.
_SAMPLE = 600  # Characters of a sample there.
_FIRST = ("loss", "eval/loss", "accuracy", "eval/accuracy", "tokens_per_second", "mfu", "learning_rate", "grad_norm")


class Run:
    """A run. What it says is read when it is asked: of a run that trains, that which is written so far.

    >>> run = Run("runs/tiny-lm")  # doctest: +SKIP
    >>> run.metric("loss")[-1]  # doctest: +SKIP
    5.25
    """

    def __init__(self, directory: str | Path, *, code: Sequence[str] = ()) -> None:
        """Opens the directory of a run.

        Args:
            code: modules with code of your own that its config may name.
        """
        self.directory = Path(directory)
        self._code = tuple(code)
        if not any((self.directory / name).exists() for name in (METRICS, _CONFIG, "checkpoints")):
            what = "holds no run" if self.directory.is_dir() else "is no directory"
            raise ConfigError(f"{self.directory} {what}. Give the directory of a run, as in runs/tiny-lm.")

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.directory.resolve().name

    @property
    def config(self) -> Any:
        """The config of its newest checkpoint, from which it can be built again."""
        stored = load_config(checkpoints_of(str(self.directory)))
        return from_json(stored.config, allow=self._code)

    @property
    def config_text(self) -> str:
        """Its config as text, a line for each value; also of a run that has saved nothing yet."""
        file = self.directory / _CONFIG
        try:
            return file.read_text("utf-8")
        except OSError as e:
            raise ConfigError(f"{file}: cannot be read: {e.strerror or e}.") from e

    @property
    def measured(self) -> Metrics:
        """What it has measured, and when, and what it has written down to be read."""
        return read_metrics(self.directory)

    @property
    def metrics(self) -> list[str]:
        """The names of what it has measured."""
        return sorted(self.measured.columns)

    def metric(self, name: str) -> list[float]:
        """Returns the values of a metric, in the order of the steps."""
        return self.columns([name])[name]

    def columns(self, names: Sequence[str] = ()) -> dict[str, list[float]]:
        """Returns metrics as columns of one table, with the column `step`: `pandas.DataFrame(run.columns())`.

        There is a row for each step at which one of them was measured; the others are nan there.

        Args:
            names: of metrics; by default all.
        """
        found = self.measured
        for name in names:
            if name not in found.columns:
                raise ConfigError(f"{self.directory}: has not measured {name!r}, but {', '.join(found.columns)}.")
        chosen = {name: found.columns[name] for name in names or sorted(found.columns)}
        steps = sorted({step for column in chosen.values() for step in column.steps})
        values = {name: dict(zip(column.steps, column.values, strict=True)) for name, column in chosen.items()}
        table = {name: [own.get(step, math.nan) for step in steps] for name, own in values.items()}
        return {"step": [*steps], **table}

    def samples(self, name: str = "sample") -> list[Text]:
        """Returns what it has written down to be read, as samples of a model, the first one first."""
        texts = self.measured.texts
        if name not in texts:
            raise ConfigError(f"{self.directory}: has written no {name!r}, but {', '.join(texts) or 'nothing'}.")
        return texts[name]

    @property
    def goodput(self) -> Account:
        """What each second of it went to."""
        return Ledger(self.directory / LEDGER).update()

    def curves(self, *metrics: str, x: X = "step", smooth: float = 0.0, log: bool = False) -> Picture:
        """Returns a picture of metrics; by default of the loss."""
        return curves({self.name: self.measured}, metrics, x=x, smooth=smooth, log=log)

    def beside(self, *others: "Run", metrics: Sequence[str] = (), x: X = "step", smooth: float = 0.0) -> Picture:
        """Returns a picture of metrics of this run and others."""
        runs = [self, *others]
        names = [run.name for run in runs]
        names = names if len(set(names)) == len(names) else [str(run.directory) for run in runs]
        return curves({name: run.measured for name, run in zip(names, runs, strict=True)}, metrics, x=x, smooth=smooth)

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        found, account = self.measured, self.goodput
        step = max((column.steps[-1] for column in found.columns.values()), default=0)
        about = [f"step {step:,}"]
        if account.starts:
            about.append(f"goodput {100 * account.goodput:.1f} % of {account.total / 60:,.1f} minutes")
        if found.restarts:
            about.append(f"went on {len(found.restarts)} times")
        head = f"<div>{bold(self.name)} {dim(f'{self.directory}: ' + ', '.join(about))}</div>"
        if not found.columns:
            return shown(head, dim("Nothing has been measured yet."))
        names = [name for name in _FIRST if name in found.columns]
        names += [name for name in sorted(found.columns) if name not in names and "/" not in name]
        rows = [
            (name, number(found.columns[name].values[-1]), str(found.columns[name].steps[-1])) for name in names[:_LAST]
        ]
        table = html_table(("metric", "last", "step"), rows, numeric=(False, True, True))
        picture = inline(self.curves(), f"curves of {self.name}")
        samples = found.texts.get("sample", [])
        sample = lines_of_text(f"{samples[-1].text[:_SAMPLE]}") if samples else ""
        return shown(head, table, picture, sample)
