# SPDX-License-Identifier: Apache-2.0
"""Where prepared data is: a directory, or objects below a URL. Files by name, whole or in ranges."""

import abc
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.config import ConfigError
from dovetail.storage import Objects, reason

from ._errors import DataError
from ._files import opened_files

_SIDE_BY_SIDE = 256  # Requests.


class Range(NamedTuple):
    """Some of the bytes of a file."""

    name: str
    start: int
    stop: int


class Place(abc.ABC):
    """Files by name. What cannot be read or written is a `DataError` that says where and why.

    A file appears whole or not at all, so one that is there can be read. `is_far`: it pays to ask ahead of need.
    """

    is_far = False

    def __init__(self, where: str) -> None:
        self.where = where

    def named(self, name: str) -> str:
        """Returns a file as messages name it."""
        return f"{self.where}/{name}"

    @abc.abstractmethod
    def read(self, name: str) -> bytes | None:
        """Returns a file; None if there is none."""

    @abc.abstractmethod
    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        """Returns many files, each of them or None, read side by side where that is faster."""

    @abc.abstractmethod
    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        """Returns parts of files, read side by side where that is faster; each of them is there, and complete."""

    @abc.abstractmethod
    def write(self, name: str, data: bytes | bytearray) -> None:
        """Writes a file, in place of what there is."""

    @abc.abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Writes a file and returns True, or returns False if there is one; of several callers one is told True."""

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Deletes a file, if it is there."""

    @abc.abstractmethod
    def names(self, directory: str = "") -> list[str]:
        """Returns the names of the files in a directory of this place, or of all, in order."""

    @abc.abstractmethod
    def is_empty(self) -> bool:
        """Whether there is nothing, or only work that has just begun."""

    @abc.abstractmethod
    def clean(self) -> None:
        """Removes what was half written by processes that were killed. Of the last one that writes here."""

    def need(self, name: str) -> bytes:
        """Returns a file, which must be there."""
        found = self.read(name)
        if found is None:
            raise DataError(f"{self.named(name)}: is missing.")
        return found

    def _short(self, part: Range, found: int) -> DataError:
        return DataError(
            f"{self.named(part.name)}: has {found} of the {part.stop - part.start} bytes from {part.start} on.\n"
            "  It was cut short. Prepare the data again, or get the file again."
        )


class _Directory(Place):
    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._open = opened_files()

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            raise self._failed(name, "read", e) from e

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        return [self.read(name) for name in names]

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        return [self._range(part) for part in ranges]

    def _range(self, part: Range) -> bytes:
        try:
            with self._open.use(str(self._path / part.name)) as file:
                found = os.pread(file.fileno(), part.stop - part.start, part.start)
        except OSError as e:
            raise self._failed(part.name, "read", e) from e
        if len(found) != part.stop - part.start:
            raise self._short(part, len(found))
        return found

    def write(self, name: str, data: bytes | bytearray) -> None:
        draft = self._draft(name, data)
        try:
            os.replace(draft, self._path / name)
        except OSError as e:
            raise self._failed(name, "written", e) from e

    def create(self, name: str, data: bytes) -> bool:
        draft = self._draft(name, data)
        try:
            os.link(draft, self._path / name)  # One system call that fails if the name is taken, over NFS too.
        except FileExistsError:
            return False
        except OSError as e:
            if e.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise self._failed(name, "written", e) from e
            return self._create_at_once(name, data)  # A file system without links.
        finally:
            draft.unlink()
        return True

    def _create_at_once(self, name: str, data: bytes) -> bool:
        try:
            with open(self._path / name, "xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        return True

    def _draft(self, name: str, data: bytes | bytearray) -> Path:
        """Writes a file under another name, that nobody else writes."""
        path = self._path / name
        draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}.draft")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as e:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise self._failed(name, "written", e) from e
        return draft

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # Its directory stays: others may be about to write there.
            (self._path / name).unlink()

    def names(self, directory: str = "") -> list[str]:
        home = self._path / directory
        try:
            found = (each for each in home.rglob("*") if each.suffix != ".draft" and each.is_file())
            return sorted(each.relative_to(home).as_posix() for each in found)
        except FileNotFoundError:
            return []

    def is_empty(self) -> bool:
        try:
            return {*os.listdir(self._path)} <= {"work"}
        except FileNotFoundError:
            return True
        except OSError as e:
            raise self._failed("", "read", e) from e

    def clean(self) -> None:
        for draft in self._path.rglob(".*.draft"):
            draft.unlink(missing_ok=True)
        for directory in (*(self._path / "work").glob("*/"), self._path / "work"):
            with contextlib.suppress(OSError):
                directory.rmdir()

    def _failed(self, name: str, what: str, error: OSError) -> DataError:
        advice = " Make room, and run it again: it goes on where it was." if error.errno == errno.ENOSPC else ""
        return DataError(f"{self.named(name)}: cannot be {what}: {reason(error)}{advice}")


class _Bucket(Place):
    is_far = True

    def __init__(self, url: str, where: str) -> None:
        super().__init__(url.rstrip("/"))
        self._objects = Objects(url, where=where, error=DataError)

    def read(self, name: str) -> bytes | None:
        return self._objects.read(name)

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        some = (names[i : i + _SIDE_BY_SIDE] for i in range(0, len(names), _SIDE_BY_SIDE))
        return [data for each in some for data in self._objects.read_all(each)]

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        answers = self._objects.answers([self._objects.start_reading(*part) for part in ranges])
        found = [bytes(answer.value) if answer.state == "value" else None for answer in answers]
        for part, data in zip(ranges, found, strict=True):
            if data is None:
                raise DataError(f"{self.named(part.name)}: is missing.")
            if len(data) != part.stop - part.start:
                raise self._short(part, len(data))
        return [data for data in found if data is not None]

    def write(self, name: str, data: bytes | bytearray) -> None:
        self._objects.write(name, bytes(data))

    def create(self, name: str, data: bytes) -> bool:
        return self._objects.create(name, data)

    def delete(self, name: str) -> None:
        self._objects.delete(name)

    def names(self, directory: str = "") -> list[str]:
        return self._objects.keys(f"{directory}/" if directory else "")

    def is_empty(self) -> bool:
        return all(name.startswith("work/") for name in self.names())

    def clean(self) -> None:
        pass


def open_place(path: str, where: str) -> Place:
    """Returns the place at a path or a URL; nothing is made or read. `where` is what names it, for messages."""
    if not path:
        raise ConfigError(f"{where}: is empty. Give a directory, or s3://BUCKET/NAME or gs://BUCKET/NAME.")
    return _Bucket(path, where) if "://" in path else _Directory(Path(path).expanduser().absolute())
