# SPDX-License-Identifier: Apache-2.0
"""The command line: what a user types, sees and gets as exit code."""

import importlib
import json
import subprocess
import sys

import pytest

from dovetail.cli import main, resolve
from dovetail.config import from_json
from dovetail.zoo import RECIPES, recipe


def test_list_names_every_recipe_with_its_first_line(capsys):
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "".join(f"{name}  {text}\n" for name, (_, text) in RECIPES.items())
    assert main(["list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(RECIPES)


def test_the_catalogue_agrees_with_the_recipes():
    recipes = importlib.import_module("dovetail.zoo.recipes")
    for name, (function, text) in RECIPES.items():
        assert getattr(recipes, function).__doc__.splitlines()[0] == text
        recipe(name)


def test_help_and_list_do_not_import_jax():
    program = "import sys, dovetail.cli as c; c.main(['list']); assert not {'jax', 'grain', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_show_prints_canonical_text_with_overrides(capsys):
    assert main(["show", "tiny-lm", "steps=7", "model.stack.num_layers=2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "(root) = dovetail.train.Trainer.Config"
    assert "steps = 7" in out
    assert "model.stack.num_layers = 2" in out


def test_show_as_json_carries_config_parameters_and_flops(capsys):
    assert main(["show", "tiny-lm", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert from_json(json.dumps(shown["config"])) == recipe("tiny-lm")
    assert shown["parameters"] == 771_712
    assert shown["flops_per_token"] > 6 * shown["parameters"]


def test_diff_of_a_recipe_and_a_file(capsys, tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(
        "from dovetail.zoo import recipe\ndef wide():\n    return recipe('tiny-lm').set_in('model.dim', 256)\n"
    )
    monkeypatch.setitem(sys.modules, "mine", None)
    assert main(["diff", "tiny-lm", f"{file}:wide"]) == 0
    assert capsys.readouterr().out == "  model.dim: 128 -> 256\n"
    assert main(["diff", "tiny-lm", f"{file}:wide", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"path": "model.dim", "old": "128", "new": "256"}]


@pytest.mark.parametrize(
    "argv, text",
    [
        (["show", "tiny-ml"], "dovetail show: no recipe is called 'tiny-ml'. Did you mean 'tiny-lm'?\n"),
        (["show", "nowhere.py:f"], "dovetail show: there is no file 'nowhere.py'.\n"),
        (["train", "tiny-lm", "steps=many"], "dovetail train: steps: expected int, found 'many'.\n"),
        (
            ["train", "tiny-lm", "model.stack.num_layer=2"],
            "dovetail train: model.stack.num_layer: model.stack is RepeatedBlock.Config, it has no field 'num_layer'. "
            "Did you mean 'model.stack.num_layers'?\n",
        ),
        (
            ["train", "tiny-lm", "learner.schedule=cosine"],
            "dovetail train: learner.schedule: expected Schedule.Config, found 'cosine'.\n"
            "  Schedule.Config cannot be written in one value: set its fields, as in learner.schedule.peak=...\n",
        ),
    ],
)
def test_what_the_user_can_fix_is_one_message_and_exit_code_2(argv, text, capsys):
    assert main(argv) == 2
    assert capsys.readouterr().err == text


@pytest.mark.slow
def test_train_then_generate_from_the_directory_of_the_run(capsys, tmp_path):
    small = ["model.stack.num_layers=1", "model.dim=32", "input.batch_size=2", "eval_input=none", "sample_tokens=4"]
    directory = f"directory={tmp_path / 'run'}"
    assert main(["train", "tiny-lm", "steps=2", directory, *small]) == 0
    assert main(["train", "tiny-lm", "steps=3", directory, *small]) == 0
    out = capsys.readouterr().out
    assert f"Going on after step 2, from {tmp_path / 'run'}." in out
    assert main(["generate", str(tmp_path / "run"), "The whale", "sampling.temperature=0.5"]) == 0
    assert capsys.readouterr().out.startswith("The whale")
    assert resolve(str(tmp_path / "run")).steps == 3
