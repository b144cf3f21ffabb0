# SPDX-License-Identifier: Apache-2.0
"""`POST /tokenize` and `POST /detokenize`, as vLLM has them."""

import asyncio

from starlette.responses import Response

from ._errors import invalid
from ._fields import Fields, is_integer
from ._messages import chat_prompt
from ._respond import json_response
from ._sampling import check_model
from ._served import Served


async def tokenize(served: Served, fields: Fields) -> Response:
    """Answers with the tokens of a prompt, or of a chat."""
    check_model(fields, served)
    if "messages" in fields:
        ids = await chat_prompt(served, fields)
    else:
        text = fields.text("prompt")
        if text is None:
            raise invalid("prompt is missing, and so are messages.", "prompt")
        encode = (
            served.tokenizer.encode_prompt if fields.boolean("add_special_tokens", True) else served.tokenizer.encode
        )
        ids = (await asyncio.to_thread(encode, text)).tolist()
    texts = [served.token_text(i).text for i in ids] if fields.boolean("return_token_strs") else None
    return json_response({"count": len(ids), "max_model_len": served.max_length, "tokens": ids, "token_strs": texts})


async def detokenize(served: Served, fields: Fields) -> Response:
    """Answers with the text of tokens."""
    check_model(fields, served)
    tokens, size = fields.raw("tokens"), served.tokenizer.vocab_size
    if not isinstance(tokens, list) or not all(is_integer(token) and 0 <= token < size for token in tokens):
        raise fields.wrong("tokens", f"a list of token ids below {size}")
    return json_response({"prompt": await asyncio.to_thread(served.tokenizer.decode, tokens)})
