# SPDX-License-Identifier: Apache-2.0
"""What the tests of the input share: writers of small files, tokenizers trained on the spot, a source in memory."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from dovetail.data import ByteTokenizer, HuggingFaceTokenizer, SentencePieceTokenizer, Tokenizer, _http
from support.file_server import FileServer
from support.s3 import s3_server
from support.text_files import PLACES, TextPlace, object_stores

SENTENCES = ["the quick brown fox jumps over the lazy dog", "call me ishmael", "some years ago never mind how long"]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes a file and returns its path: text, bytes, or a list of records as JSON Lines."""

    def write_file(name: str, content: Any) -> str:
        file = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(record) + "\n" for record in content)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(file)

    return write_file


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """An S3 server."""
    pytest.importorskip("moto", reason="the S3 server of the tests: install the extra dev")
    with s3_server() as found:
        yield found


@pytest.fixture
def stores(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The server of S3 and of Google's store, with the environment set for it, and an empty cache."""
    for name, value in object_stores(endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return endpoint


@pytest.fixture(params=PLACES)
def text_place(request: pytest.FixtureRequest, tmp_path: Path, server: FileServer, stores: str) -> TextPlace:
    """Each place from which text is read."""
    return TextPlace(request.param, tmp_path / "files", server, stores)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server of files that can break; nobody waits for it, and what is said is said each time a test begins."""
    monkeypatch.setattr(_http, "_FIRST", 0.0)
    monkeypatch.setattr(_http, "_said", {"at": -1e9, "count": 0})
    found = FileServer()
    yield found
    found.close()


@pytest.fixture(scope="session")
def hugging_face_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A byte-level BPE of a few hundred tokens, with the special tokens <s>, </s> and <pad>."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(SENTENCES * 10, trainer)
    file = tmp_path_factory.mktemp("hugging_face") / "tokenizer.json"
    library.save(str(file))
    return str(file)


@pytest.fixture(scope="session")
def sentence_piece_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with bytes for what it does not know, and a pad token."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 10),
        model_writer=model,
        vocab_size=310,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        pad_id=3,
        minloglevel=2,
    )
    file = tmp_path_factory.mktemp("sentence_piece") / "tokenizer.model"
    file.write_bytes(model.getvalue())
    return str(file)


@pytest.fixture(params=["bytes", "hugging_face", "sentence_piece"])
def tokenizer_config(request: pytest.FixtureRequest, hugging_face_file: str, sentence_piece_file: str) -> Any:
    """The config of each kind of tokenizer."""
    named: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return {
        "bytes": ByteTokenizer.Config(),
        "hugging_face": HuggingFaceTokenizer.Config(file=hugging_face_file, **named),
        "sentence_piece": SentencePieceTokenizer.Config(file=sentence_piece_file),
    }[request.param]


@pytest.fixture
def tokenizer(tokenizer_config: Any) -> Tokenizer:
    """Each kind of tokenizer."""
    return tokenizer_config.build()
