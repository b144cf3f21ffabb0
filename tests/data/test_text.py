# SPDX-License-Identifier: Apache-2.0
"""Plain text: separators, and documents read in parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data import DataError, TextFiles


def build(file: str, **fields) -> TextFiles:
    return TextFiles.Config(files=[file], **fields).build()


def texts(source: TextFiles) -> list:
    return [source[i].content for i in range(len(source))]


def test_without_separator_a_file_is_one_document_as_it_is(write):
    assert texts(build(write("a.txt", "\none\r\n\n two "))) == ["\none\r\n\n two "]


def test_byte_order_mark_is_not_text(write):
    assert texts(build(write("a.txt", b"\xef\xbb\xbfone"))) == ["one"]


def test_separator_splits_and_documents_of_white_space_do_not_count(write):
    file = write("a.txt", "==one==\n ==two==== three")
    source = build(file, separator="==")
    assert texts(source) == ["one", "two", " three"]


def test_place_is_the_line_where_a_document_starts(write):
    file = write("a.txt", "one\nmore\n---\ntwo")
    source = build(file, separator="---\n")
    assert [source.place(0), source.place(1)] == [f"{file}:1", f"{file}:4"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="|")), min_size=1))
def test_split_is_that_of_python(tmp_path_factory, documents):
    expected = [text for text in documents if text.encode().strip()]
    file = tmp_path_factory.mktemp("text") / "a.txt"
    file.write_bytes("|".join(["x", *documents]).encode())
    assert texts(build(str(file), separator="|")) == ["x", *expected]


@given(st.text(st.sampled_from("ab \né€𝄞"), min_size=1), st.integers(4, 12))
def test_long_document_comes_in_parts_that_make_it_up(tmp_path_factory, text, limit):
    file = tmp_path_factory.mktemp("text") / "a.txt"
    file.write_bytes(("x" + text).encode())
    source = build(str(file), max_bytes=limit)
    parts = [source[i] for i in range(len(source))]
    assert "".join(str(part.content) for part in parts) == "x" + text
    assert all(0 < len(str(part.content).encode()) <= limit for part in parts)
    assert [part.starts for part in parts] == [True] + [False] * (len(parts) - 1)
    assert [part.ends for part in parts] == [False] * (len(parts) - 1) + [True]


def test_part_ends_with_a_line_or_else_before_a_space_or_else_where_it_must(write):
    def parts(text):
        return texts(build(write("a.txt", text), max_bytes=8))

    assert parts("one two\nthree") == ["one two\n", "three"]
    assert parts("one two three") == ["one two", " three"]
    assert parts("onetwothree") == ["onetwoth", "ree"]
    assert parts("a\nbcdefghij") == ["a\nbcdefg", "hij"]  # Not in the first half: parts would get short.


def test_text_that_is_not_utf8_is_an_error_with_the_byte_in_the_file(write):
    file = write("a.txt", b"fine|caf\xe9 au lait")
    source = build(file, separator="|")
    assert source[0].content == "fine"
    with pytest.raises(DataError) as e:
        source[1]
    assert str(e.value).startswith(f"{file}: not UTF-8 at byte 8: found 0xe9 (invalid continuation byte).\n")


def test_file_of_white_space_is_an_error(write):
    file = write("a.txt", " \n\t")
    with pytest.raises(DataError) as e:
        build(file)
    assert str(e.value) == f"{file}: has no documents, only white space. Remove it, or leave it out."


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"separator": ""}, "TextFiles.Config.separator: is empty. Use None for one document per file."),
        ({"max_bytes": 3}, "TextFiles.Config.max_bytes: is 3, less than a character may take (4)."),
    ],
)
def test_impossible_settings_are_config_errors(write, fields, message):
    with pytest.raises(ConfigError) as e:
        build(write("a.txt", "a"), **fields)
    assert str(e.value) == message
