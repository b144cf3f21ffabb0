# SPDX-License-Identifier: Apache-2.0
"""Texts of a given form: every way to ask for one, and what is no form."""

import json

import pytest

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
    ],
)
def test_a_schema_is_kept_however_it_is_asked_for(server, fields):
    for choice in server.completion(max_tokens=200, n=2, **fields)["choices"]:
        assert choice["finish_reason"] == "stop"
        found = json.loads(choice["text"])
        assert found.keys() == {"ok", "kind"}
        assert found["kind"] in ("a", "b")


@pytest.mark.parametrize("fields", [{"guided_regex": "[0-9]{3}-x"}, {"structured_outputs": {"regex": "[0-9]{3}-x"}}])
def test_a_regular_expression_is_kept(server, fields):
    (choice,) = server.completion(max_tokens=50, **fields)["choices"]
    assert len(choice["text"]) == 5
    assert choice["text"][:3].isdecimal()
    assert choice["text"].endswith("-x")


def test_a_choice_is_one_of_the_texts_as_they_are(server):
    (choice,) = server.completion(max_tokens=50, guided_choice=["a.c", "né"])["choices"]
    assert choice["text"] in ("a.c", "né")


def test_any_object_begins_like_one(server):
    (choice,) = server.completion(max_tokens=5, response_format={"type": "json_object"})["choices"]
    assert choice["text"].startswith("{")


def test_plain_text_has_no_form(server):
    assert server.completion(response_format={"type": "text"})["choices"] == server.completion()["choices"]


def test_chats_take_the_same(chat_server):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "response_format": form,
        "max_tokens": 100,
        "temperature": 0,
    }
    (choice,) = chat_server.post("/v1/chat/completions", body).json()["choices"]
    assert json.loads(choice["message"]["content"]).keys() == {"ok", "kind"}


@pytest.mark.parametrize(
    "fields, param, message",
    [
        ({"response_format": "json"}, "response_format", 'response_format is "json", expected an object.'),
        (
            {"response_format": {}},
            "response_format.type",
            'response_format.type is null, expected "text", "json_object" or',
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", 'response_format.type is "xml", expected'),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema",
            "response_format.json_schema.schema is null, expected a JSON schema, which is an object.",
        ),
        ({"guided_json": "{"}, "guided_json", 'guided_json is "{", expected a JSON schema, which is an object.'),
        ({"guided_json": {"type": "x"}}, "guided_json", "guided_json: "),
        ({"guided_regex": "("}, "guided_regex", "guided_regex: "),
        ({"guided_regex": 5}, "guided_regex", "guided_regex is 5, expected a string."),
        ({"guided_choice": []}, "guided_choice", "guided_choice is an empty list, expected a list of strings."),
        ({"guided_choice": [""]}, "guided_choice", "guided_choice: expected one text or more, none of them empty"),
        ({"guided_grammar": "x"}, "guided_grammar", "guided_grammar is not supported: use guided_json"),
        ({"structured_outputs": {}}, "structured_outputs", "structured_outputs is an object, expected one of json,"),
        (
            {"structured_outputs": {"grammar": "x"}},
            "structured_outputs.grammar",
            "structured_outputs.grammar is not supported: use json, regex or choice.",
        ),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
            "response_format and guided_regex both say what the text must be. Use one of them.",
        ),
    ],
)
def test_what_is_no_form_is_refused_with_the_field(server, fields, param, message):
    status, error = server.error("/v1/completions", {"prompt": "x", **fields})
    assert (status, error["param"]) == (400, param)
    assert error["message"].startswith(message)
