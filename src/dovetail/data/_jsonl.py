# SPDX-License-Identifier: Apache-2.0
"""JSON Lines: one JSON object in each line, with the document in one of its fields."""

import json
import mmap
import os
from typing import Any

import numpy as np

from dovetail.config import ConfigError

from ._document import Document, document_of_record, group_size, problem_of
from ._errors import DataError, place_of
from ._files import BOM, decode, line_of, opened_files, read_range
from ._source import FileSource

_CHUNK = 1 << 24


class JsonLines(FileSource):
    """Documents in JSON Lines files, as text or as a list of token ids. Blank lines do not count.

    A document may be a list of parts with weights: `[{"text": "Question", "weight": 0}, {"text": "Answer"}]`.

    Files may be compressed (.gz, .zst). All are scanned once for their line ends; the index takes 16 bytes of memory
    for each line.
    """

    class Config(FileSource.Config):
        field: str | tuple[str, ...] = "text"  # Several: texts that belong together, such as two answers.
        prompt: str | None = None  # A field whose text comes first, and is no target.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if problem := problem_of(cfg.field, cfg.prompt):
            raise ConfigError(f"{place_of(self, 'field')}: {problem}")
        self._lines = list(map(_index_lines, self._paths, self.files))
        self._set_counts(map(len, self._lines))
        self._open = opened_files()
        self._check_first()

    def _read(self, file: int, at: int) -> Document:
        start, stop = map(int, self._lines[file][at])
        text = decode(read_range(self._open, self._paths[file], start, stop), self.files[file], start)
        try:
            record = json.loads(text)
        except ValueError as e:
            raise DataError(f"{self._place(file, at)}: not JSON: {e}.") from None
        return document_of_record(record, self.cfg.field, self.cfg.prompt, lambda: self._place(file, at))

    @property
    def group(self) -> int:
        return group_size(self.cfg.field)

    def _place(self, file: int, at: int) -> str:
        return f"{self.files[file]}:{line_of(self._paths[file], int(self._lines[file][at][0]))}"


def _index_lines(plain: str, file: str) -> np.ndarray:
    """Returns where each line that is not blank starts and stops: [lines, 2]. `file` is what to call it."""
    starts, indented = _line_starts(plain)
    stops = np.append(starts[1:] - 1, os.path.getsize(plain))
    keep = np.ones(len(starts), bool)
    with open(plain, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[: len(BOM)] == BOM:
            starts[0] = len(BOM)
            indented = np.append(indented, 0)
        for line in indented.tolist():
            keep[line] = bool(data[starts[line] : stops[line]].strip())
    if not keep.any():
        raise DataError(f"{file}: has no documents, only blank lines. Remove it, or leave it out.")
    return np.stack([starts[keep], stops[keep]], axis=1)


def _line_starts(file: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns where each line starts, and which of them start with white space or are empty."""
    starts, indented, count, offset = list[np.ndarray](), list[np.ndarray](), 0, 0
    before = b"\n"  # The first line starts as if after another.
    with open(file, "rb") as f:
        while read := f.read(_CHUNK):
            chunk = np.frombuffer(before + read, np.uint8)
            ends = np.flatnonzero(chunk[:-1] == ord("\n"))
            starts.append(ends + offset)
            indented.append(np.flatnonzero(chunk[ends + 1] <= ord(" ")) + count)
            before, offset, count = read[-1:], offset + len(read), count + len(ends)
    return np.concatenate(starts), np.concatenate(indented)
