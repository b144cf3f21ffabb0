# SPDX-License-Identifier: Apache-2.0
"""Tokenizers from a SentencePiece model."""

import io

import pytest
import sentencepiece

from dovetail.config import ConfigError
from dovetail.data import SentencePieceTokenizer


def test_ids_are_those_of_the_library(sentence_piece_file):
    library = sentencepiece.SentencePieceProcessor(model_file=sentence_piece_file)
    ours = SentencePieceTokenizer.Config(file=sentence_piece_file).build()
    for text in ("the lazy dog", "unseen words, é and 漢字\n"):
        assert ours.encode(text).tolist() == library.encode(text)
    assert (ours.vocab_size, ours.bos_id, ours.eos_id, ours.pad_id) == (library.vocab_size(), 1, 2, 3)


def test_special_tokens_that_the_model_does_not_have_are_none(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e"] * 10),
        model_writer=model,
        vocab_size=8,
        hard_vocab_limit=False,
        bos_id=-1,
        eos_id=-1,
        minloglevel=2,
    )
    (tmp_path / "a.model").write_bytes(model.getvalue())
    ours = SentencePieceTokenizer.Config(file=str(tmp_path / "a.model")).build()
    assert (ours.bos_id, ours.eos_id, ours.pad_id) == (None, None, None)


def test_missing_file_is_a_config_error(tmp_path):
    file = str(tmp_path / "a.model")
    with pytest.raises(ConfigError) as e:
        SentencePieceTokenizer.Config(file=file).build(path="input.tokenizer")
    assert str(e.value) == f"input.tokenizer.file: cannot read {file!r}: No such file or directory."


def test_file_of_another_kind_is_a_config_error(write):
    file = write("a.model", "junk")
    with pytest.raises(ConfigError) as e:
        SentencePieceTokenizer.Config(file=file).build()
    assert str(e.value) == f"SentencePieceTokenizer.Config.file: {file!r} is not a SentencePiece model."
