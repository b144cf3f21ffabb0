# SPDX-License-Identifier: Apache-2.0
"""Compressed files (gzip, Zstandard): unpacked once, to the cache of this machine, to be read by index."""

import contextlib
import fcntl
import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dovetail.config import Component

from ._errors import DataError, optional_import

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # How such files start. No text in UTF-8 does.
_BLOCK = 1 << 20


def unpacked(file: str, component: Component) -> str:
    """Returns the file to read in place of `file`: itself, or what is in it if it is compressed.

    That is in `$XDG_CACHE_HOME/dovetail/data` (`~/.cache` by default), and made again when the file changes. Processes
    of one machine share it. Memory does not grow with the file; damage is found where the format has a checksum.
    """
    with open(file, "rb") as f:
        head = f.read(4)
    if head[:2] == _GZIP:
        return _in_cache(file, lambda: gzip.open(file, "rb"))
    if head == _ZSTD or file.endswith(".zst"):  # It may start with a frame to skip, which other bytes mark.
        arrow = optional_import("pyarrow", component=component)
        return _in_cache(file, lambda: arrow.CompressedInputStream(arrow.OSFile(file), "zstd"))
    return file


def _in_cache(file: str, open_stream: Callable[[], Any]) -> str:
    where, what = os.path.realpath(file), os.stat(file)
    name, version = _digest(where), _digest(f"{what.st_size} {what.st_mtime_ns}")
    path = _directory() / f"{name}-{version}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            if not path.exists():
                for old in path.parent.glob(f"{name}-*"):
                    old.unlink()
                _write(path, _blocks(file, open_stream))
    except OSError as e:
        raise DataError(
            f"{file}: cannot be unpacked to {str(path.parent)!r}: {e.strerror or e}.\n"
            "  Make room there, set XDG_CACHE_HOME to another place, or unpack the file yourself."
        ) from e
    return str(path)


def _write(path: Path, blocks: Iterator[bytes]) -> None:
    """Writes a file, whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as out:
        try:
            out.writelines(blocks)
            out.flush()
            os.fsync(out.fileno())
            os.replace(out.name, path)
        except BaseException:
            os.unlink(out.name)
            raise


def _blocks(file: str, open_stream: Callable[[], Any]) -> Iterator[bytes]:
    """Yields what is in a compressed file."""
    size = 0
    try:
        with open_stream() as stream:
            while block := stream.read(_BLOCK):
                size += len(block)
                yield block
    except (EOFError, OSError, zlib.error) as e:
        raise DataError(f"{file}: is damaged, or not compressed as it seems: {e}. Get it again.") from e
    if not size:
        raise DataError(f"{file}: there is nothing in it. Remove it, or leave it out.")


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lets in one process of this machine at a time."""
    with open(directory / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dovetail" / "data"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
