# SPDX-License-Identifier: Apache-2.0
"""Recipes on text of one's own, and from published models."""

import shutil
from typing import Any

import pytest
import tokenizers

from dovetail.config import REQUIRED, ConfigError, diff, missing_fields
from dovetail.data import TextDataset, TextFiles
from dovetail.serve import Sampling
from dovetail.train import InitFrom
from dovetail.zoo import recipe
from dovetail.zoo.hf import open_directory
from dovetail.zoo.recipes import finetune, on_text
from support.directories import change_json, write_small


@pytest.mark.parametrize("name", ["tiny-lm", "llama3-tiny"])
def test_only_data_and_directory_change_and_what_is_held_out_is_not_trained_on(name, tmp_path):
    file = tmp_path / "my notes.txt"
    file.write_text("".join(f"Line {i}: Wörter, 言葉, 🐳.\n" for i in range(200)), encoding="utf-8")
    cfg = recipe(name)
    own: Any = on_text(cfg, [str(file)])
    assert {line.path.split(".")[0] for line in diff(cfg, own)} == {"input", "evaluators", "directory"}
    assert own.directory == f"runs/{name}-my-notes"
    inputs: list[Any] = [each.set(batch_size=1).build() for each in (own.input, own.evaluators["eval"].input)]
    train, held_out = ([str(i._dataset._source[n].content) for n in range(len(i._dataset._source))] for i in inputs)
    assert "".join(train + held_out) == file.read_text(encoding="utf-8")
    batch = next(iter(inputs[1]))
    text = inputs[1].tokenizer.decode(batch["tokens"][0])
    assert text[:20] in "".join(held_out)  # Any text can be encoded, and comes back.


def test_a_glob_names_the_run_after_its_directory(tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("text", encoding="utf-8")
    pattern = str(tmp_path / "books" / "*.txt")
    own: Any = on_text(recipe("llama3-tiny").set(directory=REQUIRED), [pattern])
    assert own.directory == "runs/text-books"
    assert isinstance(own.input.dataset, TextDataset.Config)
    source: Any = own.input.dataset.source
    assert isinstance(source.source, TextFiles.Config)
    assert list(source.source.files) == [pattern]


# Published models.


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A published model, which tests do not change."""
    directory = tmp_path_factory.mktemp("source") / "My small model, v2"
    write_small(directory)
    return directory


@pytest.fixture
def copied(source, tmp_path):
    """A copy of it, which they do."""
    shutil.copytree(source, tmp_path / "copy")
    return tmp_path / "copy"


def tuned(directory) -> Any:
    return finetune(f"hf:{directory}")


def test_a_published_model_is_trained_from_its_weights_in_a_directory_of_its_name(source):
    cfg = tuned(source)
    assert cfg.init_from == InitFrom(path=f"hf:{source}", weights=cfg.init_from.weights)
    assert cfg.directory == "runs/My-small-model-v2"
    assert cfg.model == open_directory(f"hf:{source}").model
    assert missing_fields(cfg) == ["input.dataset.source.files"]


def test_a_sequence_is_no_longer_than_the_positions_of_the_model(copied):
    for positions, seq_len in {64: 64, 1024: 1024, 10**6: 1024}.items():
        change_json(copied / "config.json", max_position_embeddings=positions)
        assert tuned(copied).input.seq_len == seq_len


def test_documents_end_and_prompts_begin_as_the_files_of_the_tokenizer_say(copied):
    file = copied / "tokenizer.json"
    without: Any = tuned(copied).input
    assert (without.dataset.add_bos, without.dataset.add_eos) == (False, True)
    assert without.tokenizer.build().encode_prompt("a").tolist() == [97]
    library = tokenizers.Tokenizer.from_file(str(file))
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 256), ("<eos>", 257)]
    )
    library.save(str(file))
    with_bos: Any = tuned(copied).input
    assert (with_bos.dataset.add_bos, with_bos.dataset.add_eos) == (True, True)
    assert with_bos.tokenizer.build().encode_prompt("a").tolist() == [256, 97]
    change_json(copied / "tokenizer_config.json", bos_token=None, eos_token=None)
    unnamed: Any = tuned(copied).input
    assert (unnamed.dataset.add_bos, unnamed.dataset.add_eos) == (False, False)


def test_tokens_may_be_objects_and_the_config_of_the_tokenizer_wins(copied):
    change_json(copied / "special_tokens_map.json", bos_token="<pad>", pad_token={"content": "<pad>"})
    change_json(copied / "tokenizer_config.json", bos_token={"content": "<bos>", "lstrip": False}, pad_token=None)
    found = tuned(copied).input.tokenizer
    assert (found.bos_token, found.eos_token, found.pad_token) == ("<bos>", "<eos>", "<pad>")


@pytest.mark.parametrize(
    "file, change, said",
    [
        (
            "tokenizer_config.json",
            {"bos_token": 3},
            "{file}: bos_token is 3, expected text, or an object with content.",
        ),
        (
            "tokenizer_config.json",
            {"eos_token": {"text": "<eos>"}},
            "{file}: eos_token is {'text': '<eos>'}, expected text, or an object with content.",
        ),
        (
            "tokenizer_config.json",
            {"eos_token": "<end>"},
            "input.tokenizer.eos_token: the vocabulary has no token '<end>'.",
        ),
        ("config.json", {"max_position_embeddings": "64"}, "{file}: max_position_embeddings is '64', expected "),
        ("config.json", {"max_position_embeddings": True}, "{file}: max_position_embeddings is True, expected "),
    ],
)
def test_a_field_of_another_kind_is_refused_with_its_file(file, change, said, copied):
    change_json(copied / file, **change)
    with pytest.raises(ConfigError) as e:
        tuned(copied)
    assert str(e.value).startswith(said.replace("{file}", str(copied / file)))


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, Sampling(temperature=0.0, stop=(257,))),
        ({"temperature": 0.7, "top_k": 20}, Sampling(temperature=0.0, stop=(257,))),
        ({"do_sample": True}, Sampling(temperature=1.0, top_k=50, stop=(257,))),
        (
            {"do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.1, "eos_token_id": [5, 257]},
            Sampling(temperature=0.7, top_p=0.9, min_p=0.1, stop=(5, 257)),
        ),
        ({"do_sample": True, "temperature": 1, "min_p": 0}, Sampling(temperature=1.0, top_k=50, stop=(257,))),
        ({"do_sample": True, "top_k": 3, "eos_token_id": 0}, Sampling(temperature=1.0, top_k=3, stop=(0,))),
    ],
)
def test_a_published_model_writes_as_its_generation_config_says(given, expected, copied):
    (copied / "generation_config.json").unlink()
    change_json(copied / "generation_config.json", **given)
    assert tuned(copied).evaluators["sample"].sampling == expected


def test_what_ends_a_text_is_in_the_config_if_nothing_else_says_it(copied):
    (copied / "generation_config.json").unlink()
    change_json(copied / "config.json", eos_token_id=[7, 8])
    assert tuned(copied).evaluators["sample"].sampling.stop == (7, 8)
    change_json(copied / "config.json", eos_token_id=None)
    assert tuned(copied).evaluators["sample"].sampling.stop is None  # Then the tokenizer says it.


@pytest.mark.parametrize(
    "name, values, expected",
    [
        ("temperature", [-0.1, 10**400, 1e300, float("nan"), float("inf"), "0.7", True, [1]], "from 0 to 1000000"),
        ("top_k", [-1, 1.5, "50", True, {}], "a whole number, 0 or more"),
        ("top_p", [0, -1, 1.1, float("nan"), "1", True], "more than 0, at most 1"),
        ("min_p", [-0.1, 1.1, 10**400, "0", True], "from 0 to 1"),
        ("eos_token_id", [-1, 2**31, 1.0, "257", [257, None], True, {"id": 3}], "an id, or several"),
    ],
)
def test_a_generation_config_that_cannot_be_meant_is_refused_with_file_and_field(name, values, expected, copied):
    file = copied / "generation_config.json"
    for value in values:
        change_json(file, **{name: value})
        with pytest.raises(ConfigError) as e:
            tuned(copied)
        assert str(e.value) == f"{file}: {name} is {value!r:.60}, expected {expected}."
