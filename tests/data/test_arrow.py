# SPDX-License-Identifier: Apache-2.0
"""Arrow files: streams and files, what `datasets` saves, and each way in which one can be wrong."""

import pyarrow as pa
import pytest

from dovetail.config import ConfigError
from dovetail.data import Arrow, DataError, source_of
from support.text_files import PACK, arrow_stream, saved_dataset

TEXTS = [f"document {i}" for i in range(20)]


def contents(source) -> list:
    return [source[i].content for i in range(len(source))]


def error_of(call) -> str:
    with pytest.raises((ConfigError, DataError)) as e:
        call()
    return str(e.value)


def test_what_arrow_calls_a_file_is_read_like_a_stream(tmp_path):
    table = pa.table({"text": TEXTS})
    file = str(tmp_path / "a.arrow")
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=6)
    assert contents(Arrow.Config(files=[file]).build()) == TEXTS


def test_token_ids_are_documents_too(tmp_path):
    schema = pa.schema([("ids", pa.list_(pa.int32()))])
    file = str(tmp_path / "a.arrow")
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.table({"ids": [[1, 2], [3]]}, schema=schema))
    assert [ids.tolist() for ids in contents(Arrow.Config(files=[file], column="ids").build())] == [[1, 2], [3]]
    assert error_of(Arrow.Config(files=[file], column="idx").build) == (
        f"Arrow.Config.column: {file} has no column 'idx'. Did you mean 'ids'?"
    )


def test_documents_are_shuffled_one_by_one(write):
    assert Arrow.Config(files=[write("a.arrow", arrow_stream(TEXTS))]).build().blocks() is None


def test_a_directory_of_a_saved_data_set_is_a_source(tmp_path, write):
    (tmp_path / "saved").mkdir()
    for name, data in saved_dataset("saved", TEXTS, shards=3).items():
        write(name, data)
    cfg = source_of([str(tmp_path / "saved")], "text")
    assert isinstance(cfg, Arrow.Config)
    assert contents(cfg.build()) == TEXTS
    assert cfg.build().place(19) == f"{tmp_path}/saved/data-00002-of-00003.arrow: row 6"


def test_a_compressed_file_is_unpacked(write, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for ending, pack in PACK.items():
        file = write(f"a.arrow.{ending}", pack(arrow_stream(TEXTS)))
        assert contents(Arrow.Config(files=[file]).build()) == TEXTS


@pytest.mark.parametrize(
    "content, message",
    [
        (b"no arrow at all" * 10, "after 0 rows: not a file of Arrow that can be read: "),
        (arrow_stream(TEXTS)[:900], "not a file of Arrow that can be read: "),
        (arrow_stream([]), "the table has no rows. Remove the file, or leave it out."),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_it(write, content, message):
    file = write("a.arrow", content)
    found = error_of(Arrow.Config(files=[file]).build)
    assert found.startswith(f"{file}: ")
    assert message in found
