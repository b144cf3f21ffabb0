# SPDX-License-Identifier: Apache-2.0
"""What holds for every source: documents by index, the same from any thread and in any process."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from dovetail.config import from_json, to_json
from dovetail.data import ArrayRecord, Document, JsonLines, Parquet, ShippedCorpus, Source, TextFiles

TEXTS = [f"document {i}: " + "é" * i for i in range(40)]


def text_config(tmp_path):
    (tmp_path / "a.txt").write_text("|".join(TEXTS))
    return TextFiles.Config(files=[str(tmp_path / "a.txt")], separator="|")


def parquet_config(tmp_path):
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet", row_group_size=3)
    return Parquet.Config(files=[str(tmp_path / "a.parquet")])


def array_record_config(tmp_path):
    writer = ArrayRecordWriter(str(tmp_path / "a.array_record"), "group_size:1")
    for text in TEXTS:
        writer.write(text.encode())
    writer.close()
    return ArrayRecord.Config(files=[str(tmp_path / "a.array_record")])


@pytest.fixture(params=["jsonl", "text", "parquet", "array_record"])
def config(request, tmp_path, write):
    if request.param == "jsonl":
        return JsonLines.Config(files=[write("a.jsonl", [{"text": text} for text in TEXTS])])
    make = {"text": text_config, "parquet": parquet_config, "array_record": array_record_config}
    return make[request.param](tmp_path)


def test_documents_are_read_by_index_in_any_order(config):
    source = config.build()
    assert len(source) == len(TEXTS)
    for i in [17, 0, 39, 17]:
        assert source[i] == Document(TEXTS[i])


def test_iterating_stops_at_the_end(config):
    assert [document.content for document in config.build()] == TEXTS


@pytest.mark.parametrize("index", [-1, 40])
def test_index_out_of_range_is_an_index_error(config, index):
    with pytest.raises(IndexError, match=f"document {index} of 40"):
        config.build()[index]


def test_source_survives_pickle_with_files_open(config):
    source = config.build()
    assert source[3] == Document(TEXTS[3])
    copy: Source = pickle.loads(pickle.dumps(source))
    assert [copy[i].content for i in range(len(copy))] == TEXTS


def test_threads_may_read_at_once(config):
    source = config.build()
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda i: source[i % 40].content, range(400)))
    assert got == TEXTS * 10


def test_size_is_that_of_the_files(config):
    assert config.build().size() == os.path.getsize(config.files[0])


def test_blocks_if_any_cover_all_documents(config):
    blocks = config.build().blocks()
    assert blocks is None or blocks.sum() == len(TEXTS)


def test_config_survives_json(config):
    assert from_json(to_json(config)) == config
    assert from_json(to_json(ShippedCorpus.Config(split="held-out"))) == ShippedCorpus.Config(split="held-out")
