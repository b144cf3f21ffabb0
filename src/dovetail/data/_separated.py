# SPDX-License-Identifier: Apache-2.0
"""Texts with a separator between them, in a range of the bytes of a file, without what is before."""

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from ._files import BOM

_CHUNK = 1 << 20
_NEAR = 1 << 16  # Bytes that are looked at for a separator at a time.


def bounds_of(f: BinaryIO, start: int, stop: int, size: int, separator: bytes) -> tuple[int, int]:
    """Returns where the first text that starts in a range starts, and where the last one of them ends.

    Where a text starts depends on the bytes before it alone, so ranges that meet neither share nor lose one.
    """
    return _boundary(f, start, size, separator), _boundary(f, stop, size, separator)


def texts_of(
    f: Any, start: int, stop: int | None, separator: bytes | None, limit: int
) -> Iterator[tuple[int, bytes, bool, bool]]:
    """Yields the texts of a file that is at `start`, up to `stop` or its end, those longer than `limit` in parts.

    Of each: where it is, the bytes, whether it starts a document and whether it ends.
    """
    read = _limited(f, None if stop is None else stop - start)
    if start == 0:
        head = _exactly(read, len(BOM))
        start, head = (len(BOM), b"") if head == BOM else (0, head)
        read = _after(head, read)
    yield from split(read, start, separator, limit)


def _exactly(read: Callable[[int], bytes], count: int) -> bytes:
    data = b""
    while len(data) < count and (more := read(count - len(data))):
        data += more
    return data


def _after(head: bytes, read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Returns what reads on after some bytes that have been read."""
    left = [head] if head else []
    return lambda count: left.pop() if left else read(count)


def _boundary(f: BinaryIO, at: int, size: int, separator: bytes) -> int:
    """Returns where the first document at or after byte `at` starts; the size of the file if there is none."""
    if at <= 0 or at >= size:
        return min(max(at, 0), size)
    start = max(at - len(separator), 0)
    f.seek(start)
    data = b""
    while more := f.read(_NEAR):
        data += more
        found = data.find(separator)
        if found >= 0:
            return start + found + len(separator)
        keep = len(separator) - 1
        start += len(data) - keep
        data = data[len(data) - keep :]
    return size


def _limited(f: Any, left: int | None) -> Callable[[int], bytes]:
    def read(count: int) -> bytes:
        nonlocal left
        data = f.read(count if left is None else min(count, left))
        left = None if left is None else left - len(data)
        return data

    return read


def split(
    read: Callable[[int], bytes], offset: int, separator: bytes | None, limit: int
) -> Iterator[tuple[int, bytes, bool, bool]]:
    """Yields texts between separators, those longer than `limit` in parts, cut at the end of a line or a word."""
    data, at, starts, is_all = b"", 0, True, False
    while True:
        found = data.find(separator, at) if separator else -1
        if found >= 0 and found - at <= limit:
            yield offset + at, data[at:found], starts, True
            at, starts = found + len(separator or b""), True
        elif len(data) - at > limit + len(separator or b""):
            cut = _cut(data, at, limit)
            yield offset + at, data[at:cut], starts, False
            at, starts = cut, False
        elif not is_all:
            more = read(max(_CHUNK, len(data) - at))
            is_all = not more
            offset, data, at = offset + at, data[at:] + more, 0
        else:
            if at < len(data) or not starts:
                yield offset + at, data[at:], starts, True
            return


def _cut(data: bytes, start: int, limit: int) -> int:
    cut = start + limit
    for end in (b"\n", b" "):
        found = data.rfind(end, start + limit // 2, cut)
        if found >= 0:
            return found + (end == b"\n")  # A word keeps the space before it: tokenizers learn them together.
    for back in range(1, 4):  # Not inside a character: at most three bytes of one follow its first.
        if data[cut] & 0xC0 != 0x80:
            break
        cut = start + limit - back
    return cut
