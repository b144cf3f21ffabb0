# SPDX-License-Identifier: Apache-2.0
"""What the data of a run has given: in the metrics, and what was left out of it, in a file of the run."""

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.data import Input, Skipped
from dovetail.parallel import is_first
from dovetail.progress import json_lines

SKIPPED = "skipped.jsonl"
_MOST = 1000  # Lines of that file: what else is left out is counted, and not named.
_LENGTH = 500  # Characters of a reason.

_log = logging.getLogger("dovetail")


class DataRecord:
    """Reads the figures of an input off a position in it; the first process names what was left out, once each."""

    def __init__(self, data: Input, directory: Path) -> None:
        self._data, self._file = data, directory / SKIPPED
        self._known: set[tuple[str, int]] | None = None
        self._said = 0.0
        self._ended: set[str] = set()

    def figures(self, step: int, position: Any, say: Callable[[int, str, str], None]) -> dict[str, float]:
        """Returns figures for the metrics of a step, by name; raises if too much of the data was left out.

        All processes call it with the same position.
        """
        found = self._data.figures(position)
        skipped = sum(value for name, value in found.items() if name.rpartition("/")[2] == "skipped")
        if skipped:
            if is_first() and (new := self._write(step, self._data.skipped(position))) and skipped >= 2 * self._said:
                self._said = skipped  # Not of each one: of the first, the second, the fourth, ...
                say(step, "documents left out", f"{skipped:,.0f} so far. {_line(new)}\nThey are in {self._file}.")
            self._data.check(position)
        for name in found:
            source, _, what = name.rpartition("/")
            if what == "ended" and source not in self._ended:
                self._ended.add(source)
                say(step, "a source of the data", f"{source} has given its epochs; its share goes to the others.")
        return {f"data/{name}": value for name, value in found.items()}

    def _write(self, step: int, skipped: Any) -> Skipped | None:
        """Names documents in the file, those that it does not have; returns one of them."""
        if self._known is None:
            self._known = _read(self._file)
        new = {(each.source, each.document): each for each in skipped}
        new = {key: each for key, each in new.items() if key not in self._known}
        if not new:
            return None
        written = [*new.values()][: max(0, _MOST - len(self._known))]
        self._known |= new.keys()
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps({"step": step, **_shortened(each)}) + "\n" for each in written)
        except OSError as e:
            _log.warning("%s: cannot be written: %s. The run goes on.", self._file, e.strerror or e)
        return next(iter(new.values()))


def _line(skipped: Skipped) -> str:
    return f"{skipped.source}: {skipped.reason}" if skipped.source else skipped.reason


def _shortened(skipped: Skipped) -> Mapping[str, Any]:
    return {**skipped._asdict(), "reason": skipped.reason[:_LENGTH]}


def _read(file: Path) -> set[tuple[str, int]]:
    """Returns which documents are in a file, lines that are torn aside."""
    found: set[tuple[str, int]] = set()
    for record in json_lines(file):
        with contextlib.suppress(TypeError, KeyError):
            found.add((record["source"], record["document"]))
    return found
