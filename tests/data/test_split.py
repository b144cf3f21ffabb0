# SPDX-License-Identifier: Apache-2.0
"""What is trained on and what is held out: all of a source between them, nothing in both."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.config import ConfigError
from dovetail.data import JsonLines, Parquet, Split, TextFiles, source_of


def contents(source) -> list:
    return [source[i].content for i in range(len(source))]


@pytest.mark.parametrize(
    "count, fields, held_out",
    [(2, {}, 1), (10, {}, 1), (40, {}, 2), (40, {"held_out": 0.5}, 20), (40, {"at_most": 1}, 1)],
)
def test_the_last_documents_are_held_out_and_the_rest_is_trained_on(write, count, fields, held_out):
    inner = JsonLines.Config(files=[write("a.jsonl", [{"text": str(i)} for i in range(count)])])
    train, rest = (Split.Config(source=inner, split=split, **fields).build() for split in ("train", "held-out"))
    assert contents(train) + contents(rest) == [str(i) for i in range(count)]
    assert len(rest) == held_out
    assert rest.place(0) == inner.build().place(count - held_out)
    for index in (-1, len(train)):
        with pytest.raises(IndexError):
            train[index]


def test_blocks_of_the_source_are_cut_where_it_is(tmp_path):
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [str(i) for i in range(10)]}), file, row_group_size=4)
    inner = Parquet.Config(files=[str(file)])
    train, rest = (Split.Config(source=inner, split=split, held_out=0.3).build() for split in ("train", "held-out"))
    assert (train.blocks().tolist(), rest.blocks().tolist()) == ([4, 3], [1, 2])
    assert contents(rest) == ["7", "8", "9"]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"held_out": 1.0}, "Split.Config.held_out: is 1.0. Use more than 0 and less than 1."),
        ({"at_most": 0}, "Split.Config.at_most: is 0. Use 1 or more."),
        ({}, "Split.Config: there is 1 document, too few to hold one out. Give more text."),
    ],
)
def test_what_cannot_be_split_is_an_error(write, fields, message):
    with pytest.raises(ConfigError) as e:
        Split.Config(source=TextFiles.Config(files=[write("a.txt", "one")]), **fields).build()
    assert str(e.value) == message


@pytest.mark.parametrize("size, parts", [(1_000, 4), (100_000, 21), (3_000_000, 46)])
def test_one_text_has_parts_enough_to_hold_some_out(write, size, parts):
    cfg = source_of([write("a.txt", "word " * (size // 5))], "text", to_split=True)
    assert isinstance(cfg, TextFiles.Config)
    assert len(cfg.build()) == parts


def test_the_ending_says_what_is_in_a_file(write):
    lines = gzip.compress(b'{"text": "a"}\n')
    assert isinstance(source_of([write("a.jsonl.gz", lines)], "text"), JsonLines.Config)
    assert isinstance(source_of([write("a.parquet", "any")], "text"), Parquet.Config)
    assert isinstance(source_of([write("README", "any")], "text"), TextFiles.Config)
    with pytest.raises(ConfigError, match=r"text: the files are of several kinds: .*Give files of one kind\."):
        source_of([write("a.jsonl", "any"), write("a.txt", "any")], "text")
    with pytest.raises(ConfigError, match=r"text: no file matches 'nowhere\.txt'"):
        source_of(["nowhere.txt"], "text")
