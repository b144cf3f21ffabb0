# SPDX-License-Identifier: Apache-2.0
"""Files at URLs: what comes is what the store has, whatever breaks on the way; what is not is an error that says so."""

import logging
import random

import pytest

from dovetail.config import ConfigError
from dovetail.data import DataError
from dovetail.data import _http as http
from dovetail.data._file import File
from dovetail.data._files import find_files, open_file, open_stream

DATA = random.Random(0).randbytes(300_000)


def file_at(url: str) -> File:
    (found,) = find_files([url], "source.files")
    return found


def read_in_parts(file: File, block: int = 50_000) -> bytes:
    with open_file(file, block) as f:
        return b"".join(iter(lambda: f.read(7_000), b""))


def read_through(file: File) -> bytes:
    with open_stream(file) as f:
        return f.read()


READERS = [read_in_parts, read_through]


def test_what_is_known_of_a_file_comes_with_its_first_bytes(server):
    file = file_at(server.put("a.jsonl", DATA))
    assert (file.size, file.head, file.ranges) == (len(DATA), DATA[:64], True)
    assert file.version.startswith('ETag "')
    assert server.requests == [("/a.jsonl", "bytes=0-63")]


@pytest.mark.parametrize("read", READERS)
def test_bytes_are_those_of_the_store(server, read):
    assert read(file_at(server.put("a.txt", DATA))) == DATA


def test_a_part_is_read_without_what_is_around_it(server):
    file = file_at(server.put("a.txt", DATA))
    with open_file(file, 1000) as f:
        assert f.seek(-10, 2) == len(DATA) - 10
        assert f.read() == DATA[-10:]
        f.seek(1234)
        assert f.read(3000) == DATA[1234:4234]
    assert server.sent < 6000


@pytest.mark.parametrize("fault", ["busy", "cut", "short", "long", "reset", "range"])
def test_errors_that_pass_are_tried_again(server, fault):
    url = server.put("a.txt", DATA)
    server.first(2, fault)
    file = file_at(url)
    server.first(2, fault, after=1)
    assert read_in_parts(file) == DATA
    assert len(server.requests) == 3 + 8


def test_a_body_longer_than_was_said_does_not_reach_what_is_asked_next(server):
    file = file_at(server.put("a.txt", DATA))
    server.first(3, "extra")
    assert read_in_parts(file) == DATA


@pytest.mark.parametrize("fault", ["busy", "cut", "reset"])
def test_errors_that_pass_are_tried_again_where_all_is_read_through(server, fault):
    file = file_at(server.put("a.txt", DATA))
    server.first(2, fault)
    assert read_through(file) == DATA
    assert len(server.requests) == 1 + 3


def test_what_is_read_through_goes_on_where_it_broke(server):
    file = file_at(server.put("a.txt", DATA))
    server.first(1, "cut")
    assert read_through(file) == DATA
    assert [asked for _, asked in server.requests[1:]] == ["", f"bytes={len(DATA) // 2}-{len(DATA) - 1}"]


def test_a_server_that_stands_still_is_asked_again(server, monkeypatch):
    monkeypatch.setattr(http, "STALL", 0.1)
    file = file_at(server.put("a.txt", DATA))
    server.first(2, "stall")
    assert read_in_parts(file) == DATA


@pytest.mark.parametrize(
    "fault, why",
    [
        ("busy", "HTTP 503 Service Unavailable"),
        ("short", "the server sent 49999 of 50000 bytes"),
        ("long", "the server sent more than 50000 of 50000 bytes"),
        ("range", "the server sent 'bytes 50001-100000/300000' for bytes 50000-99999"),
        ("whole", "the server sent all of the file, not the part that was asked for"),
    ],
)
def test_errors_that_stay_end_after_a_number_of_tries_and_are_said_seldom(server, caplog, fault, why):
    file = file_at(server.put("a.txt", DATA))
    server.first(1000, fault, after=1)
    with caplog.at_level(logging.WARNING, "dovetail"), pytest.raises(DataError) as e:
        read_in_parts(file)
    assert str(e.value) == (
        f"{file.path}: cannot be read: {why}. Tried 8 times.\n  See that the server answers, and run this again."
    )
    assert len(server.requests) == 2 + http.TRIES
    assert [record.message for record in caplog.records] == [
        f"{file.path}: {why}. It is tried again (reads of raw text that failed so far: 1)"
    ]


def test_pauses_grow_to_a_bound_and_are_never_the_same(server, monkeypatch):
    pauses = []
    monkeypatch.setattr(http, "_FIRST", 1.0)
    monkeypatch.setattr("time.sleep", pauses.append)
    server.first(1000, "busy")
    with pytest.raises(DataError, match="Tried 8 times"):
        file_at(server.put("a.txt", DATA))
    bounds = [1, 2, 4, 8, 10, 10, 10]
    assert len(pauses) == len(set(pauses)) == len(bounds)
    assert all(bound / 2 <= pause <= bound for pause, bound in zip(pauses, bounds, strict=True))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("how", ["same size", "longer", "gone"])
def test_a_file_that_changes_is_named_and_never_mixed_with_what_it_was(server, read, how):
    url = server.put("a.jsonl", DATA)
    file = file_at(url)

    def change(number, path):
        if number == 2:
            server.files["a.jsonl"] = {"same size": DATA[::-1], "longer": DATA + b"x", "gone": b""}[how]
            if how == "gone":
                del server.files["a.jsonl"]
        return "cut" if number == 1 and read is read_through else None

    server.fault = change
    expected = {
        "same size": r'is another one than when this began: ETag "\w+", and was ETag "\w+"\. Do not change data in use',
        "longer": "has 300001 bytes, and had 300000 when this began",
        "gone": "is there no more. Bring it back",
    }[how]
    with pytest.raises(DataError, match=expected) as e:
        read(file)
    assert str(e.value).startswith(f"{url}: ")


@pytest.mark.parametrize("tags", [True, False])
def test_a_server_without_ranges_is_read_from_start_to_end(server, tags):
    server.ranges, server.tags = False, tags
    file = file_at(server.put("a.txt", DATA))
    assert not file.ranges
    server.first(1, "cut")
    assert read_through(file) == DATA
    assert [asked for _, asked in server.requests[1:]] == ["", ""]  # What is known is read over.


def test_a_server_that_does_not_say_how_long_a_file_is_is_named(server):
    server.ranges = server.lengths = False
    url = server.put("a.txt", DATA)
    with pytest.raises(DataError, match=r"the server says neither how long it is nor gives parts of it\. Get the file"):
        file_at(url)


def test_a_file_that_is_not_there_or_empty_is_an_error_at_once(server):
    with pytest.raises(ConfigError, match=rf"source\.files: there is no file '{server.url}/no.txt'\."):
        file_at(f"{server.url}/no.txt")
    with pytest.raises(DataError, match=r"the file is empty\. Remove it, or leave it out of source\.files"):
        file_at(server.put("a.txt", b""))
    with pytest.raises(ConfigError, match=r"servers of HTTP cannot be asked what they have\. Name each file"):
        file_at(f"{server.url}/*.jsonl")


def test_a_server_that_is_not_there_is_an_error_after_the_tries(server):
    url = server.put("a.txt", DATA)
    server.close()
    with pytest.raises(DataError, match=r"cannot be read: .*refused. Tried 8 times") as e:
        file_at(url)
    assert "0x" not in str(e.value)


def test_a_server_that_is_not_what_it_should_be_is_not_asked_again(server):
    with pytest.raises(DataError, match=r"https://127.*/a\.txt: cannot be read: .*SSL"):
        file_at(server.url.replace("http:", "https:") + "/a.txt")
    server.moved["loop.txt"] = "loop.txt"
    with pytest.raises(DataError, match=r"/loop\.txt: cannot be read: .*redirect"):
        file_at(f"{server.url}/loop.txt")


def test_what_has_moved_is_found(server):
    server.put("there", DATA)
    server.moved["here.jsonl"] = "there"
    file = file_at(f"{server.url}/here.jsonl")
    assert read_in_parts(file) == read_through(file) == DATA


def test_a_page_that_lists_a_directory_is_not_taken_for_text(server):
    server.put("", "<html>")
    with pytest.raises(ConfigError, match=r"there is no file 'http://.*/'"):
        file_at(f"{server.url}/")


def test_what_signs_an_address_is_in_no_message_and_passwords_are_refused(server):
    file = file_at(server.put("a.txt", DATA) + "?X-Amz-Signature=secret")
    assert file.name == f"{server.url}/a.txt"
    assert read_in_parts(file) == DATA
    server.files.clear()
    with pytest.raises(DataError) as e:
        read_in_parts(file)
    assert "secret" not in str(e.value)
    with pytest.raises(ConfigError, match="a name or a password in a URL would be kept") as refused:
        file_at("https://me:secret@example.com/a")
    assert "secret" not in str(refused.value)


def test_other_schemes_are_refused_with_those_that_are_known():
    with pytest.raises(ConfigError, match="files are read from paths, s3://, gs://, https:// and http://"):
        file_at("hdfs://cluster/a")
