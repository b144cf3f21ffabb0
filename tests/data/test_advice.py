# SPDX-License-Identifier: Apache-2.0
"""The command that an input is told to be prepared by: it makes the same tokens, with nothing else to say."""

import shlex
from itertools import islice

import numpy as np
import pytest

from dovetail.cli import main
from dovetail.config import ConfigError
from dovetail.data import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    JsonLines,
    Mixture,
    PreparedDataset,
    ShippedCorpus,
    ShippedTokenizer,
    Split,
    TextDataset,
    TextFiles,
    TextInput,
    Tokenizer,
)


def reading(dataset, tokenizer: Tokenizer.Config | None = None) -> TextInput.Config:
    chosen = ByteTokenizer.Config() if tokenizer is None else tokenizer
    return TextInput.Config(batch_size=1, seq_len=8, tokenizer=chosen, dataset=dataset)


@pytest.mark.parametrize("kind", ["records", "text"])
def test_the_command_prepares_the_tokens_that_are_trained_on(kind, write, tmp_path, hugging_face_file, capsys):
    if kind == "records":
        source = JsonLines.Config(
            files=[write("my notes.jsonl", [{"body": "call me"}, {"body": "the fox"}])], field="body"
        )
        tokenizer = HuggingFaceTokenizer.Config(file=hugging_face_file, bos_token="<s>", eos_token="</s>")
        dataset = TextDataset.Config(source=source, add_bos=True)
    else:
        source = TextFiles.Config(files=[write("a.txt", "call me\n\n\nthe fox")], separator="\n\n\n")
        tokenizer, dataset = ByteTokenizer.Config(), TextDataset.Config(source=source, add_eos=False)
    raw = reading(dataset.set(shuffle=False), tokenizer)
    words = shlex.split(raw.build().when_slow())
    assert words[:3] == ["dovetail", "data", "prepare"]
    assert words[words.index("--to") + 1] == "PLACE"
    place = str(tmp_path / "place")
    assert main([*(place if word == "PLACE" else word for word in words[1:]), "workers=0"]) == 0
    prepared = raw.set(tokenizer=None, dataset=PreparedDataset.Config(path=place, shuffle=False))
    for mine, other in zip(islice(raw.build(), 4), islice(prepared.build(), 4), strict=True):
        np.testing.assert_array_equal(mine["tokens"], other["tokens"])


def test_a_part_of_files_is_named_by_them_and_each_part_of_a_mixture_has_a_place_of_its_own(write):
    file = write("a.jsonl", [{"text": "a"}, {"text": "b"}])
    part = TextDataset.Config(source=Split.Config(source=JsonLines.Config(files=[file])))
    assert reading(part).build().when_slow() == f"dovetail data prepare {file} --tokenizer bytes --to PLACE"
    shipped = TextDataset.Config(source=ShippedCorpus.Config())
    mixed = Mixture.Config(parts={"a": part, "b": shipped}, weights={"a": 1, "b": 1})
    assert reading(mixed, ShippedTokenizer.Config()).build().when_slow().splitlines() == [
        f"dovetail data prepare {file} --tokenizer tiny-lm --to PLACE1",
        "dovetail data prepare SOURCE... --tokenizer tiny-lm --to PLACE2",
    ]


def test_an_input_that_cannot_be_built_has_no_advice():
    with pytest.raises(ConfigError):
        reading(TextDataset.Config(source=JsonLines.Config())).build()
