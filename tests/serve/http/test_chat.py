# SPDX-License-Identifier: Apache-2.0
"""`/v1/chat/completions`: the model's own template, tools, streams and log-probabilities."""

from typing import Any

import openai
import pytest

from support.http_server import TEXT, chat_tokenizer

PATH = "/v1/chat/completions"
USER: Any = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def prompt_of(server, **fields) -> str:
    """The chat as the model gets it: its tokens, by their names."""
    response = server.post("/tokenize", {"return_token_strs": True, **fields})
    assert response.status_code == 200, response.text
    return "".join(response.json()["token_strs"])


def written(server, count: int, messages=USER) -> str:
    """What the device writes after a chat."""
    tokenizer, script = chat_tokenizer(), server.device.script
    start = server.post("/tokenize", {"messages": messages}).json()["count"]
    return tokenizer.decode((script * 9)[start : start + count])


def test_the_client_of_openai_gets_a_message(chat_server):
    client = openai.OpenAI(base_url=f"{chat_server.url}/v1", api_key="none")
    found = client.chat.completions.create(model="scripted", messages=USER, max_tokens=12, temperature=0)
    (choice,) = found.choices
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert choice.message.content == written(chat_server, 12)
    assert found.usage is not None
    assert found.usage.completion_tokens == 12
    assert found.object == "chat.completion"


def test_the_client_of_openai_streams_a_message(chat_server):
    client = openai.OpenAI(base_url=f"{chat_server.url}/v1", api_key="none")
    stream = client.chat.completions.create(
        model="scripted",
        messages=USER,
        max_completion_tokens=60,
        temperature=0,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 120
    for index in range(2):
        parts = [chunk.choices[0] for chunk in chunks[:-1] if chunk.choices[0].index == index]
        assert "".join(part.delta.content or "" for part in parts) == written(chat_server, 60)
        assert [part.finish_reason for part in parts if part.finish_reason] == ["length"]
        assert parts[-1].finish_reason == "length"


def test_a_chat_without_a_limit_goes_on_until_there_is_no_room(chat_server):
    found = chat_server.post(PATH, {"messages": USER, "temperature": 0}).json()
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["total_tokens"] == chat_server.served.max_length


def test_log_probabilities_have_bytes_and_alternatives(chat_server):
    body = {"messages": USER, "max_tokens": 30, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    found = chat_server.post(PATH, body).json()["choices"][0]
    content = found["logprobs"]["content"]
    assert len(content) == 30
    assert (
        bytes(byte for entry in content for byte in entry["bytes"]).decode(errors="replace")
        == found["message"]["content"]
    )
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    events = chat_server.events(PATH, body)
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert [entry for part in parts if part for entry in part["content"]] == content


def test_the_template_gets_messages_tools_and_options(chat_server):
    assert prompt_of(chat_server, messages=USER) == "<s>user: Hi</s><s>assistant: "
    assert prompt_of(chat_server, messages=USER, add_generation_prompt=False) == "<s>user: Hi</s>"
    with_tools = prompt_of(chat_server, messages=USER, tools=[TOOL])
    assert with_tools.startswith('<tools>[{"type": "function", "function": {"name": "weather"')
    assert prompt_of(chat_server, messages=USER, tools=[TOOL], tool_choice="none").startswith("<s>user")
    assert prompt_of(chat_server, messages=USER, chat_template_kwargs={"shout": 1}).startswith("SHOUT <s>")


def test_parts_of_a_message_and_arguments_of_tools_reach_the_template(chat_server):
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Nantucket"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "1"},
    ]
    expected = "<s>user: a\nb</s><s>assistant: </s>Nantucket<s>tool: rain</s><s>assistant: "
    assert prompt_of(chat_server, messages=messages) == expected


def test_what_ends_a_text_is_taken_from_the_generation_config_and_nothing_else_is(chat_server):
    assert chat_server.served.stop_tokens == {1, 2}
    bodies = [{"messages": USER, "max_tokens": 9, "seed": 1, "temperature": t} for t in (1.0, None)]
    texts = [chat_server.post(PATH, body).json()["choices"][0]["message"]["content"] for body in bodies]
    assert texts[0] == texts[1]  # Not the temperature that the file names.


@pytest.mark.parametrize(
    "fields, param, message",
    [
        (
            {"messages": []},
            "messages",
            "messages is an empty list, expected a list with at least one message, each an object",
        ),
        ({"messages": "Hi"}, "messages", 'messages is "Hi", expected a list with at least one message'),
        ({"messages": [7]}, "messages[0]", "messages[0] is 7, expected an object with a role and a content."),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role is null, expected a string"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "messages[0].content is null, expected a string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
            "messages[0].content[0] is of type 'image_url', but this model reads text alone.",
        ),
        ({"tools": "x"}, "tools", 'tools is "x", expected a list of objects.'),
        (
            {"tools": [TOOL], "tool_choice": "required"},
            "tool_choice",
            "tool_choice is not supported: the model decides whether it calls a tool. Use auto, or none.",
        ),
        ({"functions": [{}]}, "functions", "functions is not supported: use tools."),
        (
            {"top_logprobs": 2},
            "top_logprobs",
            "top_logprobs is only for a request with logprobs. Set logprobs to true.",
        ),
        (
            {"logprobs": True, "top_logprobs": 6},
            "top_logprobs",
            "top_logprobs is 6, expected a whole number from 0 to 5.",
        ),
        ({"logprobs": 3}, "logprobs", "logprobs is 3, expected true or false."),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0, expected a whole number, at least 1."),
        ({"modalities": ["audio"]}, "modalities", "modalities is not supported: the model writes text."),
        ({"continue_final_message": True}, "continue_final_message", "continue_final_message is not supported: the"),
        ({"chat_template": "x"}, "chat_template", "chat_template is not supported: the server uses the one"),
        (
            {"reasoning_effort": "high"},
            "reasoning_effort",
            "reasoning_effort is not supported: use chat_template_kwargs",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_field(chat_server, fields, param, message):
    status, error = chat_server.error(PATH, {"messages": USER, **fields})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"].startswith(message)


def test_messages_that_the_template_refuses_are_an_error_of_the_client(chat_server):
    status, error = chat_server.error(PATH, {"messages": [{"role": "nobody", "content": "x"}]})
    assert (status, error["param"], error["code"]) == (400, "messages", "chat_template_error")
    assert "it does not take these messages: who is nobody?" in error["message"]


def test_a_chat_that_is_too_long_says_how_long_it_may_be(chat_server):
    status, error = chat_server.error(PATH, {"messages": USER, "max_tokens": 600})
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "max_tokens")
    count = chat_server.post("/tokenize", {"messages": USER}).json()["count"]
    assert error["message"] == (
        f"This model has room for 512 tokens, but there are {count} in the prompt and 600 in max_tokens. "
        "Shorten the prompt, or ask for fewer tokens."
    )
    status, error = chat_server.error(PATH, {"messages": [{"role": "user", "content": TEXT * 20}]})
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", None)


def test_a_model_without_a_template_says_so(server):
    status, error = server.error(PATH, {"messages": USER})
    assert (status, error["code"]) == (400, "no_chat_template")
    assert error["message"] == (
        "This model cannot chat: the tokenizer has no chat template: neither chat_template.jinja nor a chat_template "
        "in tokenizer_config.json. Use /v1/completions."
    )
