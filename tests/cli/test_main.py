# SPDX-License-Identifier: Apache-2.0
"""The command line: what a user types, sees and gets as exit code."""

import functools
import json
import re
import subprocess
import sys

import pytest

from dovetail.cli import _doctor, main, resolve
from dovetail.config import from_json
from dovetail.zoo import RECIPES, recipe


def test_list_names_every_recipe_with_its_text(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [[name, entry.text] for name, entry in RECIPES.items()]
    assert main(["list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(RECIPES)


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
    assert shown["parameters"] == RECIPES["tiny-lm"].parameters
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
        (["eval", "nowhere"], "dovetail eval: there is no run in 'nowhere': it has no directory 'checkpoints'.\n"),
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
    small = ["model.stack.num_layers=1", "model.dim=32", "input.batch_size=2", "sample_tokens=4"]
    directory = f"directory={tmp_path / 'run'}"
    assert main(["train", "tiny-lm", "steps=2", directory, *small]) == 0
    assert main(["train", "tiny-lm", "steps=3", directory, *small]) == 0
    out = capsys.readouterr().out
    assert "Going on after step 2." in out
    assert main(["generate", str(tmp_path / "run"), "The whale", "sampling.temperature=0.5"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("The whale")
    assert re.fullmatch(r"4 tokens, [\d,]+ a second\n", printed.err)
    assert main(["generate", str(tmp_path / "run"), "The whale", "--json", "--step", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["tokens"]) == (2, 4)
    assert found["tokens_per_second"] > 0
    assert main(["eval", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("step 3  eval/loss ")
    assert main(["eval", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"step", "eval/loss", "eval/accuracy", "eval/tokens"}
    assert main(["eval", str(tmp_path / "run"), "--step", "7"]) == 2
    assert "there is no step 7, only" in capsys.readouterr().err
    assert resolve(str(tmp_path / "run")).steps == 3


@pytest.mark.slow
def test_generate_refuses_more_tokens_than_there_are_positions(capsys, tmp_path):
    assert main(["train", "gpt2-tiny", "steps=1", "input.batch_size=2", f"directory={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "run"), "whale" * 20, "sample_tokens=40"]) == 2
    assert capsys.readouterr() == (
        "",
        "dovetail generate: model.position (LearnedPosition): a sequence of 139 tokens, but max_length is 128.\n"
        "  Use a seq_len of at most that, a shorter prompt, fewer new tokens, or a larger max_length.\n",
    )


def test_doctor_makes_a_step_and_names_what_it_found(capsys, monkeypatch):
    monkeypatch.setattr(_doctor, "_tried", functools.cache(_doctor._tried))  # One step for both ways to say it.
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "a training step: works, loss " in out
    assert "GFLOP/s in float32 matrix products" in out
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"]["ok"]
    assert found["backend"] == "cpu"


def test_a_reader_that_stops_reading_is_no_error():
    command = (
        f"{sys.executable} -c 'from dovetail.cli import main; import sys; sys.exit(main())' show tiny-lm | head -1"
    )
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_sequence_longer_than_there_are_positions_is_refused_before_anything_is_written(capsys, tmp_path):
    directory = tmp_path / "run"
    assert main(["train", "gpt2-tiny", "input.seq_len=4096", f"directory={directory}"]) == 2
    assert "a sequence of 4096 tokens, but max_length is " in capsys.readouterr().err
    assert not directory.exists()
