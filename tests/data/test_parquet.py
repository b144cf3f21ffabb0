# SPDX-License-Identifier: Apache-2.0
"""Parquet: text and token columns, row groups, and each way a table can be wrong."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.config import ConfigError
from dovetail.data import DataError, Parquet


@pytest.fixture
def table(tmp_path):
    def write_table(name: str, columns: dict, **options) -> str:
        pq.write_table(pa.table(columns), tmp_path / name, **options)
        return str(tmp_path / name)

    return write_table


def error_of(call, kind: type[ValueError] = DataError) -> str:
    with pytest.raises(kind) as e:
        call()
    return str(e.value)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_text_of_all_row_groups_and_files_comes_in_order(table, kind):
    texts = [f"document {i} é" for i in range(7)]
    first = table("a.parquet", {"id": range(5), "text": pa.array(texts[:5]).cast(kind)}, row_group_size=2)
    second = table("b.parquet", {"id": range(2), "text": pa.array(texts[5:]).cast(kind)})
    source = Parquet.Config(files=[first, second]).build()
    assert [source[i].content for i in range(len(source))] == texts
    assert [source.place(0), source.place(4), source.place(5)] == [
        f"{first}: row 0",
        f"{first}: row 4",
        f"{second}: row 0",
    ]
    assert source.blocks().tolist() == [2, 2, 1, 2]


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.uint16()), pa.list_(pa.int64(), 2)])
def test_lists_of_integers_are_token_ids(table, kind):
    file = table("a.parquet", {"ids": pa.array([[1, 2], [30, 4]], kind)})
    source = Parquet.Config(files=[file], column="ids").build()
    assert [source[i].content.tolist() for i in range(2)] == [[1, 2], [30, 4]]


def test_missing_column_is_a_config_error_with_the_nearest_name(table):
    file = table("a.parquet", {"texts": ["a"], "id": [1]})
    build = Parquet.Config(files=[file]).build
    message = f"Parquet.Config.column: {file} has no column 'text'. Did you mean 'texts'?"
    assert error_of(build, ConfigError) == message
    build = Parquet.Config(files=[file], column="content").build
    message = f"Parquet.Config.column: {file} has no column 'content'. It has: texts, id."
    assert error_of(build, ConfigError) == message


@pytest.mark.parametrize("values", [[1.5], [[1.5]], [b"bytes"]])
def test_column_of_another_type_is_a_config_error(table, values):
    file = table("a.parquet", {"text": values})
    kind = pa.array(values).type
    assert error_of(Parquet.Config(files=[file]).build, ConfigError) == (
        f"Parquet.Config.column: column 'text' of {file} holds {pq.read_schema(file).field('text').type}. "
        "Expected text, or lists of token ids."
    ), kind


def test_null_is_an_error_with_file_and_row(table):
    file = table("a.parquet", {"text": ["a", "b", None]}, row_group_size=2)
    source = Parquet.Config(files=[file]).build()
    message = f"{file}: row 2: column 'text' is null. Expected text, or a list of token ids."
    assert error_of(lambda: source[2]) == message


def test_null_among_token_ids_is_an_error(table):
    file = table("a.parquet", {"text": [[1], [2, None]]})
    source = Parquet.Config(files=[file]).build()
    assert error_of(lambda: source[1]).startswith(f"{file}: row 1: column 'text' cannot be read: ")


def test_text_that_is_not_utf8_is_an_error_with_the_row(table):
    text = pa.array([b"fine", b"caf\xe9"]).cast(pa.string(), safe=False)
    file = table("a.parquet", {"text": text})
    source = Parquet.Config(files=[file]).build()
    assert source[0].content == "fine"
    assert error_of(lambda: source[1]).startswith(f"{file}: row 1: column 'text' cannot be read: 'utf-8' codec")


def test_file_that_is_not_parquet_is_an_error(write):
    file = write("a.parquet", "not a table, but more than a dozen bytes")
    assert error_of(Parquet.Config(files=[file]).build).startswith(f"{file}: not a Parquet file that can be read: ")


def test_table_without_rows_is_an_error(table):
    file = table("a.parquet", {"text": pa.array([], pa.string())})
    message = f"{file}: the table has no rows. Remove the file, or leave it out."
    assert error_of(Parquet.Config(files=[file]).build) == message


def test_flipped_bits_are_found_where_the_file_has_checksums(table):
    texts = [f"{i} of many whales" for i in range(50)]
    file = table("a.parquet", {"text": texts}, write_page_checksum=True, compression="none", use_dictionary=False)
    whole = Path(file).read_bytes()
    at = whole.index(b"17 of many")
    Path(file).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    source = Parquet.Config(files=[file]).build()
    message = error_of(lambda: source[0])
    assert message.startswith(f"{file}: row group 0 cannot be read: ")
    assert "CRC checksum verification failed" in message
    assert message.endswith("\n  Get the file again.")
