# SPDX-License-Identifier: Apache-2.0
"""Files of JSON lines."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.progress import json_lines, json_object


def test_what_is_torn_or_no_object_is_passed_over(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"a": 1}\n{"a": \xff\n[2]\n\n{"a": {"b": NaN}}\n' + b"[" * 100_000 + b'\n{"a": 3}\n{"a": 4')
    assert [each["a"] for each in json_lines(file)][0::2] == [1, 3]
    assert list(json_lines(tmp_path / "nowhere")) == list(json_lines(tmp_path)) == []


def test_only_the_end_of_a_file_may_be_read(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"n": {n}}}\n' for n in range(100)))
    assert [each["n"] for each in json_lines(file, tail=25)] == [98, 99]
    assert len(list(json_lines(file, tail=1 << 20))) == 100


@given(st.binary())
def test_any_line_is_an_object_or_none(line: bytes):
    assert json_object(line) is None or isinstance(json_object(line), dict)
