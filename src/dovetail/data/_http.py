# SPDX-License-Identifier: Apache-2.0
"""Requests over HTTP, made again while errors pass: a bounded number of times, after growing pauses, and said."""

import contextlib
import functools
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dovetail.config import ConfigError

from ._errors import DataError

_T = TypeVar("_T")
_log = logging.getLogger("dovetail")

TRIES = 8
_FIRST, _LONGEST = 0.2, 10.0  # Seconds before the second try, and before later ones at most.
_CONNECT, STALL = 10.0, 20.0  # Seconds to connect, and without a byte.
_EVERY = 30.0  # Seconds between two messages of this process.
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class Passing(Exception):
    """An error that may be gone in a moment."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after  # Seconds, as the server has it.


def repeated(name: str, do: Callable[[], _T]) -> _T:
    """Returns what `do` does, which is tried again while it is `Passing`. `name` is what messages call the file."""
    for tries in range(1, TRIES + 1):
        try:
            return do()
        except Passing as e:
            if tries == TRIES:
                raise DataError(
                    f"{name}: cannot be read: {e}. Tried {TRIES} times.\n"
                    "  See that the server answers, and run this again."
                ) from e
            _say(f"{name}: {e}. It is tried again (reads of raw text that failed so far: {_count()})")
            pause = min(_FIRST * 2 ** (tries - 1), _LONGEST) * random.uniform(0.5, 1.0)
            time.sleep(max(pause, min(e.after, _LONGEST)))
    raise AssertionError


_said: dict[str, float] = {"at": -1e9, "count": 0}


def _count() -> int:
    _said["count"] += 1
    return int(_said["count"])


def _say(text: str) -> None:
    if time.monotonic() - _said["at"] > _EVERY:
        _said["at"] = time.monotonic()
        _log.warning("%s", text)


class Answer:
    """The answer to a request, its body not yet read. What breaks may pass: it is `Passing`."""

    def __init__(self, found: Any, name: str) -> None:
        self._found, self._name = found, name
        self.status: int = found.status
        self.headers: Mapping[str, str] = found.headers
        self.reason: str = found.reason or ""
        self._error: bytes | None = None

    def read(self, count: int) -> bytes:
        """Returns up to so many bytes; fewer only at the end."""
        with _passing(self._name):
            return self._found.read(count)

    def error(self) -> bytes:
        """Returns what is said of an error, where this is one: no more than some of it."""
        if self._error is None:
            self._error = self.read(4096) if self.status >= 300 else b""
        return self._error

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it. What has been read to its end leaves its connection to the next request; else that is closed."""
        self._found.close()


def get(address: str, headers: Mapping[str, str], name: str) -> Answer:
    """Returns the answer to a GET. What may pass is `Passing`; a certificate that is wrong, say, does not.

    Answers are 200, 206, and those that say that something is not there, or not allowed: the caller knows what to do.
    """
    urllib3 = library(name)
    with _passing(name):
        found = _pool(address).urlopen(
            "GET",
            address,
            headers={"User-Agent": "dovetail", **headers},
            retries=urllib3.Retry(total=None, connect=False, read=False, redirect=5, status=False, other=False),
            timeout=urllib3.Timeout(connect=_CONNECT, read=STALL),
            preload_content=False,
            decode_content=False,
        )
    if found.status in _PASSING:
        found.close()
        raise Passing(f"HTTP {found.status} {found.reason or ''}".rstrip(), _seconds(found.headers))
    return Answer(found, name)


@contextlib.contextmanager
def _passing(name: str) -> Iterator[None]:
    errors = library(name).exceptions
    try:
        yield
    except (errors.SSLError, errors.MaxRetryError, errors.LocationParseError, errors.LocationValueError) as e:
        raise DataError(f"{name}: cannot be read: {_reason(e)}.") from e
    except errors.HTTPError as e:
        raise Passing(_reason(e)) from e


def library(name: str) -> Any:
    """Returns urllib3; `name` is what wants it."""
    try:
        import urllib3
    except ImportError as e:
        raise ConfigError(
            f"{name}: files at URLs need the package urllib3, which cannot be imported: {e}.\n"
            "  Install it: pip install 'dovetail[remote]'"
        ) from e
    return urllib3


def _pool(address: str) -> Any:
    return _pools(os.getpid(), _proxy(address))


def _proxy(address: str) -> str | None:
    parts = urlsplit(address)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


@functools.cache
def _pools(process: int, proxy: str | None) -> Any:
    """Returns the connections of a process: those of another one are not shared after a fork."""
    import urllib3

    options: dict[str, Any] = {"num_pools": 32, "maxsize": 32}
    return urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)


def _seconds(headers: Mapping[str, str]) -> float:
    found = headers.get("Retry-After", "")
    return float(found) if re.fullmatch(r"\d{1,4}", found) else 0.0


def _reason(error: BaseException) -> str:
    """Returns what a library says, in one line, and without where its objects are in memory."""
    text = str(error.args[0] if error.args else error).partition("\n")[0]
    return re.sub(r"^\w+\([^)]*\): |<[^>]* at 0x[0-9a-f]+>:? ?", "", text).strip().rstrip(".")[:300]
