# SPDX-License-Identifier: Apache-2.0
"""Shows how far a run is, in a terminal or in lines."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from dovetail.progress import SHORT, Count, Running, Watcher, duration, is_quiet, line, watching

from ._observer import Cell, Observer
from ._visible import visible

_RATE = "_per_second"
_BAR = 80  # Columns of a terminal that has room for a bar.
_ROWS, _CELL = 10, 60  # Of a table that is shown: rows, and characters of a cell.


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

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        cells = [[str(name) for name in columns], *([_cell(cell) for cell in row] for row in rows[:_ROWS])]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        more = [f"... {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
        self.text(step, name, "\n".join([*lines, *more]))

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


def _cell(value: Cell) -> str:
    """Returns what a cell of a table says, in a line."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= _CELL else f"{text[: _CELL - 2]}.."
