# SPDX-License-Identifier: Apache-2.0
"""Writes what happens in a run as JSON, a line for each event, and pictures beside it."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from ._observer import Cell, Observer, file_name, told
from ._visible import escaped


class JsonLines(Observer):
    """Writes a line of JSON for each step to `metrics.jsonl` in the run's directory; a resumed run appends.

    A picture is a file, `pictures/NAME/STEP.png`, which a line names: `{"pictures": {NAME: FILE}}`. Tables and
    histograms are in their lines: `{"tables": {NAME: {"columns": ..., "rows": ...}}}`, and
    `{"histograms": {NAME: {"edges": ..., "counts": ...}}}`.
    """

    def start(self, directory: Path, first_step: int, last_step: int, about: str) -> None:
        self._directory = directory
        self._file: TextIO = (directory / "metrics.jsonl").open("a", encoding="utf-8")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._write(step, told(values))

    def text(self, step: int, name: str, value: str) -> None:
        self._write(step, {name: value})

    def picture(self, step: int, name: str, png: bytes) -> None:
        place = f"pictures/{file_name(name)}/{step}.png"
        file = self._directory / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png)
        self._write(step, {"pictures": {name: place}})

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[float]) -> None:
        self._write(step, {"histograms": {name: told({"edges": list(edges), "counts": list(counts)})}})

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        self._write(step, {"tables": {name: told({"columns": list(columns), "rows": [list(row) for row in rows]})}})

    def _write(self, step: int, values: Mapping[str, Any]) -> None:
        record = {"step": step, "time": time.time(), **values}
        self._file.write(escaped(json.dumps(record, ensure_ascii=False)) + "\n")
        self._file.flush()

    def stop(self) -> None:
        self._file.close()
