# SPDX-License-Identifier: Apache-2.0
"""The files of a step in a store of objects: each in parts of one size, side by side, and how many bytes, last.

arrays/3+00000, arrays/3+00001, ...   the bytes
arrays/3+size                         how many there are: without it, the file is not there
"""

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from dovetail.storage import Objects

from ._step_files import StepFiles

_PART = 1 << 25  # Bytes of an object; the last one of a file is shorter.
_AHEAD = 4  # Parts of a file on their way at a time: what they hold is in memory twice.


class ObjectFiles(StepFiles):
    """The files whose keys begin with a prefix. A store that does not answer is a CheckpointError, and no damage."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        self._objects, self._prefix = objects, prefix
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()

    def write(self, name: str, pieces: Iterable[memoryview | bytes]) -> None:
        key, size, waiting = f"{self._prefix}{name}", 0, deque[tuple[Any, str]]()
        for number, part in enumerate(_parts(pieces)):
            if len(waiting) == _AHEAD:
                self._objects.answers([waiting.popleft()])
            waiting.append(self._objects.start_writing(_part(key, number), part))
            size += len(part)
        self._objects.answers(waiting)
        self._objects.write(f"{key}+size", str(size).encode())

    def size(self, name: str) -> int:
        with self._lock:
            if name not in self._sizes:
                found = self._objects.read(f"{self._prefix}{name}+size")
                if found is None:
                    raise FileNotFoundError(0, "No such object")
                self._sizes[name] = int(found)  # A ValueError tells that it is damaged.
            return self._sizes[name]

    def read_into(self, name: str, offset: int, out: memoryview) -> int:
        end = min(offset + len(out), self.size(name))
        asked = list[tuple[Any, str]]()
        begin = offset
        while begin < end:
            number, skip = divmod(begin, _PART)
            count = min(_PART - skip, end - begin)
            key = _part(f"{self._prefix}{name}", number)
            asked.append(self._objects.start_reading(key, skip, skip + count))
            begin += count
        done = 0
        for found in self._objects.answers(asked):
            if found.state != "value":
                raise FileNotFoundError(0, "An object of it is gone")
            out[done : done + len(found.value)] = found.value
            done += len(found.value)
        return done

    def close(self) -> None:
        self._sizes.clear()


def _part(key: str, number: int) -> str:
    return f"{key}+{number:05d}"


def _parts(pieces: Iterable[memoryview | bytes]) -> Iterable[bytes]:
    part = bytearray()
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            room = _PART - len(part)
            part += rest[:room]
            rest = rest[room:]
            if len(part) == _PART:
                yield bytes(part)
                part = bytearray()
    if part:
        yield bytes(part)
