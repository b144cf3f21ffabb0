# SPDX-License-Identifier: Apache-2.0
"""Constrained output: whatever is drawn among allowed tokens, the text is of the grammar; hostile ones are refused."""

import functools
import json
import random
import re
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data import HuggingFaceTokenizer
from dovetail.serve._request import RequestError
from support.small_tokenizers import small_tokenizer

pytest.importorskip("llguidance", reason="of the extra `serve`")

from dovetail.serve import GrammarCompiler

KINDS = ["bytes", "byte_level", "fallback", "sentence_piece"]
MORE = 45  # Tokens that the model has room for and the tokenizer does not have.


@functools.cache
def compiler(kind):
    tokenizer = small_tokenizer(kind)
    return GrammarCompiler(tokenizer, vocab_size=tokenizer.vocab_size + MORE)


def allowed(grammar):
    """The tokens of a mask, which has the form that the device expects."""
    words = grammar.mask()
    assert words.dtype == np.int32
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


def write(grammar, tokenizer, rng, longest=3000):
    """A text by tokens drawn at random; now and then one that closes something, so that it ends."""
    ids = []
    for _ in range(longest):
        if grammar.is_done():
            break
        tokens = allowed(grammar)
        assert tokens.max() < tokenizer.vocab_size
        if tokenizer.eos_id in tokens and rng.random() < 0.5:
            grammar.accept(tokenizer.eos_id)
            assert grammar.is_done()
            break
        tokens = tokens[tokens != tokenizer.eos_id]
        short = [i for i in tokens if tokenizer.decode([int(i)]) in ('"', "}", "]", ",")] if rng.random() < 0.4 else []
        token = int(rng.choice(short or tokens.tolist()))
        grammar.accept(token)
        ids.append(token)
    else:
        pytest.fail(f"no end: {tokenizer.decode(ids)!r}")
    return tokenizer.decode(ids)


# A part of JSON Schema: random schemas, and what they mean.

NUMBERS = st.tuples(st.integers(-300, 300), st.integers(0, 400)).map(
    lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]}
)
TEXTS = st.tuples(st.integers(0, 3), st.integers(0, 6)).map(
    lambda pair: {"type": "string", "minLength": pair[0], "maxLength": pair[0] + pair[1]}
)
VALUES = st.lists(st.one_of(st.text(max_size=5), st.integers(-9, 9), st.booleans(), st.none()), min_size=1, max_size=4)
LEAVES = st.one_of(
    NUMBERS, TEXTS, VALUES.map(lambda found: {"enum": found}), st.sampled_from([{"type": "boolean"}, {"type": "null"}])
)


def arrays(schemas):
    return st.tuples(schemas, st.integers(0, 2), st.integers(0, 2)).map(
        lambda found: {"type": "array", "items": found[0], "minItems": found[1], "maxItems": found[1] + found[2]}
    )


def objects(schemas):
    names = st.text('ab"\\é ', min_size=1, max_size=3)
    return st.dictionaries(names, st.tuples(schemas, st.booleans()), max_size=3).map(
        lambda found: {
            "type": "object",
            "properties": {name: schema for name, (schema, _) in found.items()},
            "required": [name for name, (_, is_required) in found.items() if is_required],
            "additionalProperties": False,
        }
    )


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        arrays(inner), objects(inner), st.lists(inner, min_size=1, max_size=3).map(lambda found: {"anyOf": found})
    ),
    max_leaves=5,
)


def is_valid(value, schema):
    if "anyOf" in schema:
        return any(is_valid(value, each) for each in schema["anyOf"])
    if "enum" in schema:
        return any(type(value) is type(each) and value == each for each in schema["enum"])
    kind = {"integer": int, "string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}
    if type(value) is not kind[schema["type"]]:
        return False
    if schema["type"] == "integer":
        return schema["minimum"] <= value <= schema["maximum"]
    if schema["type"] == "string":
        return schema["minLength"] <= len(value) <= schema["maxLength"]
    if schema["type"] == "array":
        right = schema["minItems"] <= len(value) <= schema["maxItems"]
        return right and all(is_valid(each, schema["items"]) for each in value)
    if schema["type"] == "object":
        named = schema["properties"]
        right = set(schema["required"]) <= set(value) <= set(named)
        return right and all(is_valid(each, named[name]) for name, each in value.items())
    return True


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(schema=SCHEMAS, seed=st.integers(0, 2**20))
def test_random_text_of_a_random_schema_is_valid(kind, schema, seed):
    grammar = compiler(kind).json_schema(schema)
    text = write(grammar, small_tokenizer(kind), random.Random(seed))
    assert is_valid(json.loads(text), schema), text


def test_the_validator_of_these_tests_refuses_what_is_wrong():
    assert not is_valid(3, {"type": "integer", "minimum": 4, "maximum": 9})
    assert not is_valid(True, {"enum": [1, "True"]})
    assert not is_valid(
        {"b": 1}, {"type": "object", "properties": {"a": {}}, "required": [], "additionalProperties": 0}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_any_json_object_has_no_long_runs_of_white_space(kind):
    tokenizer = small_tokenizer(kind)
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "boolean"}}}, "required": ["a"]}
    schema |= {"additionalProperties": False, "x-guidance": {"whitespace_pattern": "[ ]*", "whitespace_flexible": True}}
    for seed in range(10):
        text = write(compiler(kind).json_schema(schema), tokenizer, random.Random(seed))
        assert max(map(len, re.findall(r"\s*", text))) <= 25
        assert list(json.loads(text)) == ["a"]
    grammar = compiler(kind).json_object()
    assert json.loads(write(grammar, tokenizer, random.Random(1), longest=20_000)) is not None


def test_white_space_ends_also_if_the_model_wants_no_end():
    for wanted, longest in ((b" " * 99, 1), (b"\n" + b" \t" * 99, 25), (b"\n" * 99, 1)):
        grammar, count = compiler("bytes").json_object(), 0
        grammar.accept(ord("{"))
        while wanted[count] in allowed(grammar):
            grammar.accept(wanted[count])
            count += 1
        assert count == longest


PATTERNS = [
    r"a|b+c",
    r"^[0-9]{3}-\d{1,4}$",
    r"(foo|bar)\$",
    r"日本?語[é😀]",
    r"x/y\\",
    r"[^a-z\s]{2,5}",
    r"([a-z]{1,4}@\S{1,4}\.(com|org)){1,2}",
    r"\"[ab]*\"",
    r"a?b?c?",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_random_text_of_a_regular_expression_matches_it(kind, pattern):
    tokenizer = small_tokenizer(kind)
    for seed in range(6):
        text = write(compiler(kind).regex(pattern), tokenizer, random.Random(seed))
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize("kind", KINDS)
def test_every_choice_can_be_written_and_nothing_else(kind):
    choices = ["yes", "no", "no more", 'a "q"\n/😀é\\', "<s>", "नमस्ते"]
    tokenizer, rng = small_tokenizer(kind), random.Random(0)
    found = {write(compiler(kind).choice(choices), tokenizer, rng) for _ in range(80)}
    assert found == set(choices)


def test_the_end_is_allowed_only_where_the_text_is_complete():
    tokenizer = small_tokenizer("bytes")
    grammar = compiler("bytes").regex("ab*c?")
    assert allowed(grammar).tolist() == [ord("a")]
    grammar.accept(ord("a"))
    assert allowed(grammar).tolist() == [ord("b"), ord("c"), tokenizer.eos_id]
    assert not grammar.is_done()
    other = grammar.copy()
    grammar.accept(ord("c"))
    assert grammar.is_done()
    assert allowed(grammar).tolist() == [tokenizer.eos_id]
    assert not other.is_done()  # It goes on by itself.
    other.accept(ord("b"))
    other.accept(257)
    assert other.is_done()
    with pytest.raises(RequestError, match="doesn't satisfy the grammar"):
        compiler("bytes").regex("ab").accept(ord("b"))


def test_masks_are_as_wide_as_the_vocabulary_of_the_model():
    tokenizer = small_tokenizer("bytes")
    for size in (259, 260, 288, 289, 1000):
        words = GrammarCompiler(tokenizer, vocab_size=size).regex("a").mask()
        assert words.shape == (-(-size // 32),)
        assert words[ord("a") // 32] == 1 << ord("a") % 32
        assert np.count_nonzero(words) == 1


def test_several_tokens_may_end_a_text():
    tokenizer = small_tokenizer("bytes")
    both = GrammarCompiler(tokenizer, end_tokens=[257, 258]).regex("a*")
    assert allowed(both).tolist() == [ord("a"), 257, 258]
    both.accept(258)
    assert both.is_done()


def test_a_tokenizer_without_an_end_is_refused():
    files = small_tokenizer("byte_level").files()
    tokenizer = HuggingFaceTokenizer.Config(file="tokenizer.json").build(files=files)
    with pytest.raises(ConfigError, match=r"needs a token that ends a text, found \[None\]"):
        GrammarCompiler(tokenizer)


DEEP = functools.reduce(lambda inner, _: {"type": "array", "items": inner}, range(5000), {})
WRONG = [
    ({"type": "text"}, "Invalid type: text"),
    ({"not": {"type": "string"}}, "Unimplemented keys"),
    ({"$ref": "http://example.com/schema.json"}, "not present in a registry"),
    ({"$ref": "#"}, "response_format"),
    ('{"type": ', "the schema is not JSON"),
    ("3", "the schema is 3, expected an object"),
    (False, "the schema is False, expected an object"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "response_format"),
    ({"enum": [float("nan")]}, "the schema is not JSON"),
    ({"const": {1, 2}}, "the schema is not JSON"),
    (DEEP, "the schema is not JSON"),
    ({"enum": ["a" * 100 + str(i) for i in range(5000)]}, "expected at most 262144"),
    ({"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(30)]}, "response_format"),
    ({"type": "integer", "multipleOf": 99999989}, "multipleOf: 99999989 is too large"),
    ({"allOf": [{"multipleOf": 1009}, {"type": "integer", "multipleOf": 10.13}]}, "is too large"),
    ({"anyOf": [{"multipleOf": 1001 + 2 * i} for i in range(9000)]}, "what they have in common is too large"),
    ({"type": "string", "pattern": "("}, "response_format"),
    ({"allOf": [{"type": "string", "pattern": f"^(a{{{p}}})+$"} for p in (101, 103, 107, 109)]}, "response_format"),
]


@pytest.mark.parametrize("schema, message", WRONG, ids=range(len(WRONG)))
def test_schemas_that_cannot_be_followed_are_refused_at_once(schema, message):
    start = time.monotonic()
    with pytest.raises(RequestError, match=re.escape(message)) as e:
        compiler("bytes").json_schema(schema, field="response_format")
    assert e.value.field == "response_format"
    assert str(e.value).startswith("response_format: ")
    assert len(str(e.value)) < 400
    assert time.monotonic() - start < 4


@pytest.mark.parametrize("pattern", ["(", "(?=a)b", "a{3", r"(a)\1", "[b-a]"])
def test_regular_expressions_that_are_wrong_are_refused(pattern):
    with pytest.raises(RequestError) as e:
        compiler("bytes").regex(pattern)
    assert e.value.field == "regex"


LARGE = [
    {"type": "string", "maxLength": 10**9},
    {"type": "array", "items": {"type": "array", "minItems": 3000}, "minItems": 10**6, "maxItems": 10**7},
    {"type": "string", "pattern": "(((a{1,100}){1,100}){1,100}){1,100}"},
    {"type": "string", "pattern": "(a|aa)*(b|[ab])*a.{200}x"},
    {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f".*{i}.*"} for i in range(200)}},
    {"type": "number", "multipleOf": 0.01},
    True,
]


@pytest.mark.parametrize("kind", ["bytes", "byte_level"])
def test_large_grammars_are_followed_or_refused_in_little_time(kind):
    tokenizer, rng = small_tokenizer(kind), random.Random(3)
    for schema in LARGE:
        start = time.monotonic()
        try:
            grammar = compiler(kind).json_schema(schema)
            for _ in range(50):
                if grammar.is_done():
                    break
                tokens = allowed(grammar)
                tokens = tokens[tokens != tokenizer.eos_id] if len(tokens) > 1 else tokens
                grammar.accept(int(rng.choice(tokens.tolist())))
        except RequestError:
            pass
        assert time.monotonic() - start < 4


def test_what_takes_too_long_is_refused_and_others_are_compiled_later():
    hasty = GrammarCompiler(small_tokenizer("bytes"), seconds=0.005)
    with pytest.raises(RequestError, match=r"takes more than 0.005 s to compile"):
        hasty.json_schema({"type": "integer", "multipleOf": 99991})
    for _ in range(200):
        try:
            hasty.choice(["a"])
            break
        except RequestError:
            time.sleep(0.02)
    else:
        pytest.fail("never again")


def test_a_grammar_is_compiled_once_and_begins_anew_each_time():
    own = GrammarCompiler(small_tokenizer("bytes"))
    first = own.choice(["ab"])
    first.accept(ord("a"))
    again = own.choice(["ab"])
    assert allowed(again).tolist() == [ord("a")]
    assert allowed(first).tolist() == [ord("b")]


@pytest.mark.parametrize("choices", [[], [""], ["a", 3]])
def test_choices_must_be_texts(choices):
    with pytest.raises(RequestError, match="choice: expected one text or more"):
        compiler("bytes").choice(choices)


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'dovetail[serve]'")):
        GrammarCompiler(small_tokenizer("bytes"))
