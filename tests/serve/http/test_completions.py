# SPDX-License-Identifier: Apache-2.0
"""`/v1/completions`: what OpenAI's client, lm-eval and curl get, and that characters and stop strings stay whole."""

import json
import subprocess
from typing import Any

import openai
import pytest

from dovetail.data import ByteTokenizer
from dovetail.serve._request import Draw, Request
from support.fake_device import FakeDevice, expected, expected_prompt, shape_of
from support.http_server import TEXT, ScriptedDevice, logprob_of, running

PATH = "/v1/completions"
BYTES = TEXT.encode()


def written(start: int, count: int) -> str:
    """What the device writes from a place on."""
    return (BYTES * 8)[start : start + count].decode(errors="replace")


def test_the_client_of_openai_gets_text_and_usage(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    found = client.completions.create(model="scripted", prompt="Hi", max_tokens=20, temperature=0)
    (choice,) = found.choices
    assert (choice.text, choice.finish_reason, choice.index) == (written(2, 20), "length", 0)
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (2, 20, 22)
    assert found.object == "text_completion"
    assert found.id.startswith("cmpl-")
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").id == "scripted"


def test_the_client_of_openai_streams(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    options: Any = {"include_usage": True}
    chunks = list(
        client.completions.create(
            model="scripted", prompt="Hi", max_tokens=90, temperature=0, stream=True, stream_options=options
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == written(2, 90)
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 90
    assert len({chunk.id for chunk in chunks}) == 1


def test_curl_reads_a_stream_to_its_end(server):
    body = json.dumps({"prompt": "Hi", "max_tokens": 3, "temperature": 0, "stream": True})
    command = ["curl", "-sN", f"{server.url}{PATH}", "-H", "Content-Type: application/json", "-d", body]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line.startswith("data: ") for line in lines[::2])
    assert lines[1::2] == [""] * (len(lines) // 2)


def test_no_character_is_broken_wherever_a_stream_is_cut(server):
    for character in "é—鯨🐋":  # Of two, three and four bytes.
        start = BYTES.index(character.encode())
        events = server.events(PATH, {"prompt": "x" * start, "max_tokens": 25, "temperature": 0})
        texts = [event["choices"][0]["text"] for event in events]
        assert "".join(texts) == written(start, 25)
        assert not any("\N{REPLACEMENT CHARACTER}" in text for text in texts[:-1])


def test_half_a_character_at_the_end_is_told_and_not_lost(server):
    start = BYTES.index("🐋".encode())
    (choice,) = server.completion("x" * start, max_tokens=2)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("\N{REPLACEMENT CHARACTER}", "length")


@pytest.mark.parametrize("stop", ["Some", ["nothing", "Some", "years"], ["Some y", "Som"]])
def test_a_stop_string_ends_the_text_before_it_however_tokens_cut_it(server, stop):
    body = {"prompt": "Hi", "max_tokens": 100, "temperature": 0, "stop": stop}
    (choice,) = server.completion(**body)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ll me Ishmael. ", "stop")
    assert choice["stop_reason"] == ("Som" if stop[-1] == "Som" else "Some")
    events = server.events(PATH, body)
    assert "".join(event["choices"][0]["text"] for event in events) == choice["text"]
    assert [event["choices"][0]["finish_reason"] for event in events][-1] == "stop"
    assert server.idle()


def test_what_looks_like_a_stop_string_and_is_none_is_shown_at_the_end(server):
    (choice,) = server.completion(max_tokens=15, stop="Sxxx")["choices"]
    assert (choice["text"], choice["finish_reason"]) == (written(2, 15), "length")


def test_a_stop_string_can_be_part_of_the_text(server):
    (choice,) = server.completion(max_tokens=50, stop="Ish", include_stop_str_in_output=True)["choices"]
    assert choice["text"] == "ll me Ish"


def test_stop_tokens_end_a_text_and_are_not_part_of_it(server):
    (choice,) = server.completion(max_tokens=50, stop_token_ids=[ord("h")])["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ll me Is", "stop", ord("h"))


def test_the_end_of_text_token_ends_it_unless_it_is_ignored():
    device = ScriptedDevice([*b"abcd", 257, *b"efgh"])
    with running(device) as server:
        found = server.completion("x", max_tokens=6)
        assert (found["choices"][0]["text"], found["choices"][0]["finish_reason"]) == ("bcd", "stop")
        assert found["usage"]["completion_tokens"] == 4
        assert server.completion("x", max_tokens=6, ignore_eos=True)["choices"][0]["text"] == "bcdef"


@pytest.mark.parametrize(
    "prompt, texts",
    [
        (["Hi", "abc"], [written(2, 4), written(3, 4)]),
        ([72, 105], [written(2, 4)]),
        ([[72, 105], [97]], [written(2, 4), written(1, 4)]),
    ],
)
def test_prompts_are_texts_or_tokens_one_or_more(server, prompt, texts):
    found = server.completion(prompt, max_tokens=4)
    assert [choice["text"] for choice in found["choices"]] == texts
    assert [choice["index"] for choice in found["choices"]] == list(range(len(texts)))
    assert found["usage"]["completion_tokens"] == 4 * len(texts)


def test_several_choices_with_a_seed_differ_and_can_be_had_again(server):
    body = {"temperature": 1.0, "seed": 7, "n": 3, "max_tokens": 12}
    first, again = (server.completion("Hi", **body) for _ in range(2))
    texts = [choice["text"] for choice in first["choices"]]
    assert len(set(texts)) == 3
    assert [choice["text"] for choice in again["choices"]] == texts
    assert first["usage"]["prompt_tokens"] == 2  # Once, and not for each choice.
    assert server.completion("Hi", **body | {"seed": 8})["choices"][0]["text"] != texts[0]
    assert server.completion("Hi", **body | {"n": 1})["choices"][0]["text"] == texts[0]


def test_without_a_seed_answers_differ(server):
    body = {"temperature": 1.0, "max_tokens": 12}
    assert server.completion(**body)["choices"][0]["text"] != server.completion(**body)["choices"][0]["text"]


def test_several_choices_are_streamed_each_with_one_end(server):
    events = server.events(PATH, {"prompt": ["Hi", "abc"], "n": 2, "max_tokens": 8, "temperature": 0})
    choices = [event["choices"][0] for event in events]
    texts = {i: "".join(c["text"] for c in choices if c["index"] == i) for i in range(4)}
    assert texts == {0: written(2, 8), 1: written(2, 8), 2: written(3, 8), 3: written(3, 8)}
    ends = sorted(choice["index"] for choice in choices if choice["finish_reason"])
    assert ends == [0, 1, 2, 3]


def test_the_best_of_several_choices_are_those_the_model_finds_most_likely(server):
    body = {"temperature": 1.0, "seed": 3, "max_tokens": 5}
    every = server.completion("Hi", n=6, logprobs=0, **body)["choices"]
    means = {choice["text"]: sum(choice["logprobs"]["token_logprobs"]) for choice in every}
    found = server.completion("Hi", n=2, best_of=6, **body)
    best = sorted(means, key=lambda text: -means[text])[:2]
    assert [means[choice["text"]] for choice in found["choices"]] == [means[text] for text in best]
    assert found["usage"]["completion_tokens"] == 30
    assert found["choices"][0]["logprobs"] is None


def test_echo_with_logprobs_is_in_the_form_that_lm_eval_reads(server):
    prompts = [list(b"Hi you"), list(b"abc")]
    found = server.completion(prompts, max_tokens=1, logprobs=1, echo=True, seed=1234)
    for choice, prompt in zip(found["choices"], prompts, strict=True):
        logprobs = choice["logprobs"]
        assert choice["text"] == bytes(prompt).decode() + written(len(prompt), 1)
        assert logprobs["tokens"] == list(choice["text"])
        assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
        assert logprobs["token_logprobs"][1:-1] == [logprob_of(token) for token in prompt[1:]]
        assert logprobs["text_offset"] == list(range(len(prompt) + 1))
        pairs = list(zip(logprobs["token_logprobs"], logprobs["top_logprobs"], prompt, strict=False))[1:]
        for value, top, token in pairs:  # As lm-eval tells whether a token is the most likely one.
            assert (value == max(top.values())) == (token % 2 == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_echo_without_new_tokens_gives_the_prompt_alone(server, stream):
    body = {"prompt": "Hé", "max_tokens": 0, "echo": True, "logprobs": 2}
    if stream:
        (event,) = server.events(PATH, body)
        (choice,) = event["choices"]
    else:
        found = server.completion(**body)
        (choice,) = found["choices"]
        assert found["usage"]["completion_tokens"] == 0
    assert (choice["text"], choice["finish_reason"]) == ("Hé", "length")
    assert choice["logprobs"]["tokens"] == ["H", "bytes:\\xc3", "bytes:\\xa9"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1]


def test_a_prompt_is_echoed_once_for_each_choice_also_in_a_stream(server):
    body = {"prompt": "Hi", "n": 3, "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 1}
    whole = server.completion(**body)["choices"]
    events = server.events(PATH, body)
    for index, choice in enumerate(whole):
        parts = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"] == "Hi" + written(2, 2)
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [item for part in parts for item in part["logprobs"][key]] == choice["logprobs"][key]


def test_tokens_can_be_named_by_their_numbers(server):
    (choice,) = server.completion(max_tokens=2, logprobs=0, return_tokens_as_token_ids=True)["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{byte}" for byte in BYTES[2:4]]
    assert choice["logprobs"]["text_offset"] == [2, 3]


def test_a_logit_bias_reaches_the_device(server):
    assert server.completion(max_tokens=3, logit_bias={"65": 100, "66": -100})["choices"][0]["text"] == "AAA"


def test_what_is_ignored_changes_nothing(server):
    extra = {"user": "me", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "something_new": [1]}
    assert server.completion(max_tokens=5, **extra)["choices"] == server.completion(max_tokens=5)["choices"]


def test_fields_that_are_null_are_not_there(server):
    names = (
        "max_tokens",
        "stop",
        "logprobs",
        "seed",
        "n",
        "best_of",
        "echo",
        "logit_bias",
        "stream",
        "suffix",
        "top_k",
    )
    assert server.completion(**dict.fromkeys(names))["choices"][0]["text"] == written(2, 16)


SHAPE = shape_of(vocab_size=256, max_length=128, groups=(shape_of().groups[0]._replace(pages=160),))


def test_over_http_tokens_and_logprobs_are_those_of_the_engine():
    with running(FakeDevice(SHAPE)) as server:
        draw = Draw(temperature=0.0)
        request = Request(tokens=(1, 2, 3, 4, 5), max_tokens=9, draw=draw, logprobs=2, prompt_logprobs=2)
        options = {"logprobs": 2, "echo": True, "return_tokens_as_token_ids": True, "max_tokens": 9}
        (choice,) = server.completion(list(request.tokens), **options)["choices"]
        tokens = [*expected_prompt(request, SHAPE), *expected(request, SHAPE)]
        assert choice["logprobs"]["tokens"] == [f"token_id:{token.id}" for token in tokens]
        assert choice["logprobs"]["token_logprobs"] == [token.logprob for token in tokens]
        for top, token in zip(choice["logprobs"]["top_logprobs"][1:], tokens[1:], strict=True):
            assert top == {f"token_id:{i}": value for i, value in (*token.top, (token.id, token.logprob))}


def test_penalties_of_one_request_change_no_other():
    with running(FakeDevice(SHAPE)) as server:
        plain = server.completion([9, 8, 7], max_tokens=10)["choices"][0]
        body = {"frequency_penalty": 1.5, "repetition_penalty": 1.2, "max_tokens": 10}
        first = server.completion([9, 8, 7], **body)["choices"][0]
        assert first["text"] != plain["text"]
        assert server.completion([9, 8, 7], max_tokens=10)["choices"][0]["text"] == plain["text"]
        assert server.completion([9, 8, 7], **body)["choices"][0]["text"] == first["text"]


def test_what_was_read_before_is_reported_as_cached():
    with running(FakeDevice(SHAPE)) as server:
        prompt = list(range(40))
        first, second = (server.completion(prompt, max_tokens=4) for _ in range(2))
        assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": 36}
        assert first["choices"][0]["text"] == second["choices"][0]["text"]


def test_the_tokenizer_of_the_tests_has_what_they_assume():
    tokenizer = ByteTokenizer.Config().build()
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (259, 257)
