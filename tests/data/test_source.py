# SPDX-License-Identifier: Apache-2.0
"""What holds for every source: documents by index, the same from any thread and in any process."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dovetail.config import from_json, to_json
from dovetail.data import DataError, Document, FileSource, JsonLines, ShippedCorpus, Source, TextFiles, source_of
from support.s3 import BUCKET, Proxy
from support.text_files import CASES, KINDS, SEPARATOR, TextPlace, put_object

TEXTS = [f"document {i}: " + "é" * i for i in range(40)]


def config_of(name: str) -> FileSource.Config:
    """The source that the ending of a file asks for."""
    cfg = source_of([name], "text")
    return cfg.set(separator=SEPARATOR) if isinstance(cfg, TextFiles.Config) else cfg


@pytest.fixture(params=KINDS)
def config(request, tmp_path, server):
    return config_of(TextPlace("local", tmp_path, server, "").case(request.param, TEXTS, tmp_path))


@pytest.mark.parametrize("case", CASES)
def test_documents_are_the_same_wherever_their_files_are(case, text_place, tmp_path):
    cfg = config_of(text_place.case(case, TEXTS, tmp_path))
    source = cfg.build()
    assert [document.content for document in source] == TEXTS
    assert source.place(39).startswith(cfg.files[0])
    copy: Source = pickle.loads(pickle.dumps(source))
    assert copy[17] == Document(TEXTS[17])
    assert cfg.build().size() == source.size()


def test_a_file_at_a_url_is_copied_once_and_again_when_it_changes(server, stores):
    cfg = JsonLines.Config(files=[server.put("a.jsonl", '{"text": "one"}\n')])
    assert [cfg.build()[0].content for _ in range(3)] == ["one"] * 3
    assert [asked for _, asked in server.requests] == ["bytes=0-63", "", "bytes=0-63", "bytes=0-63"]
    server.put("a.jsonl", '{"text": "two"}\n')
    assert cfg.build()[0].content == "two"
    server.tags = False
    for text in ("six", "ten"):  # Of one size, and nothing tells one from the other: each time it is read.
        server.put("a.jsonl", f'{{"text": "{text}"}}\n')
        assert cfg.build()[0].content == text


def test_a_copy_of_other_bytes_than_the_store_has_is_an_error_and_is_not_kept(stores, monkeypatch, tmp_path):
    put_object(stores, f"{BUCKET}/wrong/a.jsonl", b'{"text": "one"}\n' * 100)
    proxy = Proxy(stores)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    cfg = JsonLines.Config(files=[f"s3://{BUCKET}/wrong/a.jsonl"])
    cfg.build()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    requests = len(proxy.requests)
    proxy.fault = lambda method, path: "wrong" if len(proxy.requests) == requests + 2 else None
    with pytest.raises(DataError, match=r"what came is not what the store has: its MD5 is \w+, expected \w+\."):
        cfg.build()
    assert [path.name for path in (tmp_path / "other" / "dovetail" / "data").iterdir()] == ["lock"]
    assert len(cfg.build()) == 100
    proxy.close()


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
    (name,) = config.files
    files = Path(name).glob("*.arrow") if os.path.isdir(name) else [Path(name)]
    assert config.build().size() == sum(file.stat().st_size for file in files)


def test_blocks_if_any_cover_all_documents(config):
    blocks = config.build().blocks()
    assert blocks is None or blocks.sum() == len(TEXTS)


def test_config_survives_json(config):
    assert from_json(to_json(config)) == config
    assert from_json(to_json(ShippedCorpus.Config(split="held-out"))) == ShippedCorpus.Config(split="held-out")
