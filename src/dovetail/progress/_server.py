# SPDX-License-Identifier: Apache-2.0
"""`StatusServer`: a small HTTP server, of the standard library alone. It is asked little, and trusts nobody.

GET /healthz, /metrics and /status. POST only what is given as an action, and only with the token.
"""

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ._status import Status, prometheus

STATUS = "status.json"  # In the directory of a run: where it is served.
_HEAD = 16 << 10  # Bytes of a request, without a body.
_BODY = 1 << 10
_PATIENCE = 5.0  # Seconds for a request to come, and for its answer to be taken.
_MOST = 64  # Requests at a time; more are refused.
_REASONS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

_log = logging.getLogger("dovetail")


class _Answer(NamedTuple):
    code: int
    text: str
    kind: str = "text/plain; charset=utf-8"


class _Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        self.answer = _Answer(code, f"{text}\n")


class StatusServer:
    """Serves what `snapshot` returns: it is called when somebody asks, and never else.

    Args:
        actions: what POST /NAME does.
        directory: of the run, which gets a file that says where this server is.
    """

    def __init__(
        self,
        status: Status,
        snapshot: Callable[[], Awaitable[Mapping[str, Any]]],
        *,
        actions: Mapping[str, Callable[[], None]],
        directory: Path,
    ) -> None:
        token = status.token()
        self._status, self._snapshot, self._directory = status, snapshot, directory
        self._actions = actions if token else {}
        self._token = hashlib.sha256((token or os.urandom(16).hex()).encode()).digest()
        self._open = 0

    async def start(self) -> str:
        """Starts to listen; returns the address, or an empty one and says why where that cannot be."""
        host, port = self._status.host, self._status.port
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD)
            port = self._server.sockets[0].getsockname()[1]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            self._said = json.dumps({"url": url, "pid": os.getpid()}) + "\n"
            (self._directory / STATUS).write_text(self._said, encoding="utf-8")
        except OSError as e:
            _log.warning("status: not served at %s:%s: %s. The run goes on.", host, port, e.strerror or e)
            return ""
        return url

    def close(self) -> None:
        """Stops to listen."""
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self._server.close()
            where = self._directory / STATUS
            if where.read_text(encoding="utf-8") in (self._said, ""):  # Else another run has written it meanwhile.
                where.unlink()

    @contextlib.contextmanager
    def in_thread(self) -> Iterator[str]:
        """Serves in a thread of its own; yields the address."""
        loop, started, found = asyncio.new_event_loop(), threading.Event(), [""]

        def run() -> None:
            asyncio.set_event_loop(loop)
            try:
                found[0] = loop.run_until_complete(self.start())
            finally:
                started.set()
            loop.run_forever()
            self.close()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

        thread = threading.Thread(target=run, name="status", daemon=True)
        thread.start()
        started.wait()
        try:
            yield found[0]
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_PATIENCE)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(_PATIENCE):
                answer, is_head = await self._answered(reader)
            async with asyncio.timeout(_PATIENCE):
                writer.write(_packed(answer, is_head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open -= 1
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader) -> tuple[_Answer, bool]:
        method = ""
        try:
            if self._open > _MOST:
                raise _Refused(503, "Too many requests at a time.")
            method, path, headers = await _request(reader)
            self._check(headers)
            if method == "POST":
                return self._act(path, headers), False
            if method not in ("GET", "HEAD"):
                raise _Refused(405, "Only GET is answered here.")
            if path not in ("/", "/healthz", "/metrics", "/status"):
                raise _Refused(404, "There are /healthz, /metrics and /status.")
            return _told(path, await self._snapshot()), method == "HEAD"
        except _Refused as e:
            return e.answer, method == "HEAD"
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            raise
        except Exception as e:  # A status that cannot be told must not look like a run that has failed.
            _log.warning("status: %s: %s", type(e).__name__, e)
            return _Answer(500, "The status cannot be told.\n"), method == "HEAD"

    def _check(self, headers: Mapping[str, str]) -> None:
        """Raises if a browser was led here by a page from elsewhere."""
        host = headers.get("host", "")
        if host and not self._is_name(_hostname(host)):
            raise _Refused(403, "This server has no such name.")
        if headers.get("origin") not in (None, f"http://{host}"):
            raise _Refused(403, "A page from elsewhere may not ask this server.")

    def _is_name(self, name: str) -> bool:
        """Whether a name is that of this server. A name that anybody can give it is not; an address is no name."""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(name).is_loopback or not _is_local(self._status.host)
        if _is_local(name):
            return True
        return not _is_local(self._status.host) and name in (self._status.host, socket.gethostname(), socket.getfqdn())

    def _act(self, path: str, headers: Mapping[str, str]) -> _Answer:
        action = self._actions.get(path.removeprefix("/"))
        if action is None:
            raise _Refused(404, "There is nothing to do here." if self._actions else "Nothing is done without a token.")
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(sent.strip().encode(errors="surrogateescape")).digest()
        if not hmac.compare_digest(digest, self._token) or scheme.lower() != "bearer":
            raise _Refused(401, "Send the token as Authorization: Bearer TOKEN.")
        action()
        return _Answer(202, "The run was asked.\n")


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    """Returns method, path and headers of a request; a short body is read and thrown away."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as e:
        raise _Refused(431, "The request is too long.") from e
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _Refused(400, "This is no request of HTTP/1.")
    headers: dict[str, str] = {}
    for line in filter(None, lines):
        name, colon, value = line.partition(":")
        if not colon or name.strip() != name or name.lower() in headers:
            raise _Refused(400, "A header is not one, or is there twice.")
        headers[name.lower()] = value.strip()
    length = headers.get("content-length", "0")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdecimal()) or int(length[:9]) > _BODY:
        raise _Refused(413, "No request has a long body here.")
    await reader.readexactly(int(length))
    return words[0], words[1].partition("?")[0], headers


def _told(path: str, found: Mapping[str, Any]) -> _Answer:
    if path == "/metrics":
        return _Answer(200, prometheus(found), "text/plain; version=0.0.4; charset=utf-8")
    if path == "/healthz":
        return _Answer(503, f"{found['problem']}\n") if found["problem"] else _Answer(200, "ok\n")
    return _Answer(200, json.dumps(found, indent=2) + "\n", "application/json")


def _packed(answer: _Answer, is_head: bool) -> bytes:
    body = answer.text.encode()
    head = [
        f"HTTP/1.1 {answer.code} {_REASONS[answer.code]}",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + (b"" if is_head else body)


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
