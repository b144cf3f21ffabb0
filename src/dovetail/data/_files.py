# SPDX-License-Identifier: Apache-2.0
"""Files of a source: found by path or glob, opened when needed, decoded as UTF-8."""

import glob
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Generic, TypeVar

from dovetail.config import ConfigError, did_you_mean

from ._errors import DataError

_K = TypeVar("_K")
_V = TypeVar("_V")
BOM = b"\xef\xbb\xbf"


def find_files(patterns: Sequence[str], where: str) -> list[str]:
    """Returns the files that paths and globs (`**` for any depth) name: in the order given, those of a glob sorted.

    A file named twice is an error, for it would silently count double. `where` is the config path for errors.
    """
    if not patterns:
        raise ConfigError(f"{where}: names no files. Give paths or globs, as in ['data/*.jsonl'].")
    files: dict[str, str] = {}  # The file, by its real path.
    named_by: dict[str, str] = {}
    for pattern in map(os.path.expanduser, patterns):
        for file in _matches(pattern, where):
            real = os.path.realpath(file)
            if real in files:
                raise ConfigError(f"{where}: {file!r} is named twice, by {named_by[real]!r} and by {pattern!r}.")
            if os.path.getsize(file) == 0:
                raise DataError(f"{file}: the file is empty. Remove it, or leave it out of {where}.")
            files[real], named_by[real] = file, pattern
    return list(files.values())


def _matches(pattern: str, where: str) -> list[str]:
    if os.path.isdir(pattern):
        raise ConfigError(f"{where}: {pattern!r} is a directory. Name the files in it, as in '{pattern}/*.jsonl'.")
    found = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
    files = sorted(file for file in found if os.path.isfile(file))
    if not files:
        directory, name = os.path.split(pattern)
        beside = os.listdir(directory or ".") if os.path.isdir(directory or ".") else []
        near = did_you_mean(name, beside)
        missing = f" There is no directory {directory!r}." if directory and not beside else ""
        raise ConfigError(f"{where}: no file matches {pattern!r}.{near or missing}")
    return files


def decode(raw: bytes, file: str, start: int) -> str:
    """Returns `raw`, which begins at byte `start` of `file`, as text."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise DataError(
            f"{file}: not UTF-8 at byte {start + e.start}: found 0x{raw[e.start]:02x} ({e.reason}).\n"
            "  Convert the file to UTF-8, for example with iconv."
        ) from None


def line_of(file: str, start: int) -> int:
    """Returns the number of the line that byte `start` of `file` is in, from 1. Reads up to there: for errors only."""
    count = 1
    with open(file, "rb") as f:
        while start > 0 and (chunk := f.read(min(start, 1 << 24))):
            count += chunk.count(b"\n")
            start -= len(chunk)
    return count


class Cache(Generic[_K, _V]):
    """The most recently used values of `make(key)`, for one thread at a time; `close(value)` ends those that leave it.

    A pickled cache arrives empty: an open file does not travel to another process.
    """

    def __init__(self, make: Callable[[_K], _V], limit: int, close: Callable[[_V], None] | None = None) -> None:
        self._make, self._limit, self._close = make, limit, close
        self._values = OrderedDict[_K, _V]()
        self._lock = threading.RLock()

    @contextmanager
    def use(self, key: _K) -> Iterator[_V]:
        """Gives the value of `key`; it stays open, and other threads wait, until the block ends."""
        with self._lock:
            if key not in self._values:
                self._values[key] = self._make(key)
            self._values.move_to_end(key)
            if len(self._values) > self._limit:
                self._leave(self._values.popitem(last=False)[1])
            yield self._values[key]

    def __reduce__(self) -> Any:
        return Cache, (self._make, self._limit, self._close)

    def __del__(self) -> None:
        for value in self._values.values():
            self._leave(value)

    def _leave(self, value: _V) -> None:
        if self._close is not None:
            self._close(value)


def opened_files() -> Cache[str, BinaryIO]:
    """Returns the files that `read_range` reads, open as long as they are in use."""
    return Cache(_open, limit=64, close=_close)


def _open(file: str) -> BinaryIO:
    return open(file, "rb")


def _close(file: BinaryIO) -> None:
    file.close()


def read_range(files: Cache[str, BinaryIO], file: str, start: int, stop: int) -> bytes:
    """Returns the bytes from `start` to `stop` of a file."""
    with files.use(file) as f:
        f.seek(start)
        raw = f.read(stop - start)
    if len(raw) != stop - start:
        raise DataError(f"{file}: has become shorter than {stop} bytes since it was opened. Do not change data in use.")
    return raw
