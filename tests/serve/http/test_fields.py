# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: whatever is in them, the answer is a text or an error that names the field, and no trace."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.serve.http._errors import ApiError
from dovetail.serve.http._fields import parse

PATH = "/v1/completions"


def refused(server, body: bytes, path: str = PATH):
    response = server.client.post(path, content=body, headers={"content-type": "application/json"})
    return response.status_code, response.json()["error"]


@pytest.mark.parametrize(
    "body, message",
    [
        (b"", "The body is not JSON: Expecting value: line 1 column 1 (char 0)."),
        (b"{", "The body is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."),
        (b"[1]", "The body is a list, expected an object."),
        (b"null", "The body is null, expected an object."),
        (b'{"temperature": NaN}', "The body is not JSON: NaN is no number in JSON."),
        (b'{"prompt": "\xff"}', "The body is not JSON: 'utf-8' codec can't decode byte 0xff in position 12: invalid"),
        (b"[" * 100_000, "The body is nested too deeply."),
        (b'{"prompt": "\\ud83d"}', "The body has \\ud83d in it, half a pair of surrogates, which is no character."),
        (b'{"n": ' + b"9" * 5000 + b"}", "The body is not JSON: Exceeds the limit (4300 digits) for integer string"),
    ],
)
def test_a_body_that_is_no_object_is_refused(server, body, message):
    for path in (PATH, "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/embeddings"):
        status, error = refused(server, body, path)
        assert (status, error["type"], error["param"]) == (400, "invalid_request_error", None)
        assert error["message"].startswith(message)


@pytest.mark.parametrize(
    "fields, param, message",
    [
        ({"prompt": None}, "prompt", "prompt is missing."),
        ({"prompt": ""}, "prompt", "prompt is empty, expected at least one token."),
        (
            {"prompt": []},
            "prompt",
            "prompt is an empty list, expected a string, a list of strings, a list of token ids,",
        ),
        ({"prompt": ["a", 1]}, "prompt", "prompt is a list, expected a string, a list of strings"),
        ({"prompt": [[]]}, "prompt", "prompt is empty, expected at least one token."),
        ({"prompt": [300]}, "prompt", "prompt has the token 300, outside the vocabulary of 259."),
        ({"prompt": [-1]}, "prompt", "prompt has the token -1, outside the vocabulary of 259."),
        ({"prompt": ["a"] * 200}, "prompt", "There are 200 prompts, expected at most 128."),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt", "There are 65 prompts with 2 choices each, expected at most 128"),
        ({"max_tokens": "x"}, "max_tokens", 'max_tokens is "x", expected a whole number, at least 0.'),
        ({"max_tokens": 1.5}, "max_tokens", "max_tokens is 1.5, expected a whole number, at least 0."),
        ({"max_tokens": True}, "max_tokens", "max_tokens is true, expected a whole number, at least 0."),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0, expected at least 1, or echo."),
        ({"max_tokens": 10**6}, "max_tokens", "This model has room for 512 tokens, but there are 1 in the prompt and"),
        ({"n": 0}, "n", "n is 0, expected a whole number from 1 to 128."),
        ({"n": 3, "best_of": 2}, "best_of", "best_of is 2, expected at least n, which is 3."),
        ({"best_of": 2, "stream": True}, "best_of", "best_of cannot be streamed: which choice is best is known at the"),
        ({"logprobs": 6}, "logprobs", "logprobs is 6, expected a whole number from 0 to 5."),
        ({"temperature": -0.5}, "temperature", "temperature is -0.5, expected at least 0."),
        ({"temperature": "hot"}, "temperature", 'temperature is "hot", expected a number.'),
        ({"temperature": 10**400}, "temperature", "temperature is inf, expected at least 0."),
        ({"top_p": 0}, "top_p", "top_p is 0, expected more."),
        ({"top_p": 1.5}, "top_p", "top_p is 1.5, expected from 0 to 1."),
        ({"top_k": -2}, "top_k", "top_k is -2, expected at least 0."),
        ({"min_p": 2}, "min_p", "min_p is 2.0, expected from 0 to 1."),
        ({"presence_penalty": 3}, "presence_penalty", "presence_penalty is 3.0, expected from -2 to 2."),
        ({"frequency_penalty": -3}, "frequency_penalty", "frequency_penalty is -3.0, expected from -2 to 2."),
        ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty is 0, expected more."),
        ({"logit_bias": {"x": 1}}, "logit_bias", "logit_bias has 'x': 1, expected an object of at most 300 token ids"),
        ({"logit_bias": {"300": 1}}, "logit_bias", "logit_bias has '300': 1, expected an object of at most 300 token"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "logit_bias has '1': 101, expected an object of at most 300 token"),
        ({"logit_bias": [1]}, "logit_bias", "logit_bias is a list, expected an object of at most 300 token ids below"),
        ({"stop": ""}, "stop", 'stop is "", expected a string, or a list of at most 64, each of 1 to 1024 characters.'),
        ({"stop": [1]}, "stop", "stop is a list, expected a string, or a list"),
        ({"stop": ["x"] * 65}, "stop", "stop is a list, expected a string, or a list of at most 64"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids", "stop_token_ids is a list, expected a list of token ids."),
        ({"seed": "x"}, "seed", 'seed is "x", expected a whole number.'),
        ({"stream": "yes"}, "stream", 'stream is "yes", expected true or false.'),
        ({"stream_options": {}}, "stream_options", "stream_options is only for a stream. Set stream to true."),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "stream_options.include_usage is 1, expected true or false.",
        ),
        ({"suffix": "x"}, "suffix", "suffix is not supported: the model continues a prompt, it does not fill one in."),
        ({"min_tokens": 2}, "min_tokens", "min_tokens is not supported: use ignore_eos with max_tokens."),
        ({"use_beam_search": True}, "use_beam_search", "use_beam_search is not supported: there is no beam search."),
        (
            {"priority": "high"},
            "priority",
            'priority is "high", expected a whole number from -2147483648 to 2147483647.',
        ),
        ({"cache_salt": 1}, "cache_salt", "cache_salt is 1, expected a string."),
        ({"model": 7}, "model", "model is 7, expected a string."),
    ],
)
def test_a_field_that_makes_no_sense_is_refused_by_name(server, fields, param, message):
    status, error = server.error(PATH, {"prompt": "x", **fields})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"].startswith(message)


def test_another_model_is_not_found(server):
    status, error = server.error(PATH, {"prompt": "x", "model": "gpt-2"})
    assert (status, error["param"], error["code"]) == (404, "model", "model_not_found")
    assert error["message"] == "There is no model 'gpt-2'. This server has 'scripted'."
    assert server.client.get("/v1/models/gpt-2").status_code == 404


NAMES = [
    "prompt",
    "model",
    "messages",
    "max_tokens",
    "n",
    "best_of",
    "echo",
    "logprobs",
    "stop",
    "seed",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stream_options",
    "stop_token_ids",
    "ignore_eos",
    "priority",
    "suffix",
    "response_format",
    "structured_outputs",
    "guided_regex",
    "guided_json",
    "guided_choice",
    "tools",
    "tool_choice",
    "top_logprobs",
    "chat_template_kwargs",
    "add_special_tokens",
    "min_tokens",
    "max_completion_tokens",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NEAR = st.sampled_from([0, 1, -1, 2, 0.5, True, "", "a", [], [0], ["a"], {}, {"type": "json_object"}, {"1": 1}, "auto"])


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(NAMES), JSON | NEAR, max_size=3))
def test_whatever_a_field_is_the_answer_is_a_text_or_names_it(server, fields):
    response = server.post(PATH, {"prompt": "x", "max_tokens": 2, **fields})
    found = response.json()
    if response.status_code == 200:
        assert all(choice["finish_reason"] in ("stop", "length") for choice in found["choices"])
    else:
        assert response.status_code in (400, 404), found
        assert found["error"].keys() == {"message", "type", "param", "code"}
        assert "Traceback" not in response.text


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(["messages", *NAMES]), JSON | NEAR, min_size=1, max_size=3))
def test_whatever_a_chat_is_the_answer_is_a_text_or_names_it(server, fields):
    response = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **fields})
    assert response.status_code in (400, 404), response.text  # This model cannot chat, at best.
    assert response.json()["error"]["message"]


@given(body=st.binary(max_size=40) | st.text(max_size=40).map(str.encode) | JSON.map(repr).map(str.encode))
def test_a_body_is_an_object_or_an_error(body):
    with contextlib.suppress(ApiError):
        parse(body)
