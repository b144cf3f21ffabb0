# SPDX-License-Identifier: Apache-2.0
"""Compressed files: the same documents as unpacked, unpacked once, and damage found."""

import gzip
import os
import pickle

import pyarrow as pa
import pytest

from dovetail.data import DataError, JsonLines, TextFiles
from dovetail.data import _compressed as module

LINES = "".join(f'{{"text": "document {i} é"}}\n\n' for i in range(50)).encode()
PACK = {"gz": gzip.compress, "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True)}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_BLOCK", 64)
    return tmp_path / "cache" / "dovetail" / "data"


def contents(source) -> list:
    return [source[i].content for i in range(len(source))]


@pytest.mark.parametrize("ending", PACK)
def test_documents_places_and_size_are_those_of_the_file_unpacked(write, ending):
    half = LINES.index(b"\n", 800) + 1
    plain = JsonLines.Config(files=[write("a.jsonl", LINES)]).build()
    packed = PACK[ending](LINES[:half]) + PACK[ending](LINES[half:])  # As tools that work in parallel write them.
    file = write(f"a.jsonl.{ending}", packed)
    source = JsonLines.Config(files=[file]).build()
    assert contents(source) == contents(plain) == contents(pickle.loads(pickle.dumps(source)))
    assert source.size() == plain.size()  # So a run goes on after its data has been compressed.
    assert source.place(3) == f"{file}:7"
    text = TextFiles.Config(files=[file], separator="\n\n").build()
    assert "".join(contents(text)) == LINES.decode().replace("\n\n", "")
    assert text.place(1) == f"{file}:3"


def test_a_file_is_unpacked_once_and_again_when_it_changes(write, cache):
    file = write("a.txt.gz", gzip.compress(b"one"))
    build = TextFiles.Config(files=[file]).build
    assert contents(build()) == ["one"]
    (entry,) = cache.glob("*-*")
    before = entry.stat().st_mtime_ns
    assert contents(build()) == ["one"]
    assert entry.stat().st_mtime_ns == before
    os.utime(write("a.txt.gz", gzip.compress(b"two")), ns=(0, 0))
    assert contents(build()) == ["two"]
    assert [path.read_bytes() for path in cache.glob("*-*")] == [b"two"]


@pytest.mark.parametrize(
    "ending, damage",
    [
        ("gz", lambda raw: raw[:-4]),
        ("gz", lambda raw: raw[:40] + b"damage" + raw[46:]),
        ("zst", lambda raw: raw[:-4]),
        ("zst", lambda raw: raw + b"damage"),
    ],
)
def test_a_damaged_file_is_one_error_that_names_it_and_leaves_nothing(write, cache, ending, damage):
    file = write(f"a.jsonl.{ending}", damage(PACK[ending](LINES)))
    with pytest.raises(DataError, match=r"is damaged, or not compressed as it seems: .*\. Get it again\.") as e:
        JsonLines.Config(files=[file]).build()
    assert str(e.value).startswith(f"{file}: ")
    assert [path.name for path in cache.iterdir()] == ["lock"]


def test_a_compressed_file_with_nothing_in_it_is_an_error(write):
    file = write("a.txt.gz", gzip.compress(b""))
    with pytest.raises(DataError) as e:
        TextFiles.Config(files=[file]).build()
    assert str(e.value) == f"{file}: there is nothing in it. Remove it, or leave it out."


def test_a_cache_that_cannot_be_written_is_one_error_with_the_way_out(write, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", write("file", "not a directory"))
    file = write("a.txt.gz", gzip.compress(b"one"))
    with pytest.raises(DataError) as e:
        TextFiles.Config(files=[file]).build()
    assert str(e.value).startswith(f"{file}: cannot be unpacked to ")
    assert str(e.value).endswith("  Make room there, set XDG_CACHE_HOME to another place, or unpack the file yourself.")
