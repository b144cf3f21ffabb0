# SPDX-License-Identifier: Apache-2.0
"""How endpoints answer: work that ends when its client is gone, and streams of events that a client can follow."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ._errors import ApiError, as_api_error
from ._fields import Fields, parse
from ._served import Served

_T = TypeVar("_T")
_GONE = 499  # Nobody reads it.
_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


def endpoint(answer: Callable[[Served, Fields], Awaitable["Response | EventStream"]]) -> Callable[..., Any]:
    """Makes an endpoint of what answers the fields of a request. When the client goes, the work is cancelled."""

    async def respond(request: HttpRequest) -> Any:
        served: Served = request.app.state.served
        try:
            fields = parse(await _body(request, served.http.read_seconds))
            found = await _unless_gone(request.receive, _call(answer, served, fields))
        except ClientDisconnect:
            found = None
        except Exception as e:
            return as_api_error(e).response
        return Response(status_code=_GONE) if found is None else found

    return respond


async def _call(answer: Callable[[Served, Fields], Awaitable[_T]], served: Served, fields: Fields) -> _T:
    return await answer(served, fields)


async def _body(request: HttpRequest, seconds: float) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise ApiError(408, f"The body of the request took more than {seconds:g} s.", code="timeout") from None


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T | None:
    """Returns what the work returns, or None if the client went before; then the work is cancelled."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await _end(task, gone)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def json_response(value: Any) -> Response:
    return Response(dumped(value), media_type="application/json")


class EventStream:
    """A response of server-sent events.

    Args:
        events: their values. An error among them is the last one.
        close: is called at the end, however it comes.
        seconds: within which the client must have taken an event. Then it is given up: memory does not grow for it.
    """

    def __init__(self, events: AsyncIterator[Any], close: Callable[[], Awaitable[None]], seconds: float) -> None:
        self._events, self._close, self._seconds = events, close, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _unless_gone(receive, self._send_all(send))
        except TimeoutError:
            return  # The response has no end, so that the server closes the connection.
        finally:
            await self._close()

    async def _send_all(self, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for value in self._events:
                await self._send(send, _part(dumped(value)))
        except TimeoutError:
            raise
        except Exception as e:
            await self._send(send, _part(dumped(as_api_error(e).body)))
        await self._send(send, _part(b"[DONE]"))
        await self._send(send, {"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, message: Any) -> None:
        async with asyncio.timeout(self._seconds):
            await send(message)


def _part(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True}
