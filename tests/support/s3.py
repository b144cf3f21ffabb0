# SPDX-License-Identifier: Apache-2.0
"""An S3 server on loopback (moto), and a proxy before it that breaks what passes through."""

import contextlib
import http.client
import http.server
import os
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Literal

BUCKET = "bucket"
# One request at a time: what moto checks before a PUT with a condition still holds when it writes.
_SERVER = """
import logging, sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
print(server.port, flush=True)
server.serve_forever()
"""


def environment(endpoint: str) -> dict[str, str]:
    """Returns what a process is told of an S3 server."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    return {**keys, "AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true"}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Yields the endpoint of a server with one empty bucket."""
    process = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True, env=_plain())
    try:
        assert process.stdout is not None
        endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"
        request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(request, timeout=60):
            pass
        yield endpoint
    finally:
        process.kill()
        process.communicate()


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


# lost: it is done, but the answer does not come back; wrong: what comes back is not what is there.
Fault = Literal["500", "503", "reset", "lost", "stall", "wrong"]


class Proxy:
    """Passes requests on to an S3 server, but for those that `fault` says something of."""

    def __init__(self, endpoint: str) -> None:
        self.fault: Callable[[str, str], Fault | None] = lambda method, path: None
        self.requests: list[str] = []
        host, _, port = endpoint.removeprefix("http://").partition(":")
        proxy, self._over = self, threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                proxy.requests.append(f"{self.command} {self.path}")
                fault = proxy.fault(self.command, self.path)
                if fault == "stall":
                    proxy._over.wait()
                if fault in ("500", "503"):
                    self.send_response(int(fault))
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                done = None if fault in ("reset", "stall") else self._asked(body)
                if fault not in (None, "wrong") or done is None:  # Closed with a reset, not an end.
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.close_connection = True
                    self.connection.close()
                    return
                answer, data = done
                data = bytes(byte ^ 1 for byte in data) if fault == "wrong" else data
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                self.send_header("content-length", answer.getheader("content-length") or str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def _asked(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
                server = http.client.HTTPConnection(host, int(port), timeout=60)
                server.request(self.command, self.path, body, dict(self.headers))
                answer = server.getresponse()
                data = answer.read()
                server.close()
                return answer, data

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Quiet(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def times(self, count: int, fault: Fault, path: str) -> None:
        """Breaks the first so many requests whose path has `path` in it."""
        left = [count]

        def broken(method: str, where: str) -> Fault | None:
            if path not in where or not left[0]:
                return None
            left[0] -= 1
            return fault

        self.fault = broken

    def close(self) -> None:
        """Ends it; what stands still goes away."""
        self._over.set()
        self._server.shutdown()
        self._server.server_close()


class _Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        pass
