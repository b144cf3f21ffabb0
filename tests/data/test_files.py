# SPDX-License-Identifier: Apache-2.0
"""Finding, opening and decoding files."""

import pickle
from pathlib import Path

import pytest

from dovetail.config import ConfigError
from dovetail.data import DataError
from dovetail.data._files import Cache, decode, find_files, line_of, opened_files, read_range


def touch(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("x")


def found(directory: Path, *patterns: str) -> list[str]:
    files = find_files([str(directory / pattern) for pattern in patterns], "source.files")
    return [str(Path(file.path).relative_to(directory)) for file in files]


def error_of(*patterns: str) -> str:
    with pytest.raises((ConfigError, DataError)) as e:
        find_files(patterns, "source.files")
    return f"{type(e.value).__name__}: {e.value}"


def test_files_come_in_the_order_given_and_those_of_a_glob_sorted(tmp_path):
    touch(tmp_path, "b2", "b10", "a", "deep/er/c", "[x]")
    assert found(tmp_path, "b*", "a") == ["b10", "b2", "a"]
    assert found(tmp_path, "a", "b*") == ["a", "b10", "b2"]
    assert found(tmp_path, "**/c") == ["deep/er/c"]
    assert found(tmp_path, "[x]") == ["[x]"]  # A name that looks like a glob.


def test_home_directory_is_expanded(tmp_path, monkeypatch):
    touch(tmp_path, "a")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [file.path for file in find_files(["~/a"], "source.files")] == [str(tmp_path / "a")]


def test_no_patterns_is_an_error():
    assert error_of() == "ConfigError: source.files: names no files. Give paths or globs, as in ['data/*.jsonl']."


def test_missing_file_is_an_error_with_the_nearest_name(tmp_path):
    touch(tmp_path, "train.jsonl", "other")
    file = str(tmp_path / "trian.jsonl")
    assert error_of(file) == f"ConfigError: source.files: no file matches {file!r}. Did you mean 'train.jsonl'?"


def test_glob_without_match_in_a_missing_directory_names_it(tmp_path):
    pattern, directory = str(tmp_path / "nowhere" / "*.txt"), str(tmp_path / "nowhere")
    message = f"ConfigError: source.files: no file matches {pattern!r}. There is no directory {directory!r}."
    assert error_of(pattern) == message


def test_directory_is_an_error_that_says_what_to_write(tmp_path):
    directory = str(tmp_path)
    message = (
        f"ConfigError: source.files: {directory!r} is a directory. Name the files in it, as in '{directory}/*.jsonl'.\n"
        "  A directory may only be a data set that save_to_disk of Hugging Face datasets has written."
    )
    assert error_of(directory) == message


def test_file_named_twice_is_an_error(tmp_path):
    touch(tmp_path, "a")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    message = f"ConfigError: source.files: {second!r} is named twice, by {first!r} and by {second!r}."
    assert error_of(first, second) == message


def test_empty_file_is_an_error(tmp_path):
    (tmp_path / "a").write_text("")
    file = str(tmp_path / "a")
    assert error_of(file) == f"DataError: {file}: the file is empty. Remove it, or leave it out of source.files."


def test_bytes_that_are_not_utf8_are_named_with_their_place_in_the_file():
    with pytest.raises(DataError) as e:
        decode(b"caf\xe9 x", "a.txt", 100)
    assert str(e.value) == (
        "a.txt: not UTF-8 at byte 103: found 0xe9 (invalid continuation byte).\n"
        "  Convert the file to UTF-8, for example with iconv."
    )


def test_line_of_counts_line_ends_before_a_byte(write):
    file = write("a", "one\ntwo\n\nfour")
    assert [line_of(file, start) for start in (0, 3, 4, 8, 9, 12)] == [1, 1, 2, 3, 4, 4]


def test_cache_closes_what_leaves_it_and_what_it_holds_at_its_end():
    closed = []
    cache = Cache(str.upper, limit=2, close=closed.append)
    for key in "abac":
        with cache.use(key) as value:
            assert value == key.upper()
    assert closed == ["B"]  # The one not used for longest.
    del cache
    assert closed == ["B", "A", "C"]


def test_cache_arrives_empty_in_another_process(write):
    file = write("a", "abc")
    cache = opened_files()
    assert read_range(cache, file, 1, 3) == b"bc"
    assert read_range(pickle.loads(pickle.dumps(cache)), file, 0, 2) == b"ab"


def test_file_that_shrank_is_an_error(write):
    file = write("a", "abc")
    with pytest.raises(DataError) as e:
        read_range(opened_files(), file, 0, 9)
    expected = f"{file}: has become shorter than 9 bytes since it was opened. Do not change data in use."
    assert str(e.value) == expected
