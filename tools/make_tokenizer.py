# SPDX-License-Identifier: Apache-2.0
"""Trains the tokenizer that comes with a corpus: `python tools/make_tokenizer.py moby-dick`."""

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dovetail.data import corpus_path


def train(text: Path, vocab_size: int = 4096) -> Tokenizer:
    """Returns a byte-level BPE of a text; the end of a document is token 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(text)], trainer)
    return tokenizer


if __name__ == "__main__":
    corpus = corpus_path(sys.argv[1])
    train(corpus).save(str(corpus.with_name("tokenizer.json")), pretty=False)
