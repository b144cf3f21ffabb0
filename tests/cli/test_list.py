# SPDX-License-Identifier: Apache-2.0
"""The recipes, as a user lists them."""

import json
import subprocess
import sys

from dovetail.cli import main
from dovetail.zoo import RECIPES


def test_list_names_every_recipe_with_its_text(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [[name, entry.text] for name, entry in RECIPES.items()]
    assert main(["list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(RECIPES)


def test_help_and_list_do_not_import_jax():
    program = "import sys, dovetail.cli as c; c.main(['list']); assert not {'jax', 'grain', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
