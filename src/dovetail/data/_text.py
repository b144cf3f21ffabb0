# SPDX-License-Identifier: Apache-2.0
"""Plain text: one document for each file, or several with a separator between them."""

import mmap
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from dovetail.config import ConfigError

from ._document import Document
from ._errors import DataError, place_of
from ._files import BOM, decode, line_of, opened_files, read_range
from ._source import FileSource

_NOT_BLANK = re.compile(rb"\S")


class TextFiles(FileSource):
    """Documents in plain text files, also compressed (.gz, .zst). Those of white space only do not count.

    A document longer than `max_bytes` is read in parts, so it may be longer than memory. Each part is shuffled like a
    document; a part ends at the end of a line or a word where there is one in its second half.
    """

    class Config(FileSource.Config):
        separator: str | None = None  # What stands between two documents of a file; None: a file is one document.
        max_bytes: int = 1 << 20

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if cfg.separator == "":
            raise ConfigError(f"{place_of(self, 'separator')}: is empty. Use None for one document per file.")
        if cfg.max_bytes < 4:
            raise ConfigError(f"{place_of(self, 'max_bytes')}: is {cfg.max_bytes}, less than a character may take (4).")
        separator = None if cfg.separator is None else cfg.separator.encode()
        names = zip(self._paths, self.files, strict=True)
        self._parts = [_index_parts(plain, file, separator, cfg.max_bytes) for plain, file in names]
        self._set_counts(map(len, self._parts))
        self._open = opened_files()

    def _read(self, file: int, at: int) -> Document:
        start, stop, starts, ends = map(int, self._parts[file][at])
        text = decode(read_range(self._open, self._paths[file], start, stop), self.files[file], start)
        return Document(text, bool(starts), bool(ends))

    def _place(self, file: int, at: int) -> str:
        return f"{self.files[file]}:{line_of(self._paths[file], int(self._parts[file][at][0]))}"


def _index_parts(plain: str, file: str, separator: bytes | None, limit: int) -> np.ndarray:
    """Returns start, stop, whether a document starts and whether it ends there, of each part: [parts, 4]."""
    with open(plain, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        rows = [
            (start, stop, start == first, stop == last)
            for first, last in _documents(data, separator)
            for start, stop in _parts(data, first, last, limit)
        ]
    if not rows:
        raise DataError(f"{file}: has no documents, only white space. Remove it, or leave it out.")
    return np.array(rows, np.int64)


def _documents(data: mmap.mmap, separator: bytes | None) -> Iterator[tuple[int, int]]:
    start = len(BOM) if data[:3] == BOM else 0
    while start < len(data):
        stop = data.find(separator, start) if separator else -1
        stop = len(data) if stop < 0 else stop
        if _NOT_BLANK.search(data, start, stop):
            yield start, stop
        start = stop + len(separator or b"")


def _parts(data: mmap.mmap, start: int, stop: int, limit: int) -> Iterator[tuple[int, int]]:
    while stop - start > limit:
        cut = start + limit
        for end in (b"\n", b" "):
            found = data.rfind(end, start + limit // 2, cut)
            if found >= 0:
                cut = found + (end == b"\n")  # A word keeps the space before it: tokenizers learn them together.
                break
        else:
            for back in range(1, 4):  # Not inside a character: at most three bytes of one follow its first.
                if data[cut] & 0xC0 != 0x80:
                    break
                cut = start + limit - back
        yield start, cut
        start = cut
    yield start, stop
