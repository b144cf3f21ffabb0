# SPDX-License-Identifier: Apache-2.0
"""Files that reach the disk, and checksums that say whether they are still the same."""

import json
import os
import zlib
from pathlib import Path
from typing import Any, TypedDict

_CHUNK = 1 << 20


class FileSum(TypedDict):
    """What a file was when it was written."""

    size: int
    crc32: str


def write_file(path: Path, data: bytes) -> FileSum:
    """Writes a new file and waits until it is on disk."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return sum_bytes(data)


def sum_bytes(data: bytes) -> FileSum:
    """Returns size and checksum of what a file holds."""
    return FileSum(size=len(data), crc32=_text(zlib.crc32(data)))


def sync(path: Path) -> None:
    """Waits until what is in a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sum_file(path: Path) -> FileSum:
    """Returns size and checksum of a file, a megabyte at a time."""
    size = crc = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return FileSum(size=size, crc32=_text(crc))


def seal(content: Any) -> bytes:
    """Returns JSON data as the bytes of a file that `unseal` reads only if not one of them has changed."""
    crc = _text(zlib.crc32(_canonical(content)))
    return _canonical({"content": content, "crc32": crc})


def unseal(sealed: bytes) -> Any:
    """Returns the data in the bytes that `seal` made; a ValueError if they are others."""
    document = json.loads(sealed)
    if not isinstance(document, dict) or "content" not in document or seal(document["content"]) != sealed:
        raise ValueError("its checksum does not fit its content")
    return document["content"]


def _canonical(data: Any) -> bytes:
    return (json.dumps(data, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def _text(crc: int) -> str:
    return f"{crc:08x}"
