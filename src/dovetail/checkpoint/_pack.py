# SPDX-License-Identifier: Apache-2.0
"""The bytes of a process in a step: one file, summed block by block while it is written and while it is read.

    arrays/3       the bytes
    arrays/3.json  how many, and the size and crc32 of each block

A reader asks for ranges. It gets bytes of blocks whose sum is right, or an error that names the file.
"""

import itertools
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from dovetail.progress import Count
from dovetail.storage import reason

from ._files import seal, unseal
from ._step_files import StepFiles

_BLOCK = 1 << 22  # Bytes of a block before compression: the last one is shorter.
_LEVEL = 1  # Of zlib. Weights hardly compress, whatever it is.
_MOST = 1 << 28  # Of the sums of a process.
_CACHED = 4  # Blocks that a reader keeps: neighbours are read one after the other.


class Damaged(Exception):
    """A file is not what was written; its text says which, and in what way."""


def data_name(process: int) -> str:
    """Returns the name of the bytes of a process, in a step."""
    return f"arrays/{process}"


def index_name(process: int) -> str:
    """Returns the name of the sums of those bytes."""
    return f"{data_name(process)}.json"


def write_pack(
    files: StepFiles, process: int, pieces: Iterable[memoryview], *, compress: bool, count: Count | None = None
) -> None:
    """Writes the bytes of a process, and waits until they are safe. They are not read again."""
    count = Count() if count is None else count
    sizes: list[int] = []
    sums: list[str] = []
    total = 0

    def summed() -> Iterator[memoryview | bytes]:
        nonlocal total
        for block in _blocks(pieces):
            total += (length := sum(len(piece) for piece in block))
            crc = size = 0
            for piece in _compressed(block) if compress else block:
                crc, size = zlib.crc32(piece, crc), size + len(piece)
                yield piece
            sizes.append(size)
            sums.append(f"{crc:08x}")
            count.advance(length)

    files.write(data_name(process), summed())
    index = {"bytes": total, "compressed": compress, "sizes": sizes, "crc32": sums}
    files.write(index_name(process), [seal(index)])


def _blocks(pieces: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Yields the bytes again, in lists of as many as a block has."""
    block: list[memoryview] = []
    room = _BLOCK
    for piece in pieces:
        while piece:
            block.append(piece[:room])
            piece, room = piece[room:], room - len(block[-1])
            if not room:
                yield block
                block, room = [], _BLOCK
    if block:
        yield block


def _compressed(block: list[memoryview]) -> Iterator[bytes]:
    work = zlib.compressobj(_LEVEL)
    for piece in block:
        yield work.compress(piece)
    yield work.flush()


class Pack:
    """The bytes of a process, to be read by any number of threads."""

    def __init__(self, files: StepFiles, process: int, size: int) -> None:
        self._files, self._name, name = files, data_name(process), index_name(process)
        try:
            length = files.size(name)
            data = bytearray(min(length, _MOST + 1))
            if files.read_into(name, 0, memoryview(data)) > _MOST:
                raise ValueError(f"it has more than {_MOST:,} bytes")
            self._sizes, self._sums, self._compressed = _checked(unseal(bytes(data)), size)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise Damaged(f"{name}: {reason(e)}") from e
        self._total, self._begins = size, [0, *itertools.accumulate(self._sizes)]
        self._cache: OrderedDict[int, bytes | bytearray] = OrderedDict()
        self._lock = threading.Lock()
        try:
            found = files.size(self._name)
        except (OSError, ValueError) as e:
            raise Damaged(f"{self._name}: {reason(e)}") from e
        if found != self._begins[-1]:
            raise Damaged(f"{self._name}: {found} bytes, {self._begins[-1]} were written.")

    def read(self, begin: int, out: memoryview) -> None:
        """Fills `out` with the bytes from `begin` on; `Damaged` if they are not what was written."""
        done = 0
        while done < len(out):
            number, skip = divmod(begin + done, _BLOCK)
            size = min(_BLOCK, self._total - number * _BLOCK)
            target = out[done : done + size - skip]
            if not skip and len(target) == size and not self._compressed:
                self._read_block(number, target)  # All of it, and nothing to unpack.
            else:
                target[:] = self._block(number)[skip : skip + len(target)]
            done += len(target)

    def check(self) -> None:
        """Reads all blocks; `Damaged` if one is not what was written."""
        for number, size in enumerate(self._sizes):
            self._read_block(number, memoryview(bytearray(size)))

    def _block(self, number: int) -> memoryview:
        with self._lock:
            if number not in self._cache:
                data = bytearray(self._sizes[number])
                self._read_block(number, memoryview(data))
                self._cache[number] = self._unpacked(data, number)
                if len(self._cache) > _CACHED:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(number)
            return memoryview(self._cache[number])

    def _unpacked(self, data: bytearray, number: int) -> bytes | bytearray:
        if not self._compressed:
            return data
        size = min(_BLOCK, self._total - number * _BLOCK)
        work = zlib.decompressobj()
        try:
            found = work.decompress(data, size)
        except zlib.error as e:
            raise Damaged(f"{self._name}: {e}.") from e
        if len(found) != size:
            raise Damaged(f"{self._name}: a block unpacks to {len(found)} bytes, {size} were written.")
        return found

    def _read_block(self, number: int, out: memoryview) -> None:
        begin = self._begins[number]
        try:
            count = self._files.read_into(self._name, begin, out)
        except (OSError, ValueError) as e:
            raise Damaged(f"{self._name}: {reason(e)}") from e
        if count != len(out):
            raise Damaged(f"{self._name}: it ends after {begin + count} bytes.")
        if (crc := f"{zlib.crc32(out):08x}") != self._sums[number]:
            where = f"bytes {begin} to {begin + len(out)}"
            raise Damaged(f"{self._name}: {where} have crc32 {crc}, {self._sums[number]} was written.")


def _checked(index: dict[str, Any], size: int) -> tuple[list[int], list[str], bool]:
    sizes, sums, compressed = index["sizes"], index["crc32"], index["compressed"]
    plain = [min(_BLOCK, size - begin) for begin in range(0, size, _BLOCK)]
    if index["bytes"] != size:
        raise ValueError(f"it is of {index['bytes']} bytes, expected {size}")
    if len(sizes) != len(plain) or len(sums) != len(plain) or any(type(each) is not int for each in sizes):
        raise ValueError("its blocks do not fit its size")
    if any(each < 0 or each > whole + whole // 8 + 64 for each, whole in zip(sizes, plain, strict=True)):
        raise ValueError("its blocks do not fit its size")
    if not compressed and sizes != plain:
        raise ValueError("its blocks do not fit its size")
    return sizes, sums, compressed is True


def problem_with(files: StepFiles, process: int, size: int) -> str | None:
    """Returns what is wrong with the files of a process; reads all of them."""
    try:
        Pack(files, process, size).check()
    except Damaged as e:
        return str(e)
    return None
