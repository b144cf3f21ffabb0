# SPDX-License-Identifier: Apache-2.0
"""`POST /v1/embeddings`: texts as vectors, by a model that is served for it (`serving.embed`)."""

import asyncio
import base64
from typing import Any

import numpy as np
from starlette.responses import Response

from .._request import Draw, Request
from ._answers import Answers, Asked, Part, collected
from ._errors import ApiError
from ._fields import Fields
from ._prompts import read_prompts
from ._respond import json_response
from ._sampling import check_length, check_model
from ._served import Served

_FORMATS = ("float", "base64")


async def embeddings(served: Served, fields: Fields) -> Response:
    """Answers a request. All texts are read at once, beside whatever else the engine does."""
    check_model(fields, served)
    pooling = served.engine.shape.pooling
    if pooling is None:
        message = f"The model {served.name!r} is not served for embeddings, which takes serving.embed=mean, or last."
        raise ApiError(404, message, param="model", code="model_not_found")
    how = fields.text("encoding_format", "float")
    if how not in _FORMATS:
        raise fields.wrong("encoding_format", " or ".join(f'"{name}"' for name in _FORMATS))
    dimensions = fields.integer("dimensions", least=1)
    priority = fields.integer("priority", 0, least=-(2**31), most=2**31 - 1)
    prompts = await asyncio.to_thread(read_prompts, fields, served, "input")
    for prompt in prompts:
        check_length(served, len(prompt.ids), 0, "input")
    asked = [
        Asked(index, Request(tokens=tuple(each.ids), max_tokens=0, draw=Draw(), pooling=pooling, priority=priority))
        for index, each in enumerate(prompts)
    ]
    answers = Answers(served.engine, served.tokenizer, asked, metrics=served.metrics, seconds=served.http.seconds)
    found: dict[int, np.ndarray] = {}

    def take(part: Part) -> None:
        if part.embedding is not None:
            found[part.index] = part.embedding

    await collected(answers, take)
    vectors = [_shortened(fields, found[index], dimensions) for index in range(len(prompts))]
    usage = {name: answers.usage.body[name] for name in ("prompt_tokens", "total_tokens")}
    return json_response({
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _written(vector, how)}
            for index, vector in enumerate(vectors)
        ],
        "model": served.name,
        "usage": usage,
    })  # fmt: skip


def _shortened(fields: Fields, vector: np.ndarray, dimensions: int | None) -> np.ndarray:
    """Returns the first numbers of a vector, of length 1 again."""
    if dimensions is None:
        return vector
    if dimensions > len(vector):
        raise fields.wrong("dimensions", f"a whole number from 1 to {len(vector)}")
    part = vector[:dimensions]
    return part / (float(np.linalg.norm(part)) or 1.0)


def _written(vector: np.ndarray, how: str) -> Any:
    """Returns a vector as numbers, or as the bytes of float32, the least first."""
    if how == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
