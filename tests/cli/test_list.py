# SPDX-License-Identifier: Apache-2.0
"""The recipes, as a user lists them."""

import json
import subprocess
import sys

import pytest

import dovetail
from dovetail.cli import main
from dovetail.zoo import RECIPES


def test_list_names_every_recipe_with_its_size_its_kind_and_its_text(capsys):
    assert main(["list"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["recipe", "parameters", "kind", "what", "it", "is"]
    rows = [line.split(maxsplit=3) for line in lines]
    assert [[name, kind, text] for name, _, kind, text in rows] == [[n, e.kind, e.text] for n, e in RECIPES.items()]
    assert ["qwen3-30b-a3b", "30.5B", "MoE", "Qwen 3, 128 experts."] in rows
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(RECIPES)
    assert found["gpt2"] == {"parameters": 124_439_808, "kind": "dense", "text": "GPT-2."}


@pytest.mark.parametrize(
    "words, names",
    [
        (["gpt2"], ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt2-tiny"]),
        (["MIXTRAL", "moe"], ["mixtral-8x7b", "mixtral-8x22b", "mixtral-tiny"]),
        (["moby"], ["tiny-lm"]),
    ],
)
def test_list_keeps_what_all_words_describe(words, names, capsys):
    assert main(["list", *words]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == names


def test_list_without_a_match_names_the_nearest_recipes(capsys):
    assert main(["list", "qwne3"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("dovetail list: no recipe has 'qwne3' in its name, kind or text. Did you mean ")
    assert "qwen3-" in message


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as e:
        main(["--version"])
    assert e.value.code == 0
    assert capsys.readouterr().out == f"dovetail {dovetail.__version__}\n"


def test_help_and_list_do_not_import_jax():
    program = "import sys, dovetail.cli as c; c.main(['list']); assert not {'jax', 'grain', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
