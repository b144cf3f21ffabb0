# SPDX-License-Identifier: Apache-2.0
"""What `show` prints of a recipe."""

import json

import jax.numpy as jnp

from dovetail.checkpoint import Checkpointer
from dovetail.cli import main
from dovetail.cli._resolve import split_hardware
from dovetail.config import from_json
from dovetail.zoo import RECIPES, recipe
from support.runs import tiny


def test_show_full_prints_canonical_text_with_overrides(capsys):
    assert main(["show", "tiny-lm", "--full", "steps=7", "model.stack.num_layers=2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "(root) = dovetail.train.Trainer.Config"
    assert "steps = 7" in out
    assert "model.stack.num_layers = 2" in out


def test_show_as_json_carries_config_parameters_and_flops(capsys):
    assert main(["show", "tiny-lm", "--json", "--full"]) == 0  # JSON has it all.
    shown = json.loads(capsys.readouterr().out)
    assert from_json(json.dumps(shown["config"])) == recipe("tiny-lm")
    assert shown["parameters"] == RECIPES["tiny-lm"].parameters
    assert shown["flops_per_token"] > 6 * shown["parameters"]


def test_show_says_that_a_model_does_not_fit_on_the_hardware(capsys):
    assert main(["show", "llama3.1-405b", "--on", "gpu-h100-8", "--json"]) == 0
    shown = capsys.readouterr()
    memory = json.loads(shown.out)["memory_per_chip"]
    assert not memory["fits"]
    assert memory["total_gib"] > memory["state_gib"] > 700
    assert shown.err.startswith("llama3.1-405b does not fit on gpu-h100-8, by an estimate: ")
    assert f"(state {memory['state_gib']:,.0f}, activations " in shown.err
    assert main(["show", "llama2-7b@gpu-h100-64", "--full"]) == 0
    assert capsys.readouterr().err == ""


def test_a_directory_with_an_at_sign_is_a_directory(capsys, tmp_path):
    run = tmp_path / "run@home"
    assert main(["train", "tiny-lm", "steps=0", f"directory={run}"]) == 2
    (run / "checkpoints").mkdir(parents=True)
    capsys.readouterr()
    assert main(["diff", str(run), "tiny-lm"]) == 2
    assert "hardware" not in capsys.readouterr().err
    assert split_hardware(str(run), None) == (str(run), None)
    assert split_hardware("tiny-lm@cpu-8", None) == ("tiny-lm", "cpu-8")
    (tmp_path / "my@file.py").write_text("", encoding="utf-8")
    assert split_hardware(f"{tmp_path}/my@file.py:run", None)[1] is None


def test_the_configs_of_a_run_are_listed_by_the_steps_that_they_made(capsys, tmp_path):
    cfg = tiny(tmp_path)
    checkpoints = Checkpointer.Config(directory=f"{cfg.directory}/checkpoints", asynchronous=False).build()
    checkpoints.save(4, {"w": jnp.ones(3)}, config=cfg)
    (tmp_path / "run/config.txt").write_text("seed = 1")
    assert main(["show", cfg.directory]) == 0
    assert "configs:" not in capsys.readouterr().out
    (tmp_path / "run/configs").mkdir()
    (tmp_path / "run/configs/steps_1-3.txt").write_text("seed = 0")
    assert main(["show", cfg.directory]) == 0
    listed = (
        f"configs:\n  steps 1 to 3: {cfg.directory}/configs/steps_1-3.txt\n  steps 4 to now: {cfg.directory}/config.txt"
    )
    assert capsys.readouterr().out.endswith(f"{listed}\n")
    assert main(["show", cfg.directory, "--json"]) == 0
    assert [each["first"] for each in json.loads(capsys.readouterr().out)["configs"]] == [1, 4]


def test_what_the_data_of_a_run_has_given_is_shown_by_source(capsys, tmp_path):
    cfg = tiny(tmp_path)
    checkpoints = Checkpointer.Config(directory=f"{cfg.directory}/checkpoints", asynchronous=False).build()
    checkpoints.save(4, {"w": jnp.ones(3)}, config=cfg)
    given = {"data/web/rows": 1200.0, "data/web/epochs": 0.254, "data/books/rows": 300.0, "data/books/ended": 1.0}
    lines = [{"step": 3, "data/web/rows": 1.0}, {"step": 4, "loss": 1.0, **given}, {"step": 4, "goodput/step": 0.5}]
    (tmp_path / "run/metrics.jsonl").write_text("torn\n" + "".join(json.dumps(line) + "\n" for line in lines))
    assert main(["show", cfg.directory]) == 0
    shown = capsys.readouterr().out.partition("data, after step 4:\n")[2].splitlines()
    assert [line.split() for line in shown if not set(line) <= set("- ")] == [
        ["source", "rows", "epochs", "ended"],
        ["web", "1,200", "0.25"],
        ["books", "300", "1"],
    ]
    assert main(["show", cfg.directory, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert found == {"step": 4, "web": {"rows": 1200, "epochs": 0.254}, "books": {"rows": 300, "ended": 1}}
