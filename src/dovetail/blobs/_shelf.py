# SPDX-License-Identifier: Apache-2.0
"""`Shelf`: where blobs are kept. `Memory` ends with its process, `Directory` does not.

A blob is there whole or not at all: it gets its name when all of it has arrived and its checksum is right.
"""

import abc
import contextlib
import os
import re
import shutil
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*\Z")
_PART = ".part"  # How the names of files end that are not whole yet.
_CHUNK = 1 << 20
_SPARE = 0.05  # Of the memory of a host: what is left for all else.
Read = Callable[[memoryview], int]  # Fills some of a buffer; 0: there is no more.


class BlobError(RuntimeError):
    """A blob was not kept, or cannot be had; the message says why."""


class Shelf(abc.ABC):
    """The interface. Names are words with slashes in between. Any thread may call."""

    @abc.abstractmethod
    def put(self, name: str, size: int, crc: int, read: Read) -> None:
        """Keeps so many bytes from `read` under a name, in place of what had it; raises if their crc32 is another."""

    @abc.abstractmethod
    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes | memoryview:
        """Returns a blob, or a part of it; a BlobError if there is none or it is shorter."""

    @abc.abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """Returns what is there: the size of each blob."""

    @abc.abstractmethod
    def drop(self, names: Iterable[str]) -> None:
        """Forgets blobs; one that is not there does no harm."""


class Memory(Shelf):
    """Blobs in the memory of this process.

    Args:
        limit: bytes, of all blobs together; by default half of the memory of this host.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = _total() // 2 if limit is None else limit
        self._blobs: dict[str, bytearray] = {}
        self._coming = 0  # Bytes of blobs that are arriving.
        self._lock = threading.Lock()

    def put(self, name: str, size: int, crc: int, read: Read) -> None:
        check_name(name)
        with self._lock:
            held = sum(map(len, self._blobs.values())) + self._coming
            if held + size > self._limit:
                raise BlobError(f"no room for {_text(size)}: {_text(held)} are held, of {_text(self._limit)} at most")
            if (free := _free()) is not None and size > free:
                raise BlobError(f"no room for {_text(size)}: the host has {_text(max(free, 0))} left")
            self._coming += size
        try:
            blob = bytearray(size)
            found = _received(memoryview(blob), read)
            _check_crc(name, found, crc)
        finally:
            with self._lock:
                self._coming -= size
        with self._lock:
            self._blobs[name] = blob

    def get(self, name: str, start: int = 0, stop: int | None = None) -> memoryview:
        with self._lock:
            blob = self._blobs.get(name)
        if blob is None:
            raise BlobError(f"there is no {name}")
        check_range(name, len(blob), start, stop)
        return memoryview(blob)[start:stop]

    def sizes(self) -> Mapping[str, int]:
        with self._lock:
            return {name: len(blob) for name, blob in self._blobs.items()}

    def drop(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                self._blobs.pop(name, None)


class Directory(Shelf):
    """Blobs in files under a directory of this host. They need not reach the disk before `put` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, name: str, size: int, crc: int, read: Read) -> None:
        file = self._path / check_name(name)
        part = file.with_name(f"{file.name}{_PART}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as opened:
                left, found, buffer = size, 0, memoryview(bytearray(min(size, _CHUNK)))
                while left:
                    chunk = buffer[: min(left, _CHUNK)]
                    found = _received(chunk, read, found)
                    opened.write(chunk)
                    left -= len(chunk)
            _check_crc(name, found, crc)
            part.replace(file)
        except OSError as e:
            raise BlobError(f"{part}: {e.strerror or e}") from e
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        file = self._path / check_name(name)
        try:
            with file.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                check_range(name, size, start, stop)
                opened.seek(start)
                return opened.read((size if stop is None else stop) - start)
        except OSError as e:
            raise BlobError(f"{file}: {e.strerror or e}") from e

    def sizes(self) -> Mapping[str, int]:
        return {name: file.stat().st_size for name, file in self._files() if not name.endswith(_PART)}

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            file = self._path / check_name(name)
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
                file.parent.rmdir()  # If it was the last one in it.

    def clear(self) -> None:
        """Deletes all of it."""
        shutil.rmtree(self._path, ignore_errors=True)

    def _files(self) -> Iterator[tuple[str, Path]]:
        for folder, _, names in os.walk(self._path):
            for each in names:
                file = Path(folder) / each
                yield file.relative_to(self._path).as_posix(), file


def put_pieces(shelf: Shelf, name: str, data: Sequence[bytes | memoryview]) -> None:
    """Keeps the pieces of a blob on a shelf of this process."""
    left = [memoryview(piece).cast("B") for piece in data if len(piece)]
    crc, size = 0, sum(map(len, left))
    for piece in left:
        crc = zlib.crc32(piece, crc)

    def read(buffer: memoryview) -> int:
        if not left:
            return 0
        count = min(len(buffer), len(left[0]))
        buffer[:count] = left[0][:count]
        left[0] = left[0][count:]
        if not left[0]:
            del left[0]
        return count

    shelf.put(name, size, crc, read)


def check_name(name: str) -> str:
    """Returns a name that may be one of a blob; a BlobError if it leads elsewhere."""
    if not _NAME.match(name) or any(part.strip(".") == "" for part in name.split("/")) or name.endswith(_PART):
        raise BlobError(f"{name[:80]!r} cannot be the name of a blob")
    return name


def check_range(name: str, size: int, start: int, stop: int | None) -> None:
    """Raises a BlobError if a blob of a size does not have these bytes."""
    if not 0 <= start <= (size if stop is None else stop) <= size:
        raise BlobError(f"{name} has {size} bytes: there are none from {start} to {stop}")


def _received(buffer: memoryview, read: Read, crc: int = 0) -> int:
    """Fills a buffer, and returns the crc32 of its content, after what came before."""
    done = 0
    while done < len(buffer):
        count = read(buffer[done : done + _CHUNK])
        if not count:
            raise BlobError(f"it ended after {done} of {len(buffer)} bytes")
        crc = zlib.crc32(buffer[done : done + count], crc)
        done += count
    return crc


def _check_crc(name: str, found: int, expected: int) -> None:
    if found != expected:
        raise BlobError(f"{name} arrived with crc32 {found:08x}, {expected:08x} was sent")


def _total() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free() -> int | None:
    """Returns how many bytes of memory can be taken from this host; None where that is not known."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 - int(_SPARE * _total())
    return None


def _text(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
