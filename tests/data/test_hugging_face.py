# SPDX-License-Identifier: Apache-2.0
"""Tokenizers from a `tokenizer.json`: what the file may hold, and what the config adds."""

import pytest
import tokenizers
from tokenizers import models

from dovetail.config import ConfigError
from dovetail.data import HuggingFaceTokenizer


def error_of(config) -> str:
    with pytest.raises(ConfigError) as e:
        config.build()
    return str(e.value)


def test_ids_are_those_of_the_library(hugging_face_file):
    library = tokenizers.Tokenizer.from_file(hugging_face_file)
    ours = HuggingFaceTokenizer.Config(file=hugging_face_file).build()
    for text in ("the lazy dog", "unseen words, é and 漢字\n"):
        assert ours.encode(text).tolist() == library.encode(text, add_special_tokens=False).ids


def test_special_tokens_spelled_out_in_text_are_text(hugging_face_file):
    library = tokenizers.Tokenizer.from_file(hugging_face_file)
    assert library.token_to_id("</s>") in library.encode("a </s> b").ids  # What it would do by itself.
    ours = HuggingFaceTokenizer.Config(file=hugging_face_file, eos_token="</s>").build()
    assert ours.eos_id not in ours.encode("a </s> b")


def test_truncation_and_padding_of_the_file_are_off(hugging_face_file, tmp_path):
    library = tokenizers.Tokenizer.from_file(hugging_face_file)
    library.enable_truncation(4)
    library.enable_padding(length=99)
    library.save(str(tmp_path / "tokenizer.json"))
    ours = HuggingFaceTokenizer.Config(file=str(tmp_path / "tokenizer.json")).build()
    text = "some years ago never mind how long"
    assert (
        ours.encode(text).tolist() == HuggingFaceTokenizer.Config(file=hugging_face_file).build().encode(text).tolist()
    )


def test_vocabulary_with_gaps_is_as_large_as_its_largest_id(tmp_path):
    library = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 7, "?": 3}, unk_token="?"))
    assert library.get_vocab_size() == 3  # What it would say by itself.
    library.save(str(tmp_path / "tokenizer.json"))
    ours = HuggingFaceTokenizer.Config(file=str(tmp_path / "tokenizer.json")).build()
    assert ours.encode("b").tolist() == [7]
    assert ours.vocab_size == 8


def test_special_tokens_not_named_are_none(hugging_face_file):
    ours = HuggingFaceTokenizer.Config(file=hugging_face_file).build()
    assert (ours.bos_id, ours.eos_id, ours.pad_id) == (None, None, None)


def test_unknown_special_token_is_a_config_error_with_the_nearest_name(hugging_face_file):
    config = HuggingFaceTokenizer.Config(file=hugging_face_file, eos_token="<eos>")
    message = error_of(config)
    assert message.startswith("HuggingFaceTokenizer.Config.eos_token: the vocabulary has no token '<eos>'.")
    config = HuggingFaceTokenizer.Config(file=hugging_face_file, pad_token="<pads>")
    assert error_of(config) == (
        "HuggingFaceTokenizer.Config.pad_token: the vocabulary has no token '<pads>'. Did you mean '<pad>'?"
    )


def test_missing_file_is_a_config_error(tmp_path):
    file = str(tmp_path / "tokenizer.json")
    message = f"HuggingFaceTokenizer.Config.file: cannot read {file!r}: No such file or directory."
    assert error_of(HuggingFaceTokenizer.Config(file=file)) == message


def test_file_of_another_kind_is_a_config_error(write):
    file = write("tokenizer.json", '{"a": 1}')
    message = error_of(HuggingFaceTokenizer.Config(file=file))
    assert message.startswith(f"HuggingFaceTokenizer.Config.file: {file!r} is not a tokenizer.json: ")


def test_files_of_another_tokenizer_are_refused(hugging_face_file):
    with pytest.raises(ConfigError) as e:
        HuggingFaceTokenizer.Config(file=hugging_face_file).build(files={"tokenizer.model": b""}, path="tokenizer")
    assert str(e.value) == "tokenizer: is made from a file called 'tokenizer.json', was given 'tokenizer.model'."


def test_config_from_a_checkpoint_without_files_opens_none():
    with pytest.raises(ConfigError) as e:
        HuggingFaceTokenizer.Config(file="/dev/zero").build(files={}, path="tokenizer")  # It never ends.
    assert str(e.value) == "tokenizer: is made from a file called 'tokenizer.json', was given none."
