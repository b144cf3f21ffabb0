# SPDX-License-Identifier: Apache-2.0
"""JSON Lines: one JSON object in each line, with the document in one of its fields."""

import json
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

    Files are scanned once for their line ends; the index takes 16 bytes of memory for each line.
    """

    class Config(FileSource.Config):
        field: str = "text"

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self._lines = [_index_lines(file) for file in self.files]
        self._set_counts(map(len, self._lines))
        self._open = opened_files()
        self[0]  # A wrong field name is found now, and not when training starts.

    def _read(self, file: int, at: int) -> Document:
        start, stop = map(int, self._lines[file][at])
        text = decode(read_range(self._open, self.files[file], start, stop), self.files[file], start)
        try:
            record = json.loads(text)
        except ValueError as e:
            raise DataError(f"{self._place(file, at)}: not JSON: {e}.") from None
        return Document(content_of_record(record, self.cfg.field, lambda: self._place(file, at)))

    def _place(self, file: int, at: int) -> str:
        return f"{self.files[file]}:{line_of(self.files[file], int(self._lines[file][at][0]))}"


def content_of_record(record: Any, field: str, place: Any) -> str | np.ndarray:
    """Returns the document in a JSON object; `place()` says where the object is."""
    if not isinstance(record, dict):
        raise DataError(f"{place()}: expected a JSON object, found {record!r:.60} ({type(record).__name__}).")
    if field not in record:
        hint = did_you_mean(field, record) or f" It has: {', '.join(record) or 'nothing'}."
        raise DataError(f"{place()}: the record has no field {field!r}.{hint}")
    content = record[field]
    return content if isinstance(content, str) else checked_content(content, f"field {field!r}", place())


def _index_lines(file: str) -> np.ndarray:
    """Returns where each line that is not blank starts and stops: [lines, 2]."""
    size = os.path.getsize(file)
    ends: list[np.ndarray] = []
    with open(file, "rb") as f:
        head = f.read(3)
        f.seek(0)
        if head[:2] == b"\x1f\x8b":
            raise DataError(f"{file}: is compressed with gzip, so its lines cannot be read by index. Unpack it first.")
        for offset in range(0, size, _CHUNK):
            chunk = np.frombuffer(f.read(_CHUNK), np.uint8)
            ends.append(np.flatnonzero(chunk == ord("\n")) + offset)
    stops = np.append(np.concatenate(ends), size)
    starts = np.concatenate([[len(BOM) if head == BOM else 0], stops[:-1] + 1])
    lengths = stops - starts
    keep = lengths > 0
    one = np.flatnonzero(lengths == 1)  # A blank line of a file with Windows line ends holds a carriage return.
    if len(one):
        keep[one] = ~np.isin(np.memmap(file, np.uint8, "r")[starts[one]], np.frombuffer(b" \t\r", np.uint8))
    if not keep.any():
        raise DataError(f"{file}: has no documents, only blank lines. Remove it, or leave it out.")
    return np.stack([starts[keep], stops[keep]], axis=1)
