# SPDX-License-Identifier: Apache-2.0
"""`Bundle`: equal content has an equal name and equal bytes, whoever packs it, wherever and whenever."""

import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dovetail.launch import Bundle

FILES = {"about.json": b"{}\n", "code/dovetail/__init__.py": b"", "user/0/mine.py": b"X = 1\n"}
parts = st.text("abcXYZ019_-. é", min_size=1, max_size=8).filter(lambda part: part.strip(". ") == part)
names = st.lists(parts, min_size=1, max_size=3).map("/".join) | st.text("a", min_size=95, max_size=300)
contents = st.dictionaries(names, st.binary(max_size=50), max_size=5)


def unpacked(data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        found = []
        for info in archive:
            opened = archive.extractfile(info)
            assert opened is not None
            found.append((info, opened.read()))
        return found


@given(contents, st.randoms())
def test_the_order_in_which_files_are_named_changes_nothing(files, random):
    shuffled = list(files.items())
    random.shuffle(shuffled)
    assert Bundle(dict(shuffled)).hash == Bundle(files).hash
    assert Bundle(dict(shuffled)).packed() == Bundle(files).packed()


@given(contents)
def test_what_is_unpacked_is_what_was_packed(files):
    assert {info.name: data for info, data in unpacked(Bundle(files).packed())} == files


@given(contents, contents)
def test_other_content_has_another_name(one, other):
    assert (Bundle(one).hash == Bundle(other).hash) == (one == other)


@given(contents, st.data())
def test_any_byte_that_is_changed_added_or_taken_away_changes_the_name(files, data):
    assume(files)
    name = data.draw(st.sampled_from(sorted(files)))
    text = files[name]
    at = data.draw(st.integers(0, len(text)))
    changes = [text[:at] + b"\0" + text[at:]]
    if at < len(text):
        changes += [text[:at] + text[at + 1 :], text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]]
    hashes = {Bundle(files).hash, *(Bundle({**files, name: changed}).hash for changed in changes)}
    assert len(hashes) == len(changes) + 1


@pytest.mark.parametrize(
    "one, other",
    [
        ({"a": b"bc"}, {"ab": b"c"}),
        ({"a": b"", "b": b""}, {"a": b"b"}),
        ({"a": b"1 b 0 "}, {"a": b"", "b": b""}),
        ({"a": b""}, {}),
        ({"a": b"x", "b": b"y"}, {"a": b"y", "b": b"x"}),
        ({"é": b""}, {"e": b""}),
    ],
)
def test_content_cannot_be_taken_for_names(one, other):
    assert Bundle(one).hash != Bundle(other).hash


def test_its_name_is_16_digits_and_part_of_its_place():
    bundle = Bundle(FILES)
    assert re.fullmatch(r"[0-9a-f]{16}", bundle.hash)
    assert bundle.file == f"launch/bundles/{bundle.hash}.tar.gz"


def test_another_process_at_another_time_and_place_makes_the_same_bytes(tmp_path, monkeypatch):
    text = f"import sys; from dovetail.launch._bundle import Bundle; b = Bundle({FILES!r}); "
    text += "sys.stdout.buffer.write(b.hash.encode() + b.packed())"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "USER": "other"}
    command = [sys.executable, "-c", text]
    there = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=True, umask=0o077).stdout
    monkeypatch.setattr(time, "time", lambda: 1e9)
    assert there == Bundle(FILES).hash.encode() + Bundle(FILES).packed()


def test_it_says_nothing_of_when_and_where_and_by_whom_it_was_made():
    packed = Bundle(FILES).packed()
    assert packed[:4] == b"\x1f\x8b\x08\x00"  # gzip, with no name of a file, no comment, ...
    assert packed[4:8] == b"\0\0\0\0"  # ... and no time.
    for info, _ in unpacked(packed):
        assert (info.mtime, info.uid, info.gid, info.uname, info.gname, info.mode) == (0, 0, 0, "", "", 0o644)
        assert info.isreg()
        assert not info.pax_headers
        assert not Path(info.name).is_absolute()
        assert ".." not in Path(info.name).parts
    assert [info.name for info, _ in unpacked(packed)] == sorted(FILES)
    raw = gzip.decompress(packed)
    assert str(Path.home()).encode() not in raw
    assert str(os.getpid()).encode() not in raw


def test_tar_makes_exactly_its_files_of_it(tmp_path):
    bundle = Bundle(FILES)
    subprocess.run(["tar", "-xzf", bundle.write(tmp_path), "-C", tmp_path], check=True)
    found = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if path.is_file()}
    assert found.pop(bundle.file).read_bytes() == bundle.packed()
    assert {name: path.read_bytes() for name, path in found.items()} == FILES


def test_it_is_written_once_and_stays_as_it_is(tmp_path):
    bundle = Bundle(FILES)
    file = bundle.write(tmp_path / "run")
    assert file == tmp_path / "run" / bundle.file
    before = file.stat()
    os.utime(file, ns=(1, 1))
    assert bundle.write(tmp_path / "run") == file
    after = file.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, 1)
    other = Bundle({**FILES, "config.json": b"{}"}).write(tmp_path / "run")
    assert {path.name for path in file.parent.iterdir()} == {file.name, other.name}
