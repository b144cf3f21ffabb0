# SPDX-License-Identifier: Apache-2.0
"""Errors as OpenAI's clients know them: a status, and a body that says what is wrong with which part of a request."""

import logging
import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from .._request import QueueFull, RequestError
from .._stream import EngineClosed

_LOG = logging.getLogger("dovetail.serve")
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer that is an error.

    Args:
        param: the field of the request that it is about.
        code: a word that programs can compare.
        retry_after: seconds after which another try may succeed.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: float = 0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = {"Retry-After": str(math.ceil(retry_after))} if retry_after else {}

    @property
    def body(self) -> dict[str, Any]:
        """What is sent, also as a part of a stream."""
        return {"error": {"message": self.message, "type": self._type, "param": self.param, "code": self.code}}

    @property
    def response(self) -> Response:
        return JSONResponse(self.body, self.status, headers=self.headers)

    @property
    def _type(self) -> str:
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Returns the error of a request that cannot be answered as it is."""
    return ApiError(400, message, param=param, code=code)


def as_api_error(error: Exception) -> ApiError:
    """Returns what a client is told of an error; of one that nobody foresaw, nothing but that it happened."""
    match error:
        case ApiError():
            return error
        case QueueFull():
            message = f"The server has as many requests waiting as it takes. Try again in {error.retry_after:.0f} s."
            return ApiError(429, message, code="rate_limit_exceeded", retry_after=max(1.0, error.retry_after))
        case EngineClosed():
            return ApiError(503, "The server is not ready, or about to end.", code="unavailable", retry_after=5)
        case RequestError():
            return invalid(str(error), "prompt" if error.field == "tokens" else error.field)
    _LOG.error("A request failed.", exc_info=error)
    return ApiError(500, "The server failed to answer. Its log has more.", code="internal_error")


async def on_error(request: HttpRequest, error: Exception) -> Response:
    """Answers with an error."""
    if isinstance(error, HTTPException):
        return _on_http(request, error)
    return as_api_error(error).response


def _on_http(request: HttpRequest, error: HTTPException) -> Response:
    """Of what starlette refuses by itself: an unknown address, or an unknown method."""
    where = f"{request.method} {request.url.path}"
    said = {404: f"There is no {where}.", 405: f"{where} is not possible: the address takes another method."}
    found = ApiError(error.status_code, said.get(error.status_code, str(error.detail)), code="unknown_url")
    return JSONResponse(found.body, found.status, headers=error.headers)
