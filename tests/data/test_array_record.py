# SPDX-License-Identifier: Apache-2.0
"""ArrayRecord: text, JSON and token records, and each way a file can be wrong."""

import json

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from dovetail.data import ArrayRecord, DataError


@pytest.fixture
def records(tmp_path):
    def write_records(name: str, contents: list[bytes]) -> str:
        writer = ArrayRecordWriter(str(tmp_path / name), "group_size:1")
        for content in contents:
            writer.write(content)
        writer.close()
        return str(tmp_path / name)

    return write_records


def error_of(call) -> str:
    with pytest.raises(DataError) as e:
        call()
    return str(e.value)


def test_text_records_of_all_files_come_in_order(records):
    files = [records("a", [b"null", "é".encode()]), records("b", [b"two"])]
    source = ArrayRecord.Config(files=files).build()
    assert [source[i].content for i in range(len(source))] == ["null", "é", "two"]
    assert source.place(2) == f"{files[1]}: record 0"


def test_json_records_hold_the_document_in_a_field(records):
    file = records("a", [json.dumps({"body": body}).encode() for body in ("one", [1, 2])])
    source = ArrayRecord.Config(files=[file], records="json", field="body").build()
    assert source[0].content == "one"
    assert source[1].content.tolist() == [1, 2]


@pytest.mark.parametrize("kind", ["uint16", "uint32"])
def test_token_records_are_arrays_of_integers(records, kind):
    ids = np.array([1, 65535, 7], kind)
    file = records("a", [ids.astype(ids.dtype.newbyteorder("<")).tobytes()])
    assert ArrayRecord.Config(files=[file], records=kind).build()[0].content.tolist() == [1, 65535, 7]


def test_token_record_of_odd_size_is_an_error(records):
    file = records("a", [b"abc"])
    build = ArrayRecord.Config(files=[file], records="uint16").build
    assert error_of(build) == f"{file}: record 0: 3 bytes are not a whole number of uint16."


def test_json_record_without_the_field_is_an_error_with_the_nearest_name(records):
    file = records("a", [b'{"texts": "a"}'])
    build = ArrayRecord.Config(files=[file], records="json").build
    assert error_of(build) == f"{file}: record 0: the record has no field 'text'. Did you mean 'texts'?"


def test_record_that_is_not_json_is_an_error(records):
    file = records("a", [b"{"])
    build = ArrayRecord.Config(files=[file], records="json").build
    assert error_of(build).startswith(f"{file}: record 0: not JSON: ")


def test_record_that_is_not_utf8_is_an_error(records):
    file = records("a", [b"fine", b"caf\xe9"])
    source = ArrayRecord.Config(files=[file]).build()
    assert error_of(lambda: source[1]).startswith(f"{file}: record 1: not UTF-8 at byte 3: found 0xe9")


def test_file_that_is_not_array_record_is_an_error(write):
    file = write("a", "hello " * 100)
    assert error_of(ArrayRecord.Config(files=[file]).build) == f"{file}: not an ArrayRecord file, or a damaged one."


def test_file_without_records_is_an_error(records):
    file = records("a", [])
    assert error_of(ArrayRecord.Config(files=[file]).build) == f"{file}: has no records. Remove it, or leave it out."


def test_damaged_record_is_an_error_with_its_place(records):
    file = records("a", [b"some text"] * 3)
    with open(file, "r+b") as f:
        f.seek(100)
        f.write(b"\xff\xff\xff\xff")
    source = ArrayRecord.Config(files=[file]).build()
    assert error_of(lambda: source[0]).startswith(f"{file}: record 0: cannot be read: ")
