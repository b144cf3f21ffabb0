# SPDX-License-Identifier: Apache-2.0
"""`/v1/embeddings`: what OpenAI's client gets of a model that is served for it."""

import base64

import numpy as np
import openai
import pytest

from support.http_server import ScriptedDevice, running, vector_of

PATH = "/v1/embeddings"


@pytest.fixture(scope="module")
def mean():
    with running(ScriptedDevice(pooling="mean")) as found:
        yield found


def mean_of(tokens, dimensions=None):
    vector = np.stack([vector_of(token) for token in tokens]).astype(np.float64).mean(axis=0)[:dimensions]
    return vector / np.linalg.norm(vector)


def test_the_client_of_openai_gets_vectors_in_both_formats(mean):
    client = openai.OpenAI(base_url=f"{mean.url}/v1", api_key="none")
    texts = ["Call me", "Ishmael" * 30, "x"]
    for found in (
        client.embeddings.create(model="scripted", input=texts),  # The client asks for base64.
        client.embeddings.create(model="scripted", input=texts, encoding_format="float"),
    ):
        assert [each.index for each in found.data] == [0, 1, 2]
        for text, each in zip(texts, found.data, strict=True):
            np.testing.assert_allclose(each.embedding, mean_of(text.encode()), rtol=1e-5)
        assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, texts))
        assert (found.model, found.object) == ("scripted", "list")


@pytest.mark.parametrize("given, tokens", [("Hi", [72, 105]), ([72, 105], [72, 105]), ([[72], [105, 1]], None)])
def test_texts_and_tokens_are_taken_one_or_several(mean, given, tokens):
    data = mean.post(PATH, {"input": given}).json()["data"]
    wanted = [tokens] if tokens else given
    assert len(data) == len(wanted)
    for each, ids in zip(data, wanted, strict=True):
        np.testing.assert_allclose(each["embedding"], mean_of(ids), rtol=1e-5)


def test_fewer_dimensions_are_the_first_ones_of_length_1(mean):
    body = {"input": "Call me", "dimensions": 2}
    (found,) = mean.post(PATH, body).json()["data"]
    np.testing.assert_allclose(found["embedding"], mean_of(b"Call me", 2), rtol=1e-5)
    (coded,) = mean.post(PATH, {**body, "encoding_format": "base64"}).json()["data"]
    assert np.frombuffer(base64.b64decode(coded["embedding"]), "<f4").tolist() == found["embedding"]


def test_the_last_token_alone_counts_if_the_server_says_so():
    with running(ScriptedDevice(pooling="last")) as server:
        (found,) = server.post(PATH, {"input": "Call me" * 40}).json()["data"]
        np.testing.assert_allclose(found["embedding"], mean_of(b"e"), rtol=1e-5)
        assert server.completion("Call me")["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    "body, message",
    [
        ({}, "input is missing."),
        ({"input": []}, "input is an empty list, expected a string, a list of strings, "),
        ({"input": ""}, "input is empty, expected at least one token."),
        ({"input": [999]}, "input has the token 999, outside the vocabulary of "),
        ({"input": "x", "encoding_format": "hex"}, 'encoding_format is "hex", expected "float" or "base64".'),
        ({"input": "x", "dimensions": 0}, "dimensions is 0, expected a whole number, at least 1."),
        ({"input": "x", "dimensions": 6}, "dimensions is 6, expected a whole number from 1 to 5."),
        (
            {"input": "x" * 600},
            "This model has room for 512 tokens, but there are 600 in the prompt. Shorten the prompt.",
        ),
    ],
)
def test_what_is_wrong_is_said(mean, body, message):
    status, error = mean.error(PATH, body)
    assert status == 400
    assert message in error["message"]
    assert mean.idle()
