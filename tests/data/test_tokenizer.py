# SPDX-License-Identifier: Apache-2.0
"""What holds for every tokenizer, and the one for bytes."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError, from_json, to_json
from dovetail.data import ByteTokenizer, DataError, HuggingFaceTokenizer, SentencePieceTokenizer, Tokenizer
from dovetail.data._tokenizer import check_ids

TEXTS = [
    "",
    "a",
    "call me ishmael",
    "The quick brown fox, years ago!",
    "two  spaces and\ttabs\r\nand lines\n\n",
    " leading and trailing ",
    "héé ünïcödé — 漢字 🐋 \u200b",
    "nul \x00 and bell \x07",
    "<s>not special</s> <pad> <unk>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_decode_gives_back_what_was_encoded(tokenizer: Tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_int32_inside_the_vocabulary_and_none_is_special(tokenizer: Tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert ids.shape == (len(ids),)
    assert all(0 <= i < tokenizer.vocab_size for i in ids)
    assert not {tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id} & set(ids.tolist())


def test_special_ids_are_distinct_and_inside_the_vocabulary(tokenizer: Tokenizer):
    special = [tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id]
    assert all(i is not None and 0 <= i < tokenizer.vocab_size for i in special)
    assert len(set(special)) == 3


def test_decode_leaves_special_tokens_out(tokenizer: Tokenizer):
    ids = [tokenizer.bos_id, *tokenizer.encode("call me ishmael"), tokenizer.eos_id, tokenizer.pad_id]
    assert tokenizer.decode(np.array(ids)) == "call me ishmael"


@pytest.mark.parametrize("bad", [-1, 10**6])
def test_decode_refuses_ids_outside_the_vocabulary(tokenizer: Tokenizer, bad):
    with pytest.raises(DataError) as e:
        tokenizer.decode([65, bad])
    assert str(e.value) == (
        f"decode: token 1 of 2 is {bad}, outside the vocabulary of {tokenizer.vocab_size}.\n"
        "  Was it made with another tokenizer?"
    )


def test_text_that_is_not_unicode_is_refused(tokenizer: Tokenizer):
    with pytest.raises((UnicodeEncodeError, TypeError, RuntimeError)):
        tokenizer.encode("half a \ud800 pair")


def test_tokenizer_survives_pickle(tokenizer: Tokenizer):
    copy: Tokenizer = pickle.loads(pickle.dumps(tokenizer))
    assert type(copy) is type(tokenizer)
    assert copy.cfg == tokenizer.cfg
    assert copy.encode(TEXTS[3]).tolist() == tokenizer.encode(TEXTS[3]).tolist()
    assert copy.fingerprint() == tokenizer.fingerprint()


def test_pickle_carries_the_files(hugging_face_file, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(Path(hugging_face_file).read_bytes())
    pickled = pickle.dumps(HuggingFaceTokenizer.Config(file=str(file)).build())
    file.unlink()
    assert pickle.loads(pickled).vocab_size == 300


def test_checkpoint_of_config_and_files_rebuilds_it_where_the_original_file_is_gone(tokenizer_config, tmp_path):
    original: Tokenizer = tokenizer_config.build()
    elsewhere = tokenizer_config.set(file=str(tmp_path / "gone")) if original.files() else tokenizer_config
    stored_config, stored_files = to_json(elsewhere), original.files()
    copy: Tokenizer = from_json(stored_config).build(files=stored_files)
    for text in TEXTS:
        assert copy.encode(text).tolist() == original.encode(text).tolist()
    assert (copy.vocab_size, copy.bos_id, copy.eos_id, copy.pad_id) == (
        original.vocab_size,
        original.bos_id,
        original.eos_id,
        original.pad_id,
    )
    assert copy.files() == original.files()
    assert copy.fingerprint() == original.fingerprint()


def test_prompt_is_the_text_unless_the_config_says_more(tokenizer: Tokenizer):
    assert tokenizer.encode_prompt(TEXTS[3]).tolist() == tokenizer.encode(TEXTS[3]).tolist()


def test_prompt_starts_with_bos_where_it_is_so(monkeypatch):
    monkeypatch.setattr(ByteTokenizer, "prompts_start_with_bos", True)
    ids = ByteTokenizer.Config().build().encode_prompt("hi")
    assert ids.tolist() == [256, 104, 105]
    assert ids.dtype == np.int32
    monkeypatch.setattr(ByteTokenizer, "bos_id", None)
    with pytest.raises(
        ConfigError, match=r"ByteTokenizer\.Config: prompts start with the bos token, but there is none\."
    ):
        ByteTokenizer.Config().build().encode_prompt("hi")


def test_tokenizer_without_special_tokens_in_text_says_so():
    with pytest.raises(ConfigError) as e:
        ByteTokenizer.Config().build().encode_with_special("<s>")
    assert str(e.value) == (
        "ByteTokenizer.Config: ByteTokenizer has no special tokens that text can spell out, as chats do.\n"
        "  Use a HuggingFaceTokenizer, or a prompt without special tokens."
    )


def test_tokenizers_have_different_fingerprints(hugging_face_file, sentence_piece_file):
    configs = [
        ByteTokenizer.Config(),
        HuggingFaceTokenizer.Config(file=hugging_face_file),
        HuggingFaceTokenizer.Config(file=hugging_face_file, eos_token="</s>"),
        SentencePieceTokenizer.Config(file=sentence_piece_file),
    ]
    assert len({config.build().fingerprint() for config in configs}) == 4


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_are_those_of_utf8(text):
    tokenizer = ByteTokenizer.Config().build()
    assert tokenizer.encode(text).tolist() == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_that_are_no_character_are_replaced():
    assert ByteTokenizer.Config().build().decode([97, 0xE2, 98]) == "a\ufffdb"


def test_check_ids_names_the_first_bad_one():
    check_ids(np.array([0, 9]), 10, lambda: "doc")
    check_ids(np.array([], np.int64), 10, lambda: "doc")
    with pytest.raises(DataError, match=r"doc: token 1 of 3 is 10, outside the vocabulary of 10\."):
        check_ids(np.array([9, 10, -1]), 10, lambda: "doc")
