# SPDX-License-Identifier: Apache-2.0
"""JSON Lines: one JSON object in each line, with the document in one of its fields."""

import json
import mmap
import os
from typing import Any

import numpy as np

from dovetail.config import did_you_mean

from ._errors import DataError
from ._files import BOM, decode, line_of, opened_files, read_range
from ._source import Document, FileSource, checked_content

_CHUNK = 1 << 24


class JsonLines(FileSource):
    """Documents in JSON Lines files, as text or as a list of token ids. Blank lines do not count.

    Files may be compressed (.gz, .zst). All are scanned once for their line ends; the index takes 16 bytes of memory
    for each line.
    """

    class Config(FileSource.Config):
        field: str = "text"

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
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
        return Document(content_of_record(record, self.cfg.field, lambda: self._place(file, at)))

    def _place(self, file: int, at: int) -> str:
        return f"{self.files[file]}:{line_of(self._paths[file], int(self._lines[file][at][0]))}"


def content_of_record(record: Any, field: str, place: Any) -> str | np.ndarray:
    """Returns the document in a JSON object; `place()` says where the object is."""
    if not isinstance(record, dict):
        raise DataError(f"{place()}: expected a JSON object, found {record!r:.60} ({type(record).__name__}).")
    if field not in record:
        hint = did_you_mean(field, record) or f" It has: {', '.join(record) or 'nothing'}."
        raise DataError(f"{place()}: the record has no field {field!r}.{hint}")
    content = record[field]
    return content if isinstance(content, str) else checked_content(content, f"field {field!r}", place())


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
