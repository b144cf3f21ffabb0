# SPDX-License-Identifier: Apache-2.0
"""Observers: they are told what happens in a run, and show it or write it down. A run does not depend on them."""

import abc
import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from dovetail.config import Component
from dovetail.progress import SHORT, Count, Running, Watcher, duration, is_quiet, line, watching

from ._visible import escaped, visible

_RATE = "_per_second"
_BAR = 80  # Columns of a terminal that has room for a bar.


class Observer(Component, abc.ABC):
    """The interface. Values are plain numbers: whoever calls has waited for the device."""

    class Config(Component.Config):
        pass

    @abc.abstractmethod
    def start(self, directory: Path, first_step: int, last_step: int, about: str) -> None:
        """A run starts or goes on; steps are counted from 1. `about` describes it in a line."""

    @abc.abstractmethod
    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Figures of one step, by name: `loss`, `eval/loss`, `tokens_per_second`."""

    @abc.abstractmethod
    def text(self, step: int, name: str, value: str) -> None:
        """Something to read: a sample, a message."""

    @abc.abstractmethod
    def stop(self) -> None:
        """The run has ended, in whatever way."""


class JsonLines(Observer):
    """Writes a line of JSON for each step to `metrics.jsonl` in the run's directory; a resumed run appends."""

    def start(self, directory: Path, first_step: int, last_step: int, about: str) -> None:
        self._file: TextIO = (directory / "metrics.jsonl").open("a", encoding="utf-8")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        # JSON has no word for nan and infinity.
        plain = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
        self._write({"step": step, "time": time.time(), **plain})

    def text(self, step: int, name: str, value: str) -> None:
        self._write({"step": step, "time": time.time(), name: value})

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(escaped(json.dumps(record, ensure_ascii=False)) + "\n")
        self._file.flush()

    def stop(self) -> None:
        self._file.close()


class TensorBoard(Observer):
    """Writes TensorBoard event files to `tensorboard/` in the run's directory."""

    def start(self, directory: Path, first_step: int, last_step: int, about: str) -> None:
        from tensorboardX import SummaryWriter  # Imported here: it takes as long as all of dovetail.

        self._writer: Any = SummaryWriter(str(directory / "tensorboard"), purge_step=first_step)
        # Its thread ends at an error, and then its queue fills up and whoever writes waits for ever (tensorboardX 2).
        events = self._writer.file_writer.event_writer
        self._events = _Events(events._ev_writer)
        events._ev_writer = events._worker._record_writer = self._events

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._events.raise_error()

    def text(self, step: int, name: str, value: str) -> None:
        self._writer.add_text(name, f"```\n{value}\n```", step)
        self._events.raise_error()

    def stop(self) -> None:
        self._writer.close()
        self._events.raise_error()


class _Events:
    """The writer of a file of events; an error waits until somebody asks."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._error: OSError | None = None

    def write_event(self, event: Any) -> None:
        self._attempt(lambda: self._writer.write_event(event))

    def flush(self) -> None:
        self._attempt(self._writer.flush)

    def close(self) -> None:
        self._attempt(self._writer.close)

    def raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _attempt(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except OSError as e:
            self._error = e


class Terminal(Observer):
    """Shows progress in a terminal, or prints a line now and then where there is none.

    In a terminal, the bar of progress also says what is done between steps, such as compiling. Where nobody wants to
    see how far it is, only what was found is printed: evaluations and texts.
    """

    class Config(Observer.Config):
        seconds: float = 10.0  # Between two lines, without a terminal.

    def start(self, directory: Path, first_step: int, last_step: int, about: str) -> None:
        self._console = Console()
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal and not is_quiet()
        self._is_quiet = is_quiet()
        if not self._is_quiet:
            self._console.print(about, highlight=False, markup=False, soft_wrap=True)
        self._last_line, self._unsaid = -math.inf, ""
        self._last_step = last_step
        counted = len(f"step {last_step}/{last_step}")
        self._progress = Progress(
            TextColumn("step {task.completed}/{task.total}", table_column=Column(no_wrap=True, min_width=counted)),
            *([BarColumn(bar_width=24)] if self._console.width >= _BAR else []),
            _Figures(table_column=Column(no_wrap=True, overflow="ellipsis")),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._is_live,
            transient=True,  # Nothing of it is left: the figures of the last step are printed.
        )
        bar = self._progress.add_task("train", total=last_step, completed=first_step - 1, figures="", phases=())
        self._task = bar
        self._open = contextlib.ExitStack()
        if self._is_live:
            self._open.enter_context(watching(_Phases(self._progress, bar)))
        self._open.enter_context(self._progress)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if all(name.startswith("goodput/") for name in values):
            return  # They come as a text as well.
        shown = figures(values)
        if "loss" in values:
            self._progress.update(self._task, completed=step, figures=shown)
        is_last = step == self._last_step
        due = is_last or (not self._is_live and time.monotonic() - self._last_line >= self.cfg.seconds)
        text = f"step {step}/{self._last_step}  {shown}"
        self._unsaid = "" if due or "loss" not in values else text
        if "loss" not in values or (due and not self._is_quiet):
            self._console.print(text, highlight=False, soft_wrap=True)
            self._last_line = time.monotonic()

    def text(self, step: int, name: str, value: str) -> None:
        text = f"step {step}  {name}:\n{visible(value)}\n"
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)  # Lines are those of the text.

    def stop(self) -> None:
        self._open.close()
        if self._is_live and self._unsaid:  # The bar is gone: where the run was interrupted stays.
            self._console.print(self._unsaid, highlight=False, soft_wrap=True)


class _Phases(Watcher):
    """Keeps the names of the phases that a run is in, and when they began, where the bar finds them.

    Those before the first step leave a line, if they took a while.
    """

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task, self._done = progress, task, progress.tasks[0].completed
        self._inside: tuple[Running, ...] = ()

    def started(self, name: str) -> None:
        self._now((*self._inside, Running(name, time.monotonic(), Count())))

    def counts(self, count: Count) -> None:
        *outer, last = self._inside
        self._now((*outer, dataclasses.replace(last, count=count)))

    def ended(self, name: str, seconds: float | None) -> None:
        self._now(self._inside[:-1])
        before_steps = self._progress.tasks[0].completed == self._done
        if before_steps and seconds is not None and seconds >= SHORT:
            self._progress.console.print(f"{name} took {duration(seconds)}", highlight=False)

    def _now(self, inside: tuple[Running, ...]) -> None:
        self._inside = inside
        self._progress.update(self._task, phases=inside)


class _Figures(ProgressColumn):
    def render(self, task: Task) -> Text:
        if not task.fields["phases"]:
            return Text(str(task.fields["figures"]))
        return Text(line(task.fields["phases"], time.monotonic()))


def figures(values: Mapping[str, float]) -> str:
    """Returns the figures a person looks at, in one line: of a step, or of an evaluation all but counts.

    >>> figures({"loss": 2.5, "tokens_per_second": 12345.0, "mfu": 0.256, "grad_norm": 1.0})
    'loss 2.500  12,345 tokens/s  MFU 25.6 %'
    >>> figures({"eval/loss": 2.5, "eval/accuracy": 0.25, "eval/tokens": 2048.0})
    'eval/loss 2.500  eval/accuracy 0.250'
    """
    if "loss" not in values:
        return "  ".join(f"{name} {value:.3f}" for name, value in values.items() if not _is_count(value))
    shown = [f"loss {values['loss']:.3f}"]
    rates = {name.removesuffix(_RATE): value for name, value in values.items() if name.endswith(_RATE)}
    shown += [f"{rate:,.0f} {units}/s" for units, rate in rates.items()]
    if "mfu" in values:
        shown.append(f"MFU {values['mfu']:.1%}".replace("%", " %"))
    return "  ".join(shown)


def _is_count(value: float) -> bool:
    return value > 1 and value.is_integer()
