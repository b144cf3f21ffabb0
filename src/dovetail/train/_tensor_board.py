# SPDX-License-Identifier: Apache-2.0
"""Writes what happens in a run for TensorBoard."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ._observer import Cell, Observer


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

    def picture(self, step: int, name: str, png: bytes) -> None:
        summary: Any = importlib.import_module("tensorboardX.proto.summary_pb2").Summary
        width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))  # Of the first chunk of a PNG.
        image = summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
        self._writer.file_writer.add_summary(summary(value=[summary.Value(tag=name, image=image)]), step)
        self._events.raise_error()

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[float]) -> None:
        number, at = np.asarray(counts, np.float64), np.asarray(edges, np.float64)
        middle = (at[1:] + at[:-1]) / 2
        sums = {"num": number.sum(), "sum": (number * middle).sum(), "sum_squares": (number * middle**2).sum()}
        buckets = {"bucket_limits": at[1:].tolist(), "bucket_counts": number.tolist()}
        self._writer.add_histogram_raw(name, min=at[0], max=at[-1], **sums, **buckets, global_step=step)
        self._events.raise_error()

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        def line(cells: Sequence[Cell]) -> str:
            return f"| {' | '.join(str(cell).replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |"

        self._writer.add_text(name, "\n".join([line(columns), line(["---"] * len(columns)), *map(line, rows)]), step)
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
