# SPDX-License-Identifier: Apache-2.0
"""Places for prepared data: a directory and a store of objects do the same, and say what they cannot do."""

import pytest

from dovetail.config import ConfigError
from dovetail.data import ByteTokenizer, DataError, Preparation, PreparedData
from dovetail.data._places import Range, open_place
from support.s3 import BUCKET, Proxy, environment


@pytest.fixture(params=["directory", "s3"])
def path(request, tmp_path, monkeypatch):
    """A place of each kind, with nothing in it."""
    if request.param == "directory":
        return str(tmp_path / "place")
    for name, value in environment(request.getfixturevalue("endpoint")).items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}"


def test_a_place_keeps_files(path):
    place = open_place(path, "to")
    assert place.is_empty()
    assert (place.read("a/b"), place.names()) == (None, [])
    place.write("a/b", b"0123456789")
    place.write("a/c/d", b"x")
    assert place.read_ranges([Range("a/b", 2, 5), Range("a/c/d", 0, 1)]) == [b"234", b"x"]
    assert place.read_all(["a/b", "no"]) == [b"0123456789", None]
    assert place.names("a") == ["b", "c/d"]
    assert not place.is_empty()
    place.delete("a/c/d")
    place.delete("a/c/d")
    assert place.names() == ["a/b"]


def test_of_those_who_create_a_file_one_is_told_so(path):
    one, other = open_place(path, "to"), open_place(path, "to")
    assert one.create("a/b", b"1")
    assert not other.create("a/b", b"2")
    assert other.need("a/b") == b"1"


def test_what_is_missing_or_short_is_named(path):
    place = open_place(path, "to")
    place.write("a", b"0123")
    with pytest.raises(DataError, match="/b: is missing"):
        place.need("b")
    with pytest.raises(DataError, match=r"/b: (is missing|cannot be read)"):
        place.read_ranges([Range("b", 0, 1)])
    with pytest.raises(DataError, match="/a: "):
        place.read_ranges([Range("a", 2, 6)])


def test_data_is_the_same_in_a_directory_and_in_a_store(path, tmp_path, write):
    file = write("a.jsonl", [{"text": f"document {i}"} for i in range(50)])
    there = Preparation.Config(sources=[file], tokenizer=ByteTokenizer.Config(), to=path, workers=0, shard_bytes=300)
    here = there.set(to=str(tmp_path / "here"))
    assert there.build().run() == here.build().run()
    one, other = open_place(path, "to"), open_place(here.to, "to")
    assert one.names() == other.names()
    assert [one.read(name) for name in one.names()] == [other.read(name) for name in other.names()]
    assert [p for _, found in PreparedData(path).problems() for p in found] == []


def test_a_store_that_fails_now_and_then_is_asked_again(endpoint, monkeypatch, tmp_path, write):
    proxy = Proxy(endpoint)
    for name, value in environment(proxy.endpoint).items():
        monkeypatch.setenv(name, value)
    file = write("a.jsonl", [{"text": f"document {i}"} for i in range(50)])
    path = f"s3://{BUCKET}/{tmp_path.name}"
    proxy.times(2, "503", "tokens")
    cfg = Preparation.Config(sources=[file], tokenizer=ByteTokenizer.Config(), to=path, workers=0)
    cfg.build().run()
    proxy.times(2, "reset", "tokens")
    assert [p for _, found in PreparedData(path).problems() for p in found] == []
    proxy.close()


def test_a_place_is_a_path_or_a_url():
    with pytest.raises(ConfigError, match="to: is empty"):
        open_place("", "to")
    with pytest.raises(ConfigError, match="to: expected a path, s3://BUCKET/NAME"):
        open_place("https://x/y", "to")
