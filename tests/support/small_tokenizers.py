# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers of every kind that published models have, made in memory."""

import functools
import io

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from dovetail.data import ByteTokenizer, HuggingFaceTokenizer, SentencePieceTokenizer, Tokenizer

TEXTS = [
    "the quick brown fox jumps over the lazy dog, and 12 more; some years ago, never mind how long",
    '{"name": "value", "list": [1, 2.5, true, null]}\n',
    "नमस्ते दुनिया",
    "漢字かな交じり文、你好世界",
    "naïve café déjà vu 👩‍👩‍👧 🏳️‍🌈 👍🏽 😀",
]
KINDS = ["bytes", "byte_level", "fallback", "metaspace", "word_piece", "sentence_piece"]


@functools.cache
def small_tokenizer(kind: str) -> Tokenizer:
    """Returns a tokenizer of one of `KINDS`."""
    if kind == "bytes":
        return ByteTokenizer.Config().build()
    if kind == "sentence_piece":
        return _sentence_piece()
    library = {"byte_level": _byte_level, "fallback": _fallback, "metaspace": _metaspace, "word_piece": _word_piece}
    content = library[kind]().to_str().encode()
    config = HuggingFaceTokenizer.Config(file="tokenizer.json", bos_token="<s>", eos_token="</s>")
    return config.build(files={"tokenizer.json": content})


def _byte_level() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>", "<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(TEXTS * 3, trainer)
    return library


def _pieces() -> list[str]:
    """Letters, some words with a space before them, and some without."""
    words = {"▁" + word for text in TEXTS[:1] for word in text.split()}
    letters = {letter for text in TEXTS[:3] for letter in text.replace(" ", "▁")}
    return sorted(words) + sorted(letters - words) + ["ing", "er", "▁▁"]


def _fallback() -> tokenizers.Tokenizer:
    """As of Llama 2: what is no piece is bytes, and a text loses the space that it was given."""
    special = ["<unk>", "<s>", "</s>"]
    names = special + [f"<0x{byte:02X}>" for byte in range(256)] + _pieces()
    vocabulary = {name: i for i, name in enumerate(names)}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.add_special_tokens(special)
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return library


def _metaspace() -> tokenizers.Tokenizer:
    names = ["<unk>", "<s>", "</s>", *_pieces()]
    library = tokenizers.Tokenizer(models.Unigram([(name, -float(i)) for i, name in enumerate(names)], 0))
    library.add_special_tokens(names[:3])
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    return library


def _word_piece() -> tokenizers.Tokenizer:
    words = sorted({word for text in TEXTS for word in text.split()})
    letters = sorted({letter for text in TEXTS for letter in text if not letter.isspace()} - {*words})
    names = ["<unk>", "<s>", "</s>", *words, *letters, *(f"##{letter}" for letter in "abcdefgh0123"), "##ing"]
    library = tokenizers.Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    library.add_special_tokens(names[:3])
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.decoder = decoders.WordPiece()
    return library


def _sentence_piece() -> Tokenizer:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS[:3] * 10),
        model_writer=model,
        vocab_size=350,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        pad_id=3,
        minloglevel=2,
    )
    config = SentencePieceTokenizer.Config(file="tokenizer.model")
    return config.build(files={"tokenizer.model": model.getvalue()})
