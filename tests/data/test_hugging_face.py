# SPDX-License-Identifier: Apache-2.0
"""Tokenizers from a `tokenizer.json`: what the file may hold, and what the config adds."""

import concurrent.futures
import hashlib
import os
import pickle
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, processors

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


# Files beside it.


@pytest.fixture
def directory(tmp_path, hugging_face_file) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(Path(hugging_face_file).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    return tmp_path


def config_in(directory: Path, *beside: str, **fields) -> HuggingFaceTokenizer.Config:
    return HuggingFaceTokenizer.Config(file=str(directory / "tokenizer.json"), beside=beside, **fields)


def test_files_beside_travel_with_the_tokenizer(directory, tmp_path_factory):
    config = config_in(directory, "tokenizer_config.json", "chat_template.jinja")
    files = config.build().files()
    assert files == {file.name: file.read_bytes() for file in directory.iterdir()}
    gone = config.set(file=str(tmp_path_factory.mktemp("gone") / "tokenizer.json"))
    copy = gone.build(files=files)
    assert copy.files() == pickle.loads(pickle.dumps(copy)).files() == files
    with pytest.raises(ConfigError) as e:
        gone.build(files={"tokenizer.json": files["tokenizer.json"]}, path="tokenizer")
    assert str(e.value) == "tokenizer: is made from a file called 'tokenizer_config.json', was given 'tokenizer.json'."


def test_fingerprint_is_that_of_the_encoding_alone(directory):
    before = config_in(directory).build()
    content = (directory / "tokenizer.json").read_bytes()
    said = repr(("HuggingFaceTokenizer", (300, None, None, None), [("tokenizer.json", content)]))
    assert before.fingerprint() == hashlib.blake2b(said.encode(), digest_size=8).hexdigest()  # As it has always been.
    assert config_in(directory, "chat_template.jinja", add_special=True).build().fingerprint() == before.fingerprint()
    assert config_in(directory, eos_token="</s>").build().fingerprint() != before.fingerprint()


def test_missing_file_beside_is_a_config_error(directory):
    path = str(directory / "special_tokens_map.json")
    message = f"HuggingFaceTokenizer.Config.beside: cannot read {path!r}: No such file or directory."
    assert error_of(config_in(directory, "chat_template.jinja", "special_tokens_map.json")) == message


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "a\\b", "c:x", "", ".", "..", "a\n", "a\0"])
def test_names_that_lead_elsewhere_are_refused(directory, name):
    message = f"HuggingFaceTokenizer.Config.beside: {name!r} is not the name of a file in the directory of `file`."
    assert error_of(config_in(directory, name)) == message


def test_names_that_are_there_twice_are_refused(directory):
    for beside in (["tokenizer.json"], ["chat_template.jinja"] * 2):
        assert f"names {beside[0]!r} more than once; `file` is 'tokenizer.json' already." in error_of(
            config_in(directory, *beside)
        )


def test_what_is_no_file_beside_is_refused(directory):
    os.mkfifo(directory / "pipe")  # Nobody writes to it: reading would wait for ever.
    assert "pipe' is not a regular file." in error_of(config_in(directory, "pipe"))


# Prompts and chats.


def with_processor(directory: Path, single: str) -> None:
    library = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    special = [(token, library.token_to_id(token)) for token in ("<s>", "</s>")]
    library.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    library.save(str(directory / "tokenizer.json"))


@pytest.mark.parametrize("single", ["$A", "<s> $A", "<s> $A </s>", "$A </s>", "</s> $A", "</s> $A </s> </s>", "$A <s>"])
@pytest.mark.parametrize("text", ["", "call me", "a </s> b", "</s>"])
def test_prompts_get_the_special_tokens_of_the_file_but_no_eos_at_the_end(directory, single, text):
    with_processor(directory, single)
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    plain, special = (config_in(directory, **named, add_special=add).build() for add in (False, True))
    before, after = single.split("$A")
    ids = {"<s>": plain.bos_id, "</s>": plain.eos_id}
    added = [[ids[token] for token in part.split()] for part in (before, after.replace("</s>", ""))]
    assert plain.encode_prompt(text).tolist() == plain.encode(text).tolist()
    assert special.encode(text).tolist() == plain.encode(text).tolist()
    assert special.encode_prompt(text).tolist() == [*added[0], *plain.encode(text), *added[1]]


def test_special_tokens_spelled_out_are_parsed_where_that_is_asked_for(directory):
    with_processor(directory, "<s> $A </s>")
    ours = config_in(directory, bos_token="<s>", eos_token="</s>").build()
    library = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    text = "<s>call me</s> ishmael"
    assert ours.encode_with_special(text).tolist() == library.encode(text, add_special_tokens=False).ids
    assert ours.eos_id in ours.encode_with_special(text)
    assert ours.eos_id not in ours.encode(text)


def test_threads_do_not_change_what_others_parse(directory):
    ours = config_in(directory, eos_token="</s>").build()
    text = "call </s> me"
    expected = [ours.encode(text).tolist(), ours.encode_with_special(text).tolist()]
    fresh = config_in(directory, eos_token="</s>").build()
    ways = [fresh.encode, fresh.encode_with_special]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: ways[i % 2](text).tolist(), range(400)))
    assert found == expected * 200
