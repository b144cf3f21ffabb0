# SPDX-License-Identifier: Apache-2.0
"""Recipes on text of one's own."""

from typing import Any

import pytest

from dovetail.config import REQUIRED, diff
from dovetail.data import TextDataset, TextFiles
from dovetail.zoo import recipe
from dovetail.zoo.recipes import on_text


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
