# SPDX-License-Identifier: Apache-2.0
"""`TextDataset`: epochs, streams, special tokens, and documents that cannot be used."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from dovetail.config import ConfigError, find, replace_all
from dovetail.data import (
    BestFitPacker,
    ByteTokenizer,
    DataError,
    HuggingFaceTokenizer,
    JsonLines,
    Packer,
    TextDataset,
    TextFiles,
)

BYTES = ByteTokenizer.Config().build()


@pytest.fixture
def dataset(write):
    """Builds a data set of these documents, by default in rows as long as they are, so that a row is a document."""

    def build(documents, *, tokenizer=BYTES, seq_len=4, seed=0, **fields) -> TextDataset:
        source = JsonLines.Config(files=[write("a.jsonl", [{"text": document} for document in documents])])
        config = TextDataset.Config(source=source, seq_len=seq_len, seed=seed, **fields)
        return config.build(tokenizer=tokenizer, path="dataset")

    return build


def names(rows) -> list[str]:
    return [BYTES.decode(row["tokens"]) for row, _ in rows]


DOCUMENTS = [f"d{i:02d}" for i in range(10)]  # With eos, four tokens: one row.


def test_without_shuffle_documents_come_in_order_epoch_after_epoch(dataset):
    assert names(dataset(DOCUMENTS, shuffle=False, epochs=2).rows(0, 1, None)) == DOCUMENTS * 2


def test_each_epoch_is_shuffled_anew_and_has_each_document_once(dataset):
    got = names(dataset(DOCUMENTS, epochs=3).rows(0, 1, None))
    epochs = [got[i : i + 10] for i in (0, 10, 20)]
    assert all(sorted(epoch) == DOCUMENTS for epoch in epochs)
    assert len(set(map(tuple, [DOCUMENTS, *epochs]))) == 4


def test_order_is_that_of_the_seed(dataset):
    first, same, other = (names(dataset(DOCUMENTS, epochs=1, seed=seed).rows(0, 1, None)) for seed in (1, 1, 2))
    assert first == same != other


def test_without_end_it_goes_on(dataset):
    data = dataset(DOCUMENTS)
    assert data.is_endless
    assert Counter(names(islice(data.rows(0, 1, None), 1000))) == dict.fromkeys(DOCUMENTS, 100)


@pytest.mark.parametrize("num_streams", [1, 2, 3, 4, 12])
def test_streams_share_the_documents_of_each_epoch(dataset, num_streams):
    data = dataset(DOCUMENTS, epochs=3)
    got = [name for stream in range(num_streams) for name in names(data.rows(stream, num_streams, None))]
    assert Counter(got) == dict.fromkeys(DOCUMENTS, 3)


def test_rows_go_on_from_a_position(dataset):
    data = dataset(DOCUMENTS, seq_len=5, epochs=2)
    rows = list(data.rows(1, 3, None))
    for i, (_, state) in enumerate(rows, 1):
        rest = list(data.rows(1, 3, state))
        assert [row["tokens"].tolist() for row, _ in rest] == [row["tokens"].tolist() for row, _ in rows[i:]]


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("eos", [False, True])
def test_special_tokens_are_added_where_asked(dataset, tokenizer, bos, eos):
    tokens = dataset(["call me"], tokenizer=tokenizer, add_bos=bos, add_eos=eos).tokens(0)
    expected = [tokenizer.bos_id] * bos + tokenizer.encode("call me").tolist() + [tokenizer.eos_id] * eos
    assert tokens.tolist() == expected
    assert tokens.dtype == np.int32


def test_parts_of_a_long_document_start_and_end_it_once(write):
    source = TextFiles.Config(files=[write("a.txt", "aaaa bbbb cccc")], max_bytes=5)
    config = TextDataset.Config(source=source, seq_len=4, seed=0, add_bos=True, add_eos=True)
    data = config.build(tokenizer=BYTES)
    parts = [data.tokens(i).tolist() for i in range(3)]
    assert parts == [[256, *b"aaaa"], [*b" bbbb"], [*b" cccc", 257]]


def test_token_ids_are_taken_as_they_are(dataset):
    assert dataset([[1, 2, 258]]).tokens(0).tolist() == [1, 2, 258, 257]


def test_empty_documents_are_left_out(dataset):
    assert names(dataset(["", "abc", "", "", "def"], shuffle=False, epochs=1).rows(0, 1, None)) == ["abc", "def"]


@pytest.mark.parametrize("epochs", [None, 1])
def test_nothing_but_empty_documents_is_an_error(dataset, epochs):
    with pytest.raises(DataError) as e:
        next(dataset(["", "", ""], epochs=epochs).rows(0, 1, None))
    assert str(e.value) == "dataset.source: all 3 documents are empty."


@pytest.mark.parametrize("bad", [259, -1, 2**40])
def test_token_outside_the_vocabulary_is_an_error_that_names_the_document(dataset, bad):
    data = dataset(["fine", [1, bad, 2]])
    place = data._source.place(1)
    assert place.endswith("a.jsonl:2")
    with pytest.raises(DataError) as e:
        data.tokens(1)
    assert str(e.value) == (
        f"{place}: token 1 of 3 is {bad}, outside the vocabulary of 259.\n  Was it made with another tokenizer?"
    )


def test_text_that_is_not_unicode_is_an_error_that_names_the_document(dataset, tokenizer):
    data = dataset(["fine", "half \ud800 pair"], tokenizer=tokenizer)
    with pytest.raises(DataError, match=r"a\.jsonl:2: character 5 is half of a surrogate pair, and so not Unicode: "):
        data.tokens(1)


def test_tokenizer_that_fails_is_an_error_that_names_the_document(dataset, monkeypatch):
    def fail(self, text):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(ByteTokenizer, "encode", fail)
    with pytest.raises(DataError, match=r"a\.jsonl:1: the tokenizer cannot encode it: out of luck"):
        dataset(["fine"]).tokens(0)


def test_missing_special_token_is_a_config_error(dataset, hugging_face_file):
    tokenizer = HuggingFaceTokenizer.Config(file=hugging_face_file).build()
    with pytest.raises(ConfigError) as e:
        dataset(["a"], tokenizer=tokenizer)
    assert str(e.value) == (
        "dataset.add_eos: the tokenizer has no eos token.\n"
        "  Name one in its config if that has a field eos_token, or set add_eos=False."
    )


def test_tokenizer_without_pad_token_pads_with_zero(dataset, hugging_face_file):
    tokenizer = HuggingFaceTokenizer.Config(file=hugging_face_file, eos_token="</s>").build()
    ((row, _),) = dataset(["a"], tokenizer=tokenizer, seq_len=5, epochs=1).rows(0, 1, None)
    assert row["tokens"][2:].tolist() == row["targets"][2:].tolist() == [0, 0, 0]


def test_epochs_below_one_is_a_config_error(dataset):
    with pytest.raises(ConfigError) as e:
        dataset(["a"], epochs=0)
    assert str(e.value) == "dataset.epochs: is 0. Use 1 or more, or None for no end."


def test_errors_of_parts_have_the_path_in_the_tree():
    config = TextDataset.Config(source=JsonLines.Config(files=["no/such"]), seq_len=4, seed=0)
    with pytest.raises(ConfigError, match=r"input\.dataset\.source\.files: no file matches 'no/such'\."):
        config.build(tokenizer=BYTES, path="input.dataset")


def test_packer_is_replaced_like_any_other_part(dataset):
    config = replace_all(Packer.Config, BestFitPacker.Config(window=2))(dataset(["a"]).cfg)
    assert [path for path, _ in find(config, BestFitPacker.Config)] == ["packer"]
    assert isinstance(config.build(tokenizer=BYTES)._packer, BestFitPacker)


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"shuffle": False}, {"epochs": 2}, {"add_bos": True}, {"packer": BestFitPacker.Config()}]
)
def test_fingerprint_depends_on_what_the_rows_depend_on(dataset, change):
    same, other = dataset(DOCUMENTS), dataset(DOCUMENTS, **change)
    assert dataset(DOCUMENTS).fingerprint() == same.fingerprint() != other.fingerprint()
    assert dataset(DOCUMENTS[:-1]).fingerprint() != same.fingerprint()
