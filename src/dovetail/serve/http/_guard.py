# SPDX-License-Identifier: Apache-2.0
"""`Guard`: what happens to a request before an endpoint sees it: keys, sizes, and whether new ones are taken."""

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ._errors import ApiError
from ._served import Served

_OPEN = {"/", "/health"}  # They say nothing of the model, and need no key.
_PATIENCE = 4  # Times the largest body that is read of a request that is refused.
_KEEPS_WORKING = {"GET", "HEAD"}  # While requests are finished, and new ones refused.


class Keys:
    """The keys that a request may have."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accepts(self, authorization: str) -> bool:
        """Whether a header has one of the keys; the time that this takes says nothing of them."""
        scheme, _, key = authorization.partition(" ")
        asked = _digest(key.strip())
        same = [hmac.compare_digest(asked, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(same)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


class Guard:
    """Refuses what no endpoint should see, and counts what is being answered.

    Without keys, a request must be for a name of this machine, and from no page of another address: a browser would let
    any page that its user visits reach a server on the same machine.
    """

    def __init__(self, app: ASGIApp, served: Served, keys: Keys) -> None:
        self._app, self._served, self._keys = app, served, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limited = _limited(receive, self._served.http.max_bytes)
        try:
            self._check(scope, Headers(scope=scope))
        except ApiError as e:
            await self._thrown_away(receive)
            await e.response(scope, receive, send)
            return
        self._served.in_flight += 1
        try:
            await self._app(scope, limited, send)
        finally:
            self._served.in_flight -= 1

    async def _thrown_away(self, receive: Receive) -> None:
        """Reads the body of a refused request, as far as there is patience: else a client that sends sees no answer."""
        left = _PATIENCE * self._served.http.max_bytes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._served.http.read_seconds):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body"):
                        return

    def _check(self, scope: Scope, headers: Headers) -> None:
        if not self._keys:
            _check_local(headers)
        elif scope["path"] not in _OPEN and not self._keys.accepts(headers.get("authorization", "")):
            found = "is not one of this server's" if "authorization" in headers else "is missing"
            raise ApiError(401, f"The API key {found}. Send it as Authorization: Bearer KEY.", code="invalid_api_key")
        if self._served.is_draining and scope["method"] not in _KEEPS_WORKING:
            raise ApiError(503, "The server is shutting down.", code="shutting_down", retry_after=5)
        if self._served.in_flight >= self._served.http.max_requests and scope["method"] not in _KEEPS_WORKING:
            message = f"The server is answering {self._served.in_flight} requests, which is its limit. Try again."
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after=1)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._served.http.max_bytes:
            raise _too_large(self._served.http.max_bytes)


def _check_local(headers: Headers) -> None:
    """Raises if a browser was led here by a page from elsewhere."""
    host = headers.get("host", "")
    if host and not is_local(_hostname(host)):
        message = f"This server is for this machine alone, and has no name {host!r:.100}. Start it with an API key."
        raise ApiError(403, message, code="forbidden_host")
    origin = headers.get("origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        message = f"A page of {origin!r:.100} may not use this server. Start it with an API key."
        raise ApiError(403, message, code="forbidden_origin")


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_local(host: str) -> bool:
    """Whether a name is one of this machine that others cannot reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _limited(receive: Receive, most: int) -> Receive:
    """Returns what receives a body up to a size, where its headers do not tell how large it is."""
    count = 0

    async def limited() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        if count > most:
            raise _too_large(most)
        return message

    return limited


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"The body of the request has more than {most} bytes.", code="request_too_large")
