# SPDX-License-Identifier: Apache-2.0
"""`Server`: a shelf that other hosts can reach over HTTP, if they know its token.

PUT    /blobs/NAME   with Content-Length and Crc32; 201, or 507 and why not
GET    /blobs/NAME   with Range: bytes=FIRST-LAST, or without; 200 or 206, 404
GET    /blobs        names and sizes, in JSON
DELETE /blobs        the names in the body, in JSON; 204
"""

import contextlib
import hmac
import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from ._shelf import BlobError, Shelf

_BLOBS = "/blobs"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)\Z")
_MOST = 1 << 26  # Bytes of a list of names.
_SILENCE = 60.0  # Seconds after which a connection without a word is closed.


class Server:
    """Serves a shelf from threads of its own, until it is closed.

    Args:
        host: the address to listen at.
        port: 0: any that is free.
    """

    def __init__(self, shelf: Shelf, *, host: str, token: str, port: int = 0) -> None:
        class Handler(_Handler):
            kept, secret = shelf, f"Bearer {token}"

        self._server = _Threads((host, port), Handler)
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="blobs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops to listen."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Threads(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is the business of who was at the other end."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE
    kept: Shelf
    secret: str

    def setup(self) -> None:
        super().setup()
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def parse_request(self) -> bool:
        """Refuses whoever does not know the token before anything else is looked at."""
        if not super().parse_request():
            return False
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), self.secret.encode()):
            self._answer(401, b"the token is missing or wrong")
            return False
        return True

    def do_PUT(self) -> None:
        """Keeps a blob."""
        try:
            size, crc = int(self.headers["Content-Length"]), int(self.headers["Crc32"], 16)
            if size < 0:
                raise ValueError
        except (TypeError, ValueError):
            return self._answer(411, b"expected Content-Length and Crc32")
        try:
            self.kept.put(self._name(), size, crc, self.rfile.readinto1)
        except (BlobError, MemoryError) as e:
            return self._answer(507, str(e).encode())
        self._answer(201)

    def do_GET(self) -> None:
        """Gives a blob, a part of it, or the list of all."""
        if self.path == _BLOBS:
            return self._answer(200, json.dumps(dict(self.kept.sizes())).encode())
        wanted = self.headers.get("Range")
        part = _RANGE.match(wanted) if wanted else None
        if wanted and part is None:
            return self._answer(416, b"expected Range: bytes=FIRST-LAST")
        try:
            data = self.kept.get(self._name(), *((int(part[1]), int(part[2]) + 1) if part else ()))
        except BlobError as e:
            return self._answer(404, str(e).encode())
        self._answer(206 if part else 200, data)

    def do_DELETE(self) -> None:
        """Forgets blobs."""
        try:
            names = json.loads(self.rfile.read(min(int(self.headers.get("Content-Length", 0)), _MOST)))
            self.kept.drop([name for name in names if isinstance(name, str)])
        except (ValueError, TypeError, BlobError) as e:
            return self._answer(400, f"expected a list of names: {e}".encode())
        self._answer(204)

    def _name(self) -> str:
        return self.path.removeprefix(f"{_BLOBS}/")

    def _answer(self, code: int, body: bytes | memoryview = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        if code >= 400:  # What was sent may not have been read.
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Whoever asks knows what it asked for."""
