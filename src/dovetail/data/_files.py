# SPDX-License-Identifier: Apache-2.0
"""Files of a source: found by path, URL or glob, opened when needed, decoded as UTF-8."""

import glob
import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from dovetail.config import ConfigError, did_you_mean

from ._errors import DataError
from ._file import HEAD, File
from ._remote import Ranges, Stream, changed, listed, look, read_small
from ._saved import saved_files

_AT_ONCE = 16  # Files at URLs that are looked at side by side.
_MAGIC = re.compile(r"[*?[]")
_K = TypeVar("_K")
_V = TypeVar("_V")
BOM = b"\xef\xbb\xbf"


def find_files(patterns: Sequence[str], where: str) -> list[File]:
    """Returns the files of paths, URLs and globs (`**` for any depth): in the order given, those of a glob sorted.

    A directory that `save_to_disk` has written stands for its files. A file named twice is an error, for it would
    silently count double. `where` is the config path for errors.
    """
    if not patterns:
        raise ConfigError(f"{where}: names no files. Give paths or globs, as in ['data/*.jsonl'].")
    named_by: dict[str, str] = {}
    paths: list[str] = []
    known: dict[str, File] = {}  # Those that had to be looked at to be found.
    for pattern in patterns:
        is_url = "://" in pattern
        for path in _remote_matches(pattern, where, known) if is_url else _matches(os.path.expanduser(pattern), where):
            real = path if is_url else os.path.realpath(path)
            if real in named_by:
                raise ConfigError(f"{where}: {path!r} is named twice, by {named_by[real]!r} and by {pattern!r}.")
            named_by[real] = pattern
            paths.append(path)
    files = _looked_at(paths, known, where)
    for file in files:
        if file.size == 0:
            raise DataError(f"{file.name}: the file is empty. Remove it, or leave it out of {where}.")
    return files


def _looked_at(paths: Sequence[str], known: Mapping[str, File], where: str) -> list[File]:
    def look_at(path: str) -> File:
        found = known.get(path) or (look(path, where) if "://" in path else _look(path))
        if found is None:
            raise ConfigError(f"{where}: there is no file {path.partition('?')[0]!r}.")
        return found

    if not any("://" in path and path not in known for path in paths):
        return list(map(look_at, paths))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(look_at, paths))


def _look(path: str) -> File:
    try:
        with open(path, "rb") as f:
            head, stat = f.read(HEAD), os.fstat(f.fileno())
    except OSError as e:
        raise DataError(f"{path}: cannot be read: {e.strerror or e}.") from e
    return File(path, stat.st_size, f"changed {stat.st_mtime_ns}", head)


def _matches(pattern: str, where: str) -> list[str]:
    if os.path.isdir(pattern):
        return _saved_at(pattern, where)
    found = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
    files = sorted(file for file in found if os.path.isfile(file))
    if not files:
        directory, name = os.path.split(pattern)
        beside = os.listdir(directory or ".") if os.path.isdir(directory or ".") else []
        near = did_you_mean(name, beside)
        missing = f" There is no directory {directory!r}." if directory and not beside else ""
        raise ConfigError(f"{where}: no file matches {pattern!r}.{near or missing}")
    return files


def _saved_at(directory: str, where: str) -> list[str]:
    def read(name: str) -> bytes | None:
        path = Path(directory, name)
        return path.read_bytes() if path.is_file() else None

    if (found := saved_files(directory, read, where)) is None:
        raise ConfigError(
            f"{where}: {directory!r} is a directory. Name the files in it, as in '{directory}/*.jsonl'.\n"
            "  A directory may only be a data set that save_to_disk of Hugging Face datasets has written."
        )
    for path in found:
        if not os.path.isfile(path):
            raise DataError(f"{path}: is missing, and {directory}/state.json names it. Save the data set again.")
    return found


def _remote_matches(pattern: str, where: str, known: dict[str, File]) -> list[str]:
    first, is_web = _MAGIC.search(pattern), pattern.startswith("http")
    name = pattern.partition("?")[0] if is_web else pattern  # Its query names no files.
    if first is not None and (not is_web or "*" in name):
        matches = re.compile(_glob_pattern(pattern)).fullmatch
        found = [url for url in listed(pattern[: first.start()], where) if matches(url)]
        if not found and look(pattern, where) is None:  # There may be a name that looks like a glob.
            raise ConfigError(f"{where}: no file matches {pattern!r}.")
        return found or [pattern]
    looks_like_a_directory = name.endswith("/") or (is_web and "." not in name.rpartition("/")[2])  # Else a page of it.
    if looks_like_a_directory and (found := _saved_far(name, where)) is not None:
        return found
    if not name.endswith("/") and (file := look(pattern, where)) is not None:
        known[pattern] = file
        return [pattern]
    if not looks_like_a_directory and (found := _saved_far(name, where)) is not None:
        return found
    hint = "" if is_web else f" For all that is there: '{name.rstrip('/')}/*.jsonl', say."
    if not is_web:
        with suppress(DataError):  # A key may be allowed to read, and not to list.
            hint = did_you_mean(pattern, listed(f"{pattern.rpartition('/')[0]}/", where, all_of_them=False)) or hint
    raise ConfigError(f"{where}: there is no file {name!r}.{hint}")


def _saved_far(directory: str, where: str) -> list[str] | None:
    directory = directory.rstrip("/")
    return saved_files(directory, lambda name: read_small(f"{directory}/{name}", where), where)


def _glob_pattern(pattern: str) -> str:
    """Returns a regular expression for a glob: `*` and `?` stay between slashes, `**/` is any depth."""
    made, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            made, at = made + "(?:.*/)?", at + 3
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) > 0:
            some = pattern[at + 1 : end].replace("\\", r"\\")
            made, at = made + f"[{'^' + some[1:] if some[0] == '!' else some}]", end + 1
        else:
            made += {"*": "[^/]*", "?": "[^/]"}.get(pattern[at]) or re.escape(pattern[at])
            at += 1
    return made


def open_file(file: File, block: int, stop: int | None = None) -> BinaryIO:
    """Opens a file to read anything in it. At a URL, `block` bytes are asked for at a time, and none from `stop` on."""
    if file.is_remote:
        return io.BufferedReader(Ranges(file, stop), block)
    return open(file.path, "rb")


def open_stream(file: File) -> BinaryIO:
    """Opens a file to read it from its start to its end, once; it is checked where the store has a checksum of it."""
    if file.is_remote:
        return io.BufferedReader(Stream(file), 1 << 20)
    return open(file.path, "rb")


def check_same(file: File) -> None:
    """Raises if a file of this host is not what it was. What comes from a URL is compared with each answer."""
    if not file.is_remote:
        stat = os.stat(file.path)
        if stat.st_size != file.size or f"changed {stat.st_mtime_ns}" != file.version:
            raise changed(file, stat.st_size, f"changed {stat.st_mtime_ns}")


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
