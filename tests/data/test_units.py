# SPDX-License-Identifier: Apache-2.0
"""What holds for every kind of file that is prepared, wherever it is: the same documents, however it is cut."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from data.test_prepare import BYTES, TEXTS, config, documents, ended
from dovetail.config import ConfigError
from dovetail.data import DataError, Preparation
from dovetail.data import _units as units
from dovetail.data._files import find_files
from support.s3 import BUCKET
from support.text_files import CASES, SEPARATOR, TextPlace, files_of, saved_dataset, saved_splits


def cut(case: str, name: str, to, **fields) -> Preparation.Config:
    """Prepares a file in several units."""
    return config([name], to, separator=SEPARATOR, shard_bytes=50_000 if case == "array_record" else 500, **fields)


@pytest.mark.parametrize("case", CASES)
def test_documents_are_the_same_for_every_kind_of_file_in_every_place(case, text_place, tmp_path):
    cfg = cut(case, text_place.case(case, TEXTS, tmp_path), tmp_path / "out")
    made = cfg.build().run()
    assert documents(tmp_path / "out") == ended(TEXTS)
    assert cfg.build().run() == made


def test_hosts_and_workers_prepare_from_a_store_what_one_does(tmp_path, server, stores):
    url = server.put("a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    results = []
    for workers in (0, 2):
        config([url], tmp_path / str(workers), shard_bytes=400, workers=workers).build().run()
        results.append(documents(tmp_path / str(workers)))
    assert results == [ended(TEXTS)] * 2


def test_of_a_file_at_a_url_no_unit_reads_more_than_its_own(tmp_path, server, monkeypatch):
    monkeypatch.setattr(units, "_SOME", 100)
    monkeypatch.setattr("dovetail.data._separated._NEAR", 100)
    monkeypatch.setattr("dovetail.data._separated._CHUNK", 200)
    monkeypatch.setattr(units, "_BLOCK", 1000)
    lines = "".join(json.dumps({"text": text * 10}) + "\n" for text in TEXTS)
    url = server.put("a.jsonl", lines)
    made = config([url], tmp_path / "out", shard_bytes=5000).build()
    server.requests.clear()
    before = server.sent
    made.run()
    assert documents(tmp_path / "out") == ended([text * 10 for text in TEXTS])
    ranges = [asked.removeprefix("bytes=").split("-") for _, asked in server.requests]
    assert max(int(last) - int(first) + 1 for first, last in ranges) == 1000  # No more than that is in memory.
    found = len(lines) // 5000 + 1
    assert len(lines) <= server.sent - before <= len(lines) + found * 2 * 800  # To find where lines start and end.


def test_of_a_table_at_a_url_the_column_is_read_and_not_the_others(tmp_path, server):
    other = [f"{i}" * 50_000 for i in range(len(TEXTS))]
    table = pa.table({"other": other, "text": TEXTS, "more": other})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10, compression="none", use_dictionary=False)
    url = server.put("a.parquet", (tmp_path / "a.parquet").read_bytes())
    config([url], tmp_path / "out").build().run()
    assert documents(tmp_path / "out") == ended(TEXTS)
    assert server.sent < len(server.files["a.parquet"]) // 4


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("parquet", "saved")])
def test_servers_without_ranges_are_read_from_start_to_end(case, tmp_path, server, stores):
    server.ranges = False
    name = TextPlace("http", tmp_path, server, stores).case(case, TEXTS, tmp_path)
    cut(case, name, tmp_path / "out").build().run()
    assert documents(tmp_path / "out") == ended(TEXTS)


def test_a_table_at_a_server_without_ranges_is_named(tmp_path, server):
    server.ranges = False
    url = server.put("a.parquet", b"PAR1")
    with pytest.raises(DataError, match=r"the server only gives all of it, and Parquet is read here and there\. Get"):
        config([url], tmp_path / "out").build()


@pytest.mark.parametrize("case", ["jsonl", "jsonl.gz", "jsonl.zst", "txt", "parquet", "arrow", "array_record"])
@pytest.mark.parametrize("fault", ["busy", "cut", "reset"])
def test_what_passes_is_not_seen_in_what_is_prepared(case, fault, tmp_path, server, stores):
    name = TextPlace("http", tmp_path, server, stores).case(case, TEXTS, tmp_path)
    server.fault = lambda number, path: fault if number % 3 == 0 else None
    cut(case, name, tmp_path / "out").build().run()
    assert documents(tmp_path / "out") == ended(TEXTS)


@pytest.mark.parametrize("case", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "arrow", "array_record"])
def test_a_file_at_a_url_that_changes_under_the_run_is_named(case, tmp_path, server, stores):
    name = TextPlace("http", tmp_path, server, stores).case(case, TEXTS, tmp_path)
    made = cut(case, name, tmp_path / "out").build()
    server.tag = lambda name: "another"
    with pytest.raises(DataError) as e:
        made.run()
    assert str(e.value).startswith(f'{name}: is another one than when this began: ETag "another", and was ETag "')
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("place", ["local", "http"])
def test_hosts_whose_files_differ_are_told_so(place, tmp_path, server, write):
    lines = json.dumps({"text": "one"}) + "\n"
    name = write("a.jsonl", lines) if place == "local" else server.put("a.jsonl", lines)
    cfg = config([name], tmp_path / "out")
    cfg.build()._start()
    if place == "local":
        os.utime(name, ns=(0, 0))
    else:
        server.put("a.jsonl", lines.replace("one", "two"))
    with pytest.raises(ConfigError, match=r"is being prepared from something else:\n  sources\[0\]\.version was '"):
        cfg.build().run()


def test_a_local_file_that_is_replaced_by_one_of_its_size_is_named(write, tmp_path):
    made = config([write("a.jsonl", '{"text": "one"}\n')], tmp_path / "out").build()
    os.utime(write("a.jsonl", '{"text": "two"}\n'), ns=(1, 1))
    with pytest.raises(
        DataError, match=r"a\.jsonl: is another one than when this began: changed 1, and was changed \d+"
    ):
        made.run()


def test_a_data_set_with_several_splits_asks_for_one(text_place, tmp_path):
    text_place.put(saved_splits("all", {"train": TEXTS, "test": TEXTS[:3]}))
    name = text_place.at("all")
    with pytest.raises(ConfigError) as e:
        config([name], tmp_path / "out").build(path="data prepare")
    assert str(e.value) == (
        f"data prepare.sources: {name!r} has 2 splits. Name one of them: '{name}/train', '{name}/test'."
    )
    config([f"{name}/test"], tmp_path / "out").build().run()
    assert documents(tmp_path / "out") == ended(TEXTS[:3])


def test_a_data_set_with_one_split_is_that(text_place, tmp_path):
    text_place.put(saved_splits("all", {"train": TEXTS}))
    config([text_place.at("all")], tmp_path / "out").build().run()
    assert documents(tmp_path / "out") == ended(TEXTS)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"dataset/state.json": b"{}"},
            r"dataset/state\.json: is not as save_to_disk writes it: KeyError\('_data_files'\)",
        ),
        ({"dataset/state.json": b'{"_data_files": []}'}, r"dataset: the data set has no files\. Leave it out of"),
        (
            {"dataset/state.json": b'{"_data_files": [{"filename": "no.arrow"}]}'},
            r"no\.arrow: is missing, and .*/dataset/state\.json names it\. Save the data set again|there is no file",
        ),
        (
            {"dataset/state.json": b'{"_data_files": [{"filename": "a"}], "_indices_files": [{"filename": "b"}]}'},
            r"selects rows of its files by indices, as older versions of datasets wrote it",
        ),
        (
            {"dataset/data-00001-of-00002.arrow": b"\xff\xff\xff\xff" + bytes(80)},
            "not a file of Arrow that can be read",
        ),
    ],
)
@pytest.mark.parametrize("text_place", ["local", "http"], indirect=True)
def test_a_data_set_that_is_not_whole_is_one_clear_error(text_place, tmp_path, change, message):
    text_place.put({**saved_dataset("dataset", TEXTS), **change})
    with pytest.raises((ConfigError, DataError), match=message):
        config([text_place.at("dataset")], tmp_path / "out").build().run()


def test_globs_list_what_is_in_a_bucket(stores, tmp_path, server):
    place = TextPlace("s3", tmp_path, server, stores)
    names = ["web/b.jsonl", "web/a.jsonl", "web/deep/c.jsonl", "web/d.txt", "other/e.jsonl", "web/f [1].jsonl"]
    place.put({name: json.dumps({"text": name}).encode() for name in names})

    def found(*patterns):
        made = find_files([place.at(p) for p in patterns], "sources")
        return [file.path.removeprefix(place.at("")) for file in made]

    assert found("web/*.jsonl") == ["web/a.jsonl", "web/b.jsonl", "web/f [1].jsonl"]
    assert found("web/f [1].jsonl") == ["web/f [1].jsonl"]
    assert found("**/*.jsonl") == sorted(name for name in names if name.endswith(".jsonl"))
    assert found("web/[!ab].*", "web/?.jsonl") == ["web/d.txt", "web/a.jsonl", "web/b.jsonl"]
    assert {f"{place.at(name)}" for name in names if name.endswith("l")} <= {
        file.path for file in find_files([f"s3://{BUCKET}/*/*/*.jsonl", f"s3://{BUCKET}/*/web/deep/*"], "sources")
    }
    with pytest.raises(ConfigError, match=r"sources: 's3://.*/web/a\.jsonl' is named twice, by "):
        found("web/a.jsonl", "web/*.jsonl")
    with pytest.raises(ConfigError, match=r"sources: no file matches 's3://.*/\*\.parquet'\."):
        found("web/*.parquet")
    with pytest.raises(
        ConfigError, match=r"there is no file 's3://.*/web/aa\.jsonl'\. Did you mean '.*/web/a\.jsonl'\?"
    ):
        found("web/aa.jsonl")
    with pytest.raises(ConfigError, match=r"sources: there is no bucket 'absent', as s3://absent/a has it\."):
        find_files(["s3://absent/a"], "sources")


def test_a_list_of_json_is_said_to_be_one(write, tmp_path):
    with pytest.raises(
        DataError, match=r"a\.json: is a list of JSON\. Expected an object in each line\.\n.*jq -c '\.\[\]' a"
    ):
        config([write("a.json", '[{"text": "one"}]')], tmp_path / "out").build()


@pytest.mark.parametrize("kind", ["json", "uint16"])
def test_records_hold_what_is_said(kind, tmp_path):
    writer = ArrayRecordWriter(str(tmp_path / "a.array_record-00000-of-00001"), "group_size:1")
    for text in TEXTS:
        writer.write(json.dumps({"body": text}).encode() if kind == "json" else bytes(text, "utf-16-le"))
    writer.close()
    cfg = config([str(tmp_path / "*-of-*")], tmp_path / "out", records=kind, field="body", shard_bytes=50_000)
    cfg.build().run()
    assert documents(tmp_path / "out") == ended(TEXTS)


def test_a_kind_is_told_by_its_first_bytes_where_its_name_says_nothing(tmp_path, text_place):
    for case in ("parquet", "arrow", "array_record"):
        (data,) = files_of(case, TEXTS, tmp_path).values()
        text_place.put({f"{case}-without-ending": data})
        out = tmp_path / f"out-{case}"
        Preparation.Config(
            sources=[text_place.at(f"{case}-without-ending")], to=str(out), tokenizer=BYTES, workers=0
        ).build().run()
        assert documents(out) == ended(TEXTS)


def bad_text(kind: str, scratch) -> bytes:
    """A file whose second document is not UTF-8."""
    texts = [b"fine", b"caf\xe9", b"fine, too"]
    if kind == "array_record":
        writer = ArrayRecordWriter(str(scratch / "made"), "group_size:1")
        for text in texts:
            writer.write(text)
        writer.close()
    elif kind in ("parquet", "arrow"):
        table = pa.table({"text": pa.array(texts).view(pa.string())})
        if kind == "parquet":
            pq.write_table(table, scratch / "made")
        else:
            with pa.OSFile(str(scratch / "made"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
    else:
        lines = b"".join(b'{"text": "%b"}\n' % text for text in texts)
        (scratch / "made").write_bytes(lines if kind == "jsonl" else b"|".join(texts))
    return (scratch / "made").read_bytes()


@pytest.mark.parametrize(
    "kind, message",
    [
        ("jsonl", "not UTF-8 at byte 30: found 0xe9"),
        ("txt", "not UTF-8 at byte 8: found 0xe9"),
        ("parquet", "row 0 or one soon after it cannot be read: .*0xe9"),
        ("arrow", "row 0 or one soon after it cannot be read: .*0xe9"),
        ("array_record", "record 1: not UTF-8 at byte 3: found 0xe9"),
    ],
)
@pytest.mark.parametrize("text_place", ["local", "http"], indirect=True)
def test_text_that_is_not_utf8_is_an_error_that_names_file_and_place(text_place, tmp_path, kind, message):
    text_place.put({f"a.{kind}": bad_text(kind, tmp_path)})
    name = text_place.at(f"a.{kind}")
    with pytest.raises(DataError, match=message) as e:
        config([name], tmp_path / "out", separator=SEPARATOR).build().run()
    assert str(e.value).startswith(f"{name}: ")


@pytest.mark.parametrize("case", [case for case in CASES if case != "saved"])
def test_a_file_without_anything_in_it_is_an_error_before_anything_is_done(case, tmp_path, write):
    with pytest.raises(DataError, match=r"the file is empty\. Remove it, or leave it out of data prepare\.sources"):
        config([write(f"a.{case}", b"")], tmp_path / "out").build(path="data prepare")
    assert not (tmp_path / "out").exists()
