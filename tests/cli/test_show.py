# SPDX-License-Identifier: Apache-2.0
"""What `show` prints of a recipe."""

import json

from dovetail.cli import main
from dovetail.config import from_json
from dovetail.zoo import RECIPES, recipe


def test_show_full_prints_canonical_text_with_overrides(capsys):
    assert main(["show", "tiny-lm", "--full", "steps=7", "model.stack.num_layers=2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "(root) = dovetail.train.Trainer.Config"
    assert "steps = 7" in out
    assert "model.stack.num_layers = 2" in out


def test_show_as_json_carries_config_parameters_and_flops(capsys):
    assert main(["show", "tiny-lm", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert from_json(json.dumps(shown["config"])) == recipe("tiny-lm")
    assert shown["parameters"] == RECIPES["tiny-lm"].parameters
    assert shown["flops_per_token"] > 6 * shown["parameters"]
