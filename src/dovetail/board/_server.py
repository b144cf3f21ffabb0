# SPDX-License-Identifier: Apache-2.0
"""`Board`: the server, of the standard library alone. It answers GET and HEAD, and changes nothing."""

import contextlib
import errno
import logging
import queue
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl

from dovetail.config import ConfigError

from ._api import Api, Query, Refused, Response, json_bytes, static
from ._changes import Changes
from ._export import export
from ._guard import Guard
from ._runs import Runs

PORT = 8686
_CONNECTIONS = 64
_LISTENERS = 16  # For changes, at a time.
_PATIENCE = 20.0  # Seconds for a request to come, and for a part of its answer to be taken.
_ALIVE = 10.0  # Seconds between two signs of life to who waits for changes.
_URL = 32 << 10  # Characters.
_TRIED = 100  # Ports, where one is taken.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
# A redirect would be one that a page from elsewhere has led to, and the cookie would not be sent.
_WELCOME = b'<!doctype html><meta http-equiv="refresh" content="0;url=./"><title>Dovetail</title>'

_log = logging.getLogger("dovetail")


class Board:
    """Serves runs at a host and a port, from when it is made until `close`."""

    def __init__(self, runs: Runs, *, host: str = "127.0.0.1", port: int = PORT, token: str | None = None) -> None:
        if not 0 <= port < 1 << 16:
            raise ConfigError(f"board: --port is {port}, expected 0 (any that is free) to 65535.")
        Guard(host, port, token)  # Before anything listens.
        self._runs = runs
        self._server = _bound(host, port)
        self.port: int = self._server.server_address[1]
        self._server.guard = Guard(host, self.port, token)
        self._server.api, self._server.runs = Api(runs), runs
        self._server.changes = Changes(runs.stamps)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, kwargs={"poll_interval": 0.1}, name="board", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops to listen; requests that are being answered are broken off when the process ends."""
        self._server.shutdown()
        self._server.server_close()
        self._server.changes.close()
        self._runs.close()

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bound(host: str, port: int) -> "_Server":
    try:
        return _Server(host, port)
    except (OSError, UnicodeError) as e:
        if not isinstance(e, OSError) or e.errno != errno.EADDRINUSE:
            why = getattr(e, "strerror", None) or str(e)
            raise ConfigError(f"board: cannot listen at {host}, port {port}: {why}. Choose another one.") from e
        raise ConfigError(
            f"board: port {port} of {host} is taken.\n"
            f"  Use --port {_free(host, port)}, or --port 0 for any that is free."
        ) from e


def _free(host: str, port: int) -> int:
    """Returns the next port that is free, or 0."""
    for each in range(port + 1, min(port + _TRIED, 1 << 16)):
        with contextlib.suppress(OSError):
            _Server(host, each).server_close()
            return each
    return 0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    guard: Guard
    api: Api
    runs: Runs
    changes: Changes

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._slots = threading.Semaphore(_CONNECTIONS)
        self.listeners = threading.Semaphore(_LISTENERS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # That of HTTPServer asks for the name of the host, which may take seconds.
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.settimeout(1.0)
            request.sendall(_FULL)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # A browser that goes away in the middle of an answer.


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "dovetail", ""
    timeout = _PATIENCE
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        try:
            self._answer()
        except Refused as e:
            self._send(Response(e.status, "application/json", json_bytes({"error": str(e)})))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as e:  # What goes wrong with one answer must not take the others with it.
            _log.warning("board: %a: %s: %a", self.path[:200], type(e).__name__, str(e)[:500])
            text = f"This cannot be answered: {type(e).__name__}. The board has said more where it runs."
            self._send(Response(500, "application/json", json_bytes({"error": text})))

    do_HEAD = do_GET

    def _answer(self) -> None:
        if len(self.path) > _URL:
            raise Refused(414, f"The address has {len(self.path)} characters, expected at most {_URL}.")
        if self.headers.get("transfer-encoding") or self.headers.get("content-length", "0") != "0":
            self.close_connection = True
            raise Refused(413, "No request has a body here.")
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        guard = self.server.guard
        if path == "/" and guard.has_token and (sent := dict(parse_qsl(query)).get("token")) is not None:
            if not guard.is_token(sent):
                raise Refused(401, "This is not the token.")
            self._send(Response(200, "text/html; charset=utf-8", _WELCOME), {"Set-Cookie": guard.cookie})
            return
        guard.check(headers, is_page=path == "/")
        if path == "/api/changes":
            self._tell_changes()
        elif path == "/export":
            runs = Query(query).all("run", 128)
            self._send(Response(200, "text/html; charset=utf-8", export(self.server.runs, runs), "runs.html"))
        elif path.startswith("/api/"):
            self._send(self.server.api.answer(path, Query(query)))
        else:
            name = "index.html" if path == "/" else path.removeprefix("/static/")
            self._send(static(name if name != path else ""))

    def _send(self, response: Response, more: dict[str, str] | None = None) -> None:
        self.send_response(response.status)
        headers = {"Content-Type": response.kind, "Content-Length": str(len(response.body)), **_HEADERS}
        headers["Cache-Control"] = "no-cache" if self.path.startswith("/static/") else "no-store"
        if response.kind.startswith("image/"):
            headers["Content-Security-Policy"] = "default-src 'none'; sandbox; frame-ancestors 'none'"
            headers["Cache-Control"] = "private, max-age=60"
        if response.name:
            headers["Content-Disposition"] = f'attachment; filename="{response.name}"'
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in (headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def _tell_changes(self) -> None:
        """Writes a line for each change, until the other side goes away."""
        if self.command == "HEAD":
            raise Refused(405, "Changes are not told to HEAD.")
        if not self.server.listeners.acquire(blocking=False):
            raise Refused(503, f"{_LISTENERS} pages wait for changes already. Close one of them.")
        changes = self.server.changes
        waiting = changes.subscribe()
        try:
            self.close_connection = True
            self.send_response(200)
            stream = {"Content-Type": "text/event-stream; charset=utf-8", "Connection": "close"}
            for name, value in {**stream, **_HEADERS, "Cache-Control": "no-store"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"retry: 2000\n\n")
            while not changes.is_closed:
                try:
                    text = b"event: changed\ndata: " + json_bytes({"runs": waiting.get(timeout=_ALIVE)})
                except queue.Empty:
                    text = b": alive"
                self.wfile.write(text + b"\n\n")
        finally:
            changes.unsubscribe(waiting)
            self.server.listeners.release()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers to what is no request, or none of this server's, in the same way as to all else."""
        self.close_connection = True
        code, text = (405, "Only GET and HEAD are answered here.") if code == 501 else (code, message or "")
        if not hasattr(self, "headers"):
            self.command, self.path = self.command or "", ""
        with contextlib.suppress(OSError):
            allow = {"Allow": "GET, HEAD"} if code == 405 else {}
            self._send(Response(code, "application/json", json_bytes({"error": text or "This is no request."})), allow)

    def log_message(self, format: str, *args: Any) -> None:
        pass
