# SPDX-License-Identifier: Apache-2.0
"""The error for bad data, places in a config tree, and packages that may be missing."""

import pickle
import subprocess
import sys

import pytest

from dovetail.config import ConfigError
from dovetail.data import ByteTokenizer, DataError, Parquet, SentencePieceTokenizer
from dovetail.data._errors import child_path, optional_import, place_of


def test_data_error_is_a_value_error_that_crosses_processes():
    assert isinstance(DataError("a.jsonl:3: bad"), ValueError)
    assert str(pickle.loads(pickle.dumps(DataError("a.jsonl:3: bad")))) == "a.jsonl:3: bad"


def test_place_is_the_path_or_for_the_root_the_class():
    assert place_of(ByteTokenizer.Config().build(path="input.tokenizer")) == "input.tokenizer"
    assert place_of(ByteTokenizer.Config().build(path="input.tokenizer"), "file") == "input.tokenizer.file"
    assert place_of(ByteTokenizer.Config().build(), "file") == "ByteTokenizer.Config.file"


def test_child_path_is_the_one_that_the_config_tree_has():
    root, inner = ByteTokenizer.Config().build(), ByteTokenizer.Config().build(path="input")
    assert child_path(root, "dataset") == "dataset"
    assert child_path(inner, "dataset") == "input.dataset"
    assert child_path(inner, "parts", "web-2") == "input.parts.web-2"
    assert child_path(inner, "parts", "the web") == "input.parts['the web']"


def test_missing_package_names_the_extra_that_brings_it():
    component = ByteTokenizer.Config().build(path="input.tokenizer")
    with pytest.raises(ConfigError) as e:
        optional_import("no_such_package.inside", component=component)
    assert str(e.value) == (
        "input.tokenizer: ByteTokenizer needs the package no_such_package, which cannot be imported: "
        "No module named 'no_such_package'.\n  Install it: pip install 'dovetail[data]'"
    )


@pytest.mark.parametrize(
    "package, make",
    [
        ("pyarrow", lambda write: Parquet.Config(files=[write("a.parquet", "x")])),
        ("sentencepiece", lambda write: SentencePieceTokenizer.Config(file=write("a.model", "x"))),
    ],
)
def test_component_without_its_package_is_a_config_error(monkeypatch, write, package, make):
    for module in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ConfigError, match=rf"needs the package {package}, .*\n  Install it: pip install 'dovetail\[data]'"
    ):
        make(write).build()


def test_import_of_the_package_brings_neither_jax_nor_optional_packages():
    heavy = ("jax", "torch", "grain", "pyarrow", "array_record", "sentencepiece")
    program = f"import sys, dovetail.data; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
