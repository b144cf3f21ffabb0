# SPDX-License-Identifier: Apache-2.0
"""`/tokenize` and `/detokenize`: as vLLM has them."""

import pytest


def test_a_prompt_becomes_tokens_and_text_again(server):
    found = server.post("/tokenize", {"model": "scripted", "prompt": "né"}).json()
    assert found == {"count": 3, "max_model_len": 512, "tokens": [110, 195, 169], "token_strs": None}
    assert server.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": "né"}
    assert server.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


def test_a_chat_becomes_the_tokens_that_it_is_answered_with(chat_server):
    messages = [{"role": "user", "content": "Hi"}]
    count = chat_server.post("/tokenize", {"messages": messages}).json()["count"]
    body = {"messages": messages, "max_tokens": 1}
    assert chat_server.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"] == count


def test_special_tokens_in_a_prompt_are_plain_text(chat_server):
    names = chat_server.post("/tokenize", {"prompt": "</s>", "return_token_strs": True}).json()["token_strs"]
    assert "".join(names) == "</s>"
    assert len(names) > 1


@pytest.mark.parametrize(
    "path, body, message",
    [
        ("/tokenize", {}, "prompt is missing, and so are messages."),
        ("/tokenize", {"prompt": 5}, "prompt is 5, expected a string."),
        ("/detokenize", {}, "tokens is null, expected a list of token ids below 259."),
        ("/detokenize", {"tokens": [1, 259]}, "tokens is a list, expected a list of token ids below 259."),
    ],
)
def test_what_cannot_be_read_is_refused(server, path, body, message):
    status, error = server.error(path, body)
    assert (status, error["message"]) == (400, message)
