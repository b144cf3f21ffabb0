# SPDX-License-Identifier: Apache-2.0
"""A server of files over HTTP on loopback, with ranges and ETags, that can break, stall, cut short and lie."""

import hashlib
import http.server
import re
import socket
import struct
import threading
from collections.abc import Callable
from typing import Literal

# busy: 503; cut: the connection ends in the middle of the body; short, long: a body of another length than was asked
# for; extra: a byte after the body, with which the next answer begins; stall: no byte comes; reset: no answer; wrong:
# other bytes than there are; whole: all of it for a part; range: another part.
Fault = Literal["busy", "cut", "short", "long", "extra", "stall", "reset", "wrong", "whole", "range"]


class FileServer:
    """Serves what is in `files`, by name; `fault` says by number and path of a request what goes wrong with it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = self.tags = self.lengths = True
        self.tag: Callable[[str], str] = lambda name: hashlib.md5(self.files[name]).hexdigest()
        self.fault: Callable[[int, str], Fault | None] = lambda number, path: None
        self.moved: dict[str, str] = {}  # Names, and where they are now.
        self.requests: list[tuple[str, str]] = []  # Path, and what range was asked for.
        self.sent = 0  # Bytes of bodies.
        self._over = threading.Event()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def put(self, name: str, content: bytes | str) -> str:
        """Adds a file, and returns its URL."""
        self.files[name] = content if isinstance(content, bytes) else content.encode()
        return f"{self.url}/{name}"

    def first(self, count: int, fault: Fault, *, after: int = 0) -> None:
        """Breaks so many requests, after some that are as they should be."""
        begin = len(self.requests) + after
        self.fault = lambda number, path: fault if begin <= number < begin + count else None

    def close(self) -> None:
        """Ends it; what stands still goes away."""
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range", "")
        name = handler.path.partition("?")[0].lstrip("/")
        self.requests.append((handler.path, asked))
        fault = self.fault(len(self.requests) - 1, handler.path)
        if fault == "stall":
            self._over.wait()
        if fault in ("stall", "reset"):
            return _reset(handler)
        if name in self.moved:
            handler.send_response(302)
            handler.send_header("Location", f"/{self.moved[name]}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        if fault == "busy" or name not in self.files:
            handler.send_response(503 if fault == "busy" else 404)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        data = self.files[name]
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked) if self.ranges and fault != "whole" else None
        first, last = (int(match[1]), min(int(match[2]), len(data) - 1)) if match else (0, len(data) - 1)
        if match and first >= len(data):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(data)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        body = data[first : last + 1]
        if fault == "wrong":
            body = bytes(byte ^ 1 for byte in body)
        if fault == "range":
            first, last = first + 1, last + 1
        handler.send_response(206 if match else 200)
        if match:
            handler.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        if self.tags:
            handler.send_header("ETag", f'"{self.tag(name)}"')
        length = len(body)
        if fault == "short":
            body, length = body[:-1], length - 1
        if fault == "long":
            body, length = body + b"x", length + 1
        if self.lengths:
            handler.send_header("Content-Length", str(length))
        else:
            handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(body[: length // 2] if fault == "cut" else body)
        if fault == "extra":
            handler.wfile.write(b"x")
        self.sent += len(body)
        if fault == "cut" or not self.lengths:
            handler.close_connection = True


def _reset(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()


class _Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        pass
