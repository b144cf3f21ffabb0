# SPDX-License-Identifier: Apache-2.0
"""`serve`: an application on a socket, until a signal ends it; what is being answered then is finished first."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import uvicorn

from dovetail.config import ConfigError

from ._app import build_app, reloaded
from ._errors import ApiError
from ._guard import is_local
from ._served import Served

_LOG = logging.getLogger("dovetail.serve")
_LOOK = 0.05  # Seconds between looks at what is left to answer.
_CLOSE = 2  # Seconds for connections to close, when everything is answered.


def open_socket(host: str, port: int, *, has_keys: bool) -> socket.socket:
    """Returns a socket that has its address, and does not listen yet. One that others can reach needs keys."""
    if not has_keys and not is_local(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, so the server needs an API key.\n"
            "  Write one to a file, and name it: --api-key-file FILE; or set DOVETAIL_API_KEY."
        )
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port is {port}, expected 0 to {2**16 - 1}.")
    with contextlib.ExitStack() as stack:
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            opened = stack.enter_context(socket.socket(family, kind))
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
        except (OSError, OverflowError) as e:
            why = getattr(e, "strerror", None) or e
            raise ConfigError(f"cannot listen on {host}, port {port}: {why}. Choose another: --port, --host.") from e
        stack.pop_all()  # It stays open.
        opened.setblocking(False)
        return opened


def address_of(opened: socket.socket) -> str:
    """Returns the address that a browser reaches a socket by."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    served: Served, opened: socket.socket, *, keys: Sequence[str] = (), ready: Callable[[], None] = lambda: None
) -> None:
    """Serves until SIGTERM or SIGINT; a second one ends it at once. SIGHUP reloads the parameters.

    After the first, new requests are refused, and those in flight are finished, within `http.drain_seconds`.

    Args:
        ready: is called when requests are answered.
    """
    asyncio.run(_serve(served, opened, keys, ready))


async def _serve(served: Served, opened: socket.socket, keys: Sequence[str], ready: Callable[[], None]) -> None:
    config = uvicorn.Config(
        build_app(served, keys),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        loop="asyncio",
        http="h11",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_CLOSE,
    )
    server = _Server(config, ready)
    with _signals(server, served):
        await server.serve(sockets=[opened])


class _Server(uvicorn.Server):
    """Says when it is ready, and leaves signals to us: it would close its socket before all is answered."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _signals(server: uvicorn.Server, served: Served) -> Iterator[None]:
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def start(work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)  # The loop itself would forget it.
        task.add_done_callback(tasks.discard)

    def end() -> None:
        if served.is_draining:
            server.force_exit = server.should_exit = True
            return
        served.is_draining = True
        start(_drain(server, served))

    handlers = {signal.SIGTERM: end, signal.SIGINT: end, signal.SIGHUP: lambda: start(_reload(served))}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


async def _drain(server: uvicorn.Server, served: Served) -> None:
    _LOG.warning("Finishing %d requests, and taking no new ones.", served.in_flight)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(served.http.drain_seconds):
            while served.in_flight:
                await asyncio.sleep(_LOOK)
    if served.in_flight:
        _LOG.warning("Giving up %d requests after %g s.", served.in_flight, served.http.drain_seconds)
    server.should_exit = True


async def _reload(served: Served) -> None:
    with contextlib.suppress(ApiError):  # It has been logged.
        await reloaded(served)
