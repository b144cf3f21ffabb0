# SPDX-License-Identifier: Apache-2.0
"""`build_app`: the addresses of the server."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ._chat import chat
from ._completions import completions
from ._embeddings import embeddings
from ._errors import ApiError, on_error
from ._guard import Guard, Keys
from ._metrics import CONTENT_TYPE
from ._page import page
from ._respond import endpoint, json_response
from ._served import Served
from ._tokens import detokenize, tokenize

_LOG = logging.getLogger("dovetail.serve")


def build_app(served: Served, keys: Sequence[str] = ()) -> ASGIApp:
    """Returns the server of a model, as an ASGI application.

    Args:
        keys: of which a request must have one. Without any, only this machine is served.
    """
    posts = {
        "/v1/completions": completions,
        "/v1/chat/completions": chat,
        "/v1/embeddings": embeddings,
        "/tokenize": tokenize,
        "/detokenize": detokenize,
    }
    app = Starlette(
        routes=[
            *(Route(path, endpoint(answer), methods=["POST"]) for path, answer in posts.items()),
            Route("/v1/models", _models),
            Route("/v1/models/{name:path}", _model),
            Route("/health", _health),
            Route("/metrics", _metrics),
            Route("/admin/reload", _reload, methods=["POST"]),
            Route("/", page),
        ],
        exception_handlers={HTTPException: on_error, ApiError: on_error},
    )
    app.state.served, app.state.has_keys = served, bool(keys)
    return Guard(app, served, Keys(keys))


def _card(served: Served) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "dovetail",
        "max_model_len": served.max_length,
        "has_chat_template": served.has_chat,
    }


async def _models(request: HttpRequest) -> Response:
    return json_response({"object": "list", "data": [_card(request.app.state.served)]})


async def _model(request: HttpRequest) -> Response:
    served: Served = request.app.state.served
    served.check_model(request.path_params["name"])
    return json_response(_card(served))


async def _health(request: HttpRequest) -> Response:
    served: Served = request.app.state.served
    status = "draining" if served.is_draining else "ok" if served.engine.is_running else "failed"
    return JSONResponse({"status": status}, 200 if status == "ok" else 503)


async def _metrics(request: HttpRequest) -> Response:
    return Response(request.app.state.served.metrics.text(), headers={"content-type": CONTENT_TYPE})


async def _reload(request: HttpRequest) -> Response:
    if not request.app.state.has_keys:
        message = "Without an API key, a server is told to reload by the signal SIGHUP alone."
        raise ApiError(403, message, code="needs_api_key")
    return json_response({"status": "ok", "step": await reloaded(request.app.state.served)})


async def reloaded(served: Served) -> int:
    """Has the newest parameters of the run served, and returns the step they are of; one at a time."""
    if served.reload is None:
        raise ApiError(400, f"The model {served.name!r} is not of a run, which could have newer parameters.")
    try:
        async with served.reloading:
            step = await asyncio.to_thread(served.reload)
    except Exception as e:
        _LOG.error("Nothing was reloaded.", exc_info=e)
        raise ApiError(500, f"Nothing was reloaded, the model is as it was: {e}", code="reload_failed") from e
    _LOG.warning("Serving the parameters of step %d.", step)
    return step
