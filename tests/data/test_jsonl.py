# SPDX-License-Identifier: Apache-2.0
"""JSON Lines: documents, blank lines, and each way a record can be wrong."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import DataError, JsonLines
from dovetail.data import _jsonl as module


def texts(source) -> list:
    return [source[i].content for i in range(len(source))]


def error_of(call) -> str:
    with pytest.raises(DataError) as e:
        call()
    return str(e.value)


@pytest.mark.parametrize(
    "content",
    [
        b'{"text": "a"}\n{"text": "b"}\n',
        b'{"text": "a"}\n{"text": "b"}',  # No end of line at the end.
        b'\n\n{"text": "a"}\n\n{"text": "b"}\n\n\n',
        b'{"text": "a"}\r\n\r\n{"text": "b"}\r\n',
        b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n',  # A byte order mark.
        b' \n{"text": "a"}\n\t\n{"text": "b"}\n',
        b'{"text": "a"}\n  \t \r\n   {"text": "b"}\n   ',  # White space of any length is a blank line.
        b'\xef\xbb\xbf\n{"text": "a"}\n{"text": "b"}',
    ],
)
def test_each_line_that_is_not_blank_is_a_document(write, content):
    assert texts(JsonLines.Config(files=[write("a.jsonl", content)]).build()) == ["a", "b"]


@given(st.lists(st.one_of(st.text(), st.lists(st.integers(0, 2**31 - 1))), min_size=1), st.integers(1, 40))
def test_documents_come_back_whatever_they_hold(tmp_path_factory, documents, chunk):
    file = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    lines = [json.dumps({"body": document}, ensure_ascii=i % 2 == 0) for i, document in enumerate(documents)]
    file.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)  # Line ends are found across the chunks in which a file is scanned.
        source = JsonLines.Config(files=[str(file)], field="body").build()
    got = [content if isinstance(content, str) else content.tolist() for content in texts(source)]
    assert got == documents


def test_index_runs_over_all_files(write):
    files = [write("a.jsonl", [{"text": "0"}, {"text": "1"}]), write("b.jsonl", [{"text": "2"}])]
    source = JsonLines.Config(files=files).build()
    assert texts(source) == ["0", "1", "2"]
    assert [source.place(i) for i in range(3)] == [f"{files[0]}:1", f"{files[0]}:2", f"{files[1]}:1"]


def test_place_counts_blank_lines(write):
    file = write("a.jsonl", '\n{"text": "a"}\n\n{"text": "b"}\n')
    source = JsonLines.Config(files=[file]).build()
    assert [source.place(0), source.place(1)] == [f"{file}:2", f"{file}:4"]


def test_wrong_field_is_found_when_the_source_is_built_with_the_nearest_name(write):
    file = write("a.jsonl", [{"texts": "a", "id": 3}])
    build = JsonLines.Config(files=[file]).build
    assert error_of(build) == f"{file}:1: the record has no field 'text'. Did you mean 'texts'?"
    build = JsonLines.Config(files=[file], field="content").build
    assert error_of(build) == f"{file}:1: the record has no field 'content'. It has: texts, id."


@pytest.mark.parametrize(
    "line, problem",
    [
        ('{"text": null}', "field 'text' is null. Expected text, or a list of token ids."),
        ('{"text": NaN}', "field 'text' is nan (float). Expected text, or a list of token ids."),
        ('{"text": 3}', "field 'text' is 3 (int). Expected text, or a list of token ids."),
        ('{"text": [1, 2.5]}', "field 'text' is [1, 2.5] (list). Expected text, or a list of token ids."),
        ('{"text": [true]}', "field 'text' is [True] (list). Expected text, or a list of token ids."),
        ('{"text": [[1]]}', "field 'text' is [[1]] (list). Expected text, or a list of token ids."),
        ('{"id": 1}', "the record has no field 'text'. It has: id."),
        ("{}", "the record has no field 'text'. It has: nothing."),
        ('["a"]', "expected a JSON object, found ['a'] (list)."),
        ("{text: 1}", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."),
    ],
)
def test_bad_record_is_an_error_with_file_and_line(write, line, problem):
    file = write("a.jsonl", f'{{"text": "fine"}}\n\n{line}\n')
    source = JsonLines.Config(files=[file]).build()
    assert error_of(lambda: source[1]) == f"{file}:3: {problem}"


def test_line_that_is_not_utf8_is_an_error_with_the_byte(write):
    file = write("a.jsonl", b'{"text": "fine"}\n{"text": "caf\xe9"}\n')
    source = JsonLines.Config(files=[file]).build()
    assert error_of(lambda: source[1]) == (
        f"{file}: not UTF-8 at byte 30: found 0xe9 (invalid continuation byte).\n"
        "  Convert the file to UTF-8, for example with iconv."
    )


def test_file_of_blank_lines_is_an_error(write):
    file = write("a.jsonl", "\n\r\n\n")
    message = f"{file}: has no documents, only blank lines. Remove it, or leave it out."
    assert error_of(JsonLines.Config(files=[file]).build) == message


def test_token_ids_are_an_integer_array(write):
    content = JsonLines.Config(files=[write("a.jsonl", [{"text": [3, 1, 2]}])]).build()[0].content
    assert isinstance(content, np.ndarray)
    assert content.dtype.kind == "i"
    assert content.tolist() == [3, 1, 2]
