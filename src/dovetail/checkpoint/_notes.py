# SPDX-License-Identifier: Apache-2.0
"""Notes: small files beside the steps of a store, each by name, whole, with one writer."""

import abc
import contextlib
import errno
import os
from pathlib import Path

from dovetail.storage import Objects


class Notes(abc.ABC):
    """The interface. Each call reaches the store, or raises."""

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Returns the names of all notes, in order."""

    @abc.abstractmethod
    def read(self, name: str) -> bytes | None:
        """Returns a note; None if there is none of that name."""

    @abc.abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Writes a note and returns True, or returns False if there is one; of several callers one is told True."""

    @abc.abstractmethod
    def update(self, name: str, data: bytes) -> bool:
        """Writes a note that the caller has created, and as many bytes; False if it is there no more."""

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Deletes a note, if it is there."""


class PosixNotes(Notes):
    """Hidden files in a directory. A note appears whole: it is written under another name, and linked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        return sorted(name[1:] for name in os.listdir(self._directory) if name.startswith(".lease-"))

    def read(self, name: str) -> bytes | None:
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        draft = self._directory / f".draft-{os.uname().nodename}-{os.getpid()}"
        draft.write_bytes(data)
        try:
            os.link(draft, self._path(name))  # One system call that fails if the name is taken, over NFS too.
        except FileExistsError:
            return False
        except OSError as e:
            if e.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            return self._create_empty(name, data)  # A file system without links.
        finally:
            draft.unlink()
        return True

    def _create_empty(self, name: str, data: bytes) -> bool:
        try:
            with open(self._path(name), "xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        return True

    def update(self, name: str, data: bytes) -> bool:
        try:
            descriptor = os.open(self._path(name), os.O_WRONLY)  # Never makes it anew.
        except FileNotFoundError:
            return False
        try:
            os.pwrite(descriptor, data, 0)
        finally:
            os.close(descriptor)
        return True

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self._directory / f".{name}"


class ObjectNotes(Notes):
    """Objects under `lease/`."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def names(self) -> list[str]:
        return self._objects.keys("lease/")

    def read(self, name: str) -> bytes | None:
        return self._objects.read(f"lease/{name}")

    def create(self, name: str, data: bytes) -> bool:
        return self._objects.create(f"lease/{name}", data)

    def update(self, name: str, data: bytes) -> bool:
        return self._objects.update(f"lease/{name}", data)

    def delete(self, name: str) -> None:
        self._objects.delete(f"lease/{name}")
