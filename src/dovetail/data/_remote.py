# SPDX-License-Identifier: Apache-2.0
"""Files at URLs: found, listed, and read in ranges, each answer compared with what was asked for.

A file that has become another one since it was looked at is an error, whichever server of a store it is that answers.
"""

import hashlib
import io
import re
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

from dovetail.config import ConfigError

from ._errors import DataError
from ._file import HEAD, File
from ._http import Answer, Passing, get, repeated
from ._stores import Store, store_of

_PART = 1 << 23  # Bytes of a range that is asked for at once, at most: so much is lost if it breaks.
_MOST = 1 << 26  # Bytes of an answer that is read as a whole: a listing, a small file.
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


def look(url: str, where: str) -> File | None:
    """Returns a file, with its first bytes, by one request; None if there is none. `where` is for errors."""
    store = store_of(url, where)

    def ask() -> File | None:
        with _asked(store, url, f"bytes=0-{HEAD - 1}") as found:
            if found.status in (404, 410):
                _no_bucket(found, url, where)
                return None
            headers, part = found.headers, _part(found)
            if found.status == 416:  # There is no first byte.
                return File(url, 0, _version(headers), b"")
            if found.status == 206 and part is not None and part[0] == 0:
                if part[2] is None:
                    raise DataError(
                        f"{_named(url)}: the server does not say how long it is. Get the file, and give its path."
                    )
                head = _read(found, min(HEAD, part[2]))
                return File(url, part[2], _version(headers), head, True, store.md5(headers))
            if found.status == 200:  # All of it: this server has no ranges.
                size = headers.get("Content-Length", "")
                if not size.isdigit():
                    raise DataError(
                        f"{_named(url)}: the server says neither how long it is nor gives parts of it. "
                        "Get the file, and give its path."
                    )
                head = found.read(min(HEAD, int(size)))
                return File(url, int(size), _version(headers), head, False, store.md5(headers))
            if found.status == 206:
                raise Passing(f"the server sent {headers.get('Content-Range')!r} for bytes 0-{HEAD - 1}")
            raise _refused(found, url, store)

    return repeated(_named(url), ask)


def read_small(url: str, where: str) -> bytes | None:
    """Returns a small file as a whole; None if there is none."""
    found = look(url, where)
    if found is None:
        return None
    if found.size > _MOST:
        raise DataError(f"{found.name}: has {found.size:,} bytes, and should be small.")
    return Stream(found).read()


def listed(prefix: str, where: str, *, all_of_them: bool = True) -> list[str]:
    """Returns the URLs of the files that begin so, in order; of very many, some, if not all of them are wanted."""
    store, keys, token = store_of(prefix, where, lists=True), list[str](), ""
    bucket = "/".join(prefix.split("/")[:3])
    if not prefix.startswith(("s3:", "gs:")):
        raise ConfigError(
            f"{where}: {_named(prefix)}*: servers of HTTP cannot be asked what they have. Name each file."
        )
    while True:

        def ask(token: str = token) -> bytes:
            with _asked(store, prefix, None, lambda: store.listing(prefix, token)) as found:
                _no_bucket(found, prefix, where)
                if found.status != 200:
                    raise _refused(found, prefix, store)
                return found.read(_MOST)

        try:
            tree = ElementTree.fromstring(repeated(f"{prefix}*", ask))
        except ElementTree.ParseError as e:
            raise DataError(f"{prefix}*: what the store answered is not a list of objects: {e}.") from e
        texts = [(each.tag.rpartition("}")[2], each.text or "") for each in tree.iter()]
        keys += [text for tag, text in texts if tag == "Key"]
        token = next((text for tag, text in texts if tag == "NextContinuationToken"), "")
        if not token or not all_of_them:
            return sorted(f"{bucket}/{key}" for key in keys if not key.endswith("/"))


def read_range(file: File, start: int, stop: int) -> bytes:
    """Returns the bytes from `start` to `stop` of a file that has ranges."""
    store = store_of(file.path, file.name)

    def ask() -> bytes:
        with _asked(store, file.path, f"bytes={start}-{stop - 1}") as found:
            _check(found, file, store, start, stop)
            return _read(found, stop - start)

    return repeated(file.name, ask)


def _read(found: Answer, count: int) -> bytes:
    """Returns the body of an answer, which must have so many bytes."""
    data = found.read(count + 1)
    if len(data) != count:
        raise Passing(
            f"the server sent {'more than ' if len(data) > count else ''}{min(len(data), count)} of {count} bytes"
        )
    return data


def _check(found: Answer, file: File, store: Store, start: int, stop: int) -> None:
    """Sees that an answer is the part of the file that was asked for, and of the same file as before."""
    if found.status in (404, 410):
        raise DataError(f"{file.name}: is there no more. Bring it back, and run this again.")
    if found.status not in (200, 206, 416):
        raise _refused(found, file.path, store)
    part, version = _part(found), _version(found.headers)
    length = found.headers.get("Content-Length", "")
    size = part[2] if part is not None else int(length) if found.status == 200 and length.isdigit() else None
    if (size is not None and size != file.size) or (found.status != 416 and version != file.version):
        raise changed(file, size, version)
    if found.status == 416:
        raise Passing(f"the server says that there are no bytes {start} to {stop} of {file.size}")
    if found.status == 206 and (part is None or part[:2] != (start, stop - 1)):
        raise Passing(f"the server sent {found.headers.get('Content-Range')!r} for bytes {start}-{stop - 1}")
    if found.status == 200 and start:
        raise Passing("the server sent all of the file, not the part that was asked for")


def changed(file: File, size: int | None, version: str) -> DataError:
    """Returns the error for a file that is not what it was."""
    if size is not None and size != file.size:
        what = f"has {size} bytes, and had {file.size} when this began"
    else:
        what = f"is another one than when this began: {version or 'no version'}, and was {file.version or 'no version'}"
    return DataError(f"{file.name}: {what}. Do not change data in use.\n  Start anew in another directory.")


class Ranges(io.RawIOBase):
    """Some of a file at a time, from anywhere, a request for each read: use it with a buffer."""

    def __init__(self, file: File, stop: int | None = None) -> None:
        """Asks for nothing from `stop` on."""
        super().__init__()
        self._file, self._at, self._stop = file, 0, file.size if stop is None else stop

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        stop = min(self._at + min(len(view), _PART), self._stop)
        if stop <= self._at:
            return 0
        data = read_range(self._file, self._at, stop)
        view[: len(data)] = data
        self._at = stop
        return len(data)


class Stream(io.RawIOBase):
    """All of a file from its start to its end, by one request as long as nothing breaks; checked at its end."""

    def __init__(self, file: File) -> None:
        super().__init__()
        self._file, self._at = file, 0
        self._store = store_of(file.path, file.name)
        self._found: Answer | None = None
        self._digest = hashlib.md5(usedforsecurity=False) if file.md5 else None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = repeated(self._file.name, lambda: self._next(len(view)))
        view[: len(data)] = data
        self._at += len(data)
        if self._digest is not None:
            self._digest.update(data)
            if self._at == self._file.size and (found := self._digest.hexdigest()) != self._file.md5:
                raise DataError(
                    f"{self._file.name}: what came is not what the store has: its MD5 is {found}, expected "
                    f"{self._file.md5}.\n  Run this again; if it comes back, put the file there anew."
                )
        return len(data)

    def close(self) -> None:
        self._end()
        super().close()

    def _next(self, count: int) -> bytes:
        """Returns what follows; what breaks is asked for again from where it broke."""
        if self._at == self._file.size:
            self._end()
            return b""
        try:
            found = self._found = self._found or self._begin()
            data = found.read(min(count, self._file.size - self._at))
            if not data:
                raise Passing(f"the server sent {self._at} of {self._file.size} bytes")
            return data
        except Passing:
            self._end()
            raise

    def _begin(self) -> Answer:
        """Asks for the rest of the file, or for all of it, of which what is known is read over."""
        file, start = self._file, self._at if self._file.ranges else 0
        found = _asked(self._store, file.path, f"bytes={start}-{file.size - 1}" if start else None)
        try:
            _check(found, file, self._store, start, file.size)
            left = self._at - start
            while left:
                some = found.read(min(left, 1 << 20))
                if not some:
                    raise Passing(f"the server sent {self._at - left} of {file.size} bytes")
                left -= len(some)
        except BaseException:
            found.close()
            raise
        return found

    def _end(self) -> None:
        if self._found is not None:
            self._found.close()
            self._found = None


def _asked(store: Store, url: str, asked: str | None, address: Callable[[], str] | None = None) -> Answer:
    """Returns the answer to a request for a file, or for what `address` says; once more if the store learns from it."""
    headers = {"Accept-Encoding": store.encoding, **({"Range": asked} if asked else {})}
    found = _sent(store, url, address, headers)
    if found.status >= 300 and store.learns(url, found.headers, found.error()):
        found.close()
        found = _sent(store, url, address, headers)
    return found


def _sent(store: Store, url: str, address: Callable[[], str] | None, headers: Mapping[str, str]) -> Answer:
    to = address() if address is not None else store.address(url)
    return get(to, {**headers, **store.signed(url, to)}, _named(url))


def _part(found: Answer) -> tuple[int | None, int | None, int | None] | None:
    """Returns first byte, last byte and size, as an answer has them; None if it does not say."""
    match = _RANGE.fullmatch(found.headers.get("Content-Range", "").strip())
    if match is None:
        return None
    first, last, size = (int(text) if text and text != "*" else None for text in match.groups())
    return first, last, size


def _version(headers: Mapping[str, str]) -> str:
    for name in ("x-goog-generation", "ETag", "Last-Modified"):
        if headers.get(name):
            return f"{name} {headers[name]}"
    return ""


def _named(url: str) -> str:
    return File(url, 0, "", b"").name


def _no_bucket(found: Answer, url: str, where: str) -> None:
    if found.status == 404 and b"<Code>NoSuchBucket</Code>" in found.error():
        raise ConfigError(f"{where}: there is no bucket {url.split('/')[2]!r}, as {_named(url)} has it.")


def _refused(found: Answer, url: str, store: Store) -> DataError:
    code = re.search(rb"<Code>(\w{1,60})</Code>", found.error())
    why = f"HTTP {found.status} {code[1].decode() if code else found.reason or ''}".rstrip()
    advice = f"\n  {store.help}" if found.status in (400, 401, 403) else ""
    return DataError(f"{_named(url)}: cannot be read: {why}.{advice}")
