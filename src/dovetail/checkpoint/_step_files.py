# SPDX-License-Identifier: Apache-2.0
"""The files of one step, wherever it lies: written once, piece by piece, and read by ranges."""

import abc
import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path


class NotRegularError(OSError):
    """There is something else in place of a file."""

    def __init__(self, what: str) -> None:
        super().__init__(0, what)


_BUFFER = 1 << 18  # Bytes of small pieces that are written at once; larger ones are not copied.


class StepFiles(abc.ABC):
    """The interface. Names are relative, with `/`; what goes wrong is an OSError. Any thread may call."""

    @abc.abstractmethod
    def write(self, name: str, pieces: Iterable[memoryview | bytes]) -> None:
        """Writes a new file; returns when it is safe."""

    @abc.abstractmethod
    def size(self, name: str) -> int:
        """Returns the size of a file."""

    @abc.abstractmethod
    def read_into(self, name: str, offset: int, out: memoryview) -> int:
        """Fills `out` with what is at an offset of a file; returns how many bytes there are, fewer at its end."""

    @abc.abstractmethod
    def close(self) -> None:
        """Forgets files that were opened to read them."""


class LocalFiles(StepFiles):
    """The files of a step in a file system. Opens regular files alone: no link, device or pipe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[str, int] = {}

    def write(self, name: str, pieces: Iterable[memoryview | bytes]) -> None:
        with open(self._path / name, "xb", buffering=_BUFFER) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    def size(self, name: str) -> int:
        return os.fstat(self._descriptor(name)).st_size

    def read_into(self, name: str, offset: int, out: memoryview) -> int:
        done, descriptor = 0, self._descriptor(name)
        while done < len(out):
            count = os.preadv(descriptor, [out[done:]], offset + done)
            if not count:
                break
            done += count
        return done

    def close(self) -> None:
        for descriptor in self._open.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._open.clear()

    def _descriptor(self, name: str) -> int:
        if name not in self._open:
            opened = open_regular(self._path / name)
            if self._open.setdefault(name, opened) != opened:  # Another thread was faster.
                os.close(opened)
        return self._open[name]


def open_regular(path: Path) -> int:
    """Returns a descriptor to read a regular file; an error if it is something else, which may never end."""
    mode = path.lstat().st_mode  # Before it is opened: opening a device may do something.
    if not stat.S_ISREG(mode):
        raise NotRegularError(not_regular(mode))
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def not_regular(mode: int) -> str:
    """Returns what is there in place of a regular file."""
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory"}
    return f"is {kinds.get(stat.S_IFMT(mode), 'a device, pipe or socket')}, expected a regular file"
