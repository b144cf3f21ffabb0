# SPDX-License-Identifier: Apache-2.0
"""Copies, in the cache of this machine, of files that are compressed (gzip, Zstandard) or at a URL: read by index."""

import contextlib
import fcntl
import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dovetail.config import Component

from ._errors import DataError, optional_import
from ._file import File
from ._files import open_stream

_BLOCK = 1 << 20


def local_copy(file: File, component: Component | None = None) -> str:
    """Returns the path to read in place of a file: its own, or that of a copy that is not compressed, on this machine.

    Copies are in `$XDG_CACHE_HOME/dovetail/data` (`~/.cache` by default), and made again when the file changes.
    Processes of one machine share them. Memory does not grow with the file; damage is found where the format has a
    checksum, or the store tells one.
    """
    if not file.is_remote and not file.compression:
        return file.path
    return _in_cache(file, lambda: unpacked(file, component))


def unpacked(file: File, component: Component | None = None) -> Any:
    """Opens a file to read what is in it, from its start to its end: of a compressed one, what was compressed."""
    stream = open_stream(file)
    if file.compression == "gz":
        return _Gzip(stream)
    if file.compression == "zst":
        arrow = optional_import("pyarrow", component=component)
        return arrow.CompressedInputStream(arrow.PythonFile(stream, "r"), "zstd")
    return stream


class _Gzip(gzip.GzipFile):
    """A file of gzip that closes what it is read from."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(fileobj=stream, mode="rb")
        self._stream = stream

    def close(self) -> None:
        super().close()
        self._stream.close()


def _in_cache(file: File, open_stream: Callable[[], Any]) -> str:
    name, version = _digest(_identity(file)), _digest(f"{file.size} {file.version}")
    path = cache_directory() / f"{name}-{version}"
    what = "unpacked" if file.compression else "copied"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            if not path.exists() or not file.version:
                for old in path.parent.glob(f"{name}-*"):
                    if old != path:
                        old.unlink()
                _write(path, _blocks(file, open_stream))
    except OSError as e:
        raise DataError(
            f"{file.name}: cannot be {what} to {str(path.parent)!r}: {e.strerror or e}.\n"
            f"  Make room there, set XDG_CACHE_HOME to another place, or {'unpack' if file.compression else 'get'} the "
            "file yourself."
        ) from e
    return str(path)


def _identity(file: File) -> str:
    """Returns what tells a file from all others; the store too, for two may have buckets of one name."""
    if file.is_remote:
        return f"{file.path} {os.environ.get('AWS_ENDPOINT_URL_S3') or os.environ.get('AWS_ENDPOINT_URL') or ''}"
    return os.path.realpath(file.path)


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


def _blocks(file: File, open_stream: Callable[[], Any]) -> Iterator[bytes]:
    """Yields what is in a compressed file."""
    size = 0
    try:
        with open_stream() as stream:
            while block := stream.read(_BLOCK):
                size += len(block)
                yield block
    except (EOFError, OSError, zlib.error) as e:
        raise DataError(f"{file.name}: is damaged, or not compressed as it seems: {e}. Get it again.") from e
    if not size:
        raise DataError(f"{file.name}: there is nothing in it. Remove it, or leave it out.")


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lets in one process of this machine at a time."""
    with open(directory / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_directory() -> Path:
    """Returns where copies are kept on this machine."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dovetail" / "data"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
