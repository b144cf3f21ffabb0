# SPDX-License-Identifier: Apache-2.0
"""What `show` prints for people: the tree as it is built, and what its parts take."""

import io
import re
import sys

import pytest

from dovetail.cli import main
from dovetail.cli._summary import parts_in_print
from dovetail.zoo import RECIPES, recipe


def shown(capsys, *argv):
    """Returns the rows of the table by what is in their first column, and the lines after it."""
    assert main(["show", *argv]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["part", "made", "by", "parameters", "FLOPs/token", "memory", "settings"]
    end = lines.index("")
    columns = [head.index(name) for name in ("part", "made by", "settings")]
    rows = [
        (line[: columns[1]].rstrip(), line[columns[1] : columns[2]].split(), line[columns[2] :]) for line in lines[:end]
    ]
    return rows, lines[end + 1 :]


def test_the_tree_is_as_it_is_built_with_the_figures_of_each_part(capsys):
    rows, totals = shown(capsys, "tiny-lm", "model.dim=64")
    parts = {label.strip(): (label, figures, settings) for label, figures, settings in rows}
    assert parts["gate"] == (
        "        gate",
        ["DenseLinear", "81.9K", "492K", "640", "KiB"],
        "in_shape=(64,) out_shape=(320,)",
    )
    assert parts["stack"][2] == "dim=64 num_layers=4"  # Set by its parent, set by the recipe; no defaults.
    assert parts["optimizer"][1] == ["Muon"]
    assert "REQUIRED" not in str(rows)
    assert totals[0] == "tiny-lm: 574,016 parameters"
    # 573,440 weights are used for each token, and 64.5 keys on average, in 4 layers.
    assert 1024 * (6 * 573_440 + 3 * 4 * 4 * 64 * 64.5) == 3_726_114_816
    assert totals[1] == "a step: 8 x 128 = 1,024 tokens, 3.73G FLOPs"
    assert totals[3].startswith("memory of the state: parameters 2.19 MiB, gradients 2.19 MiB, optimizer ")


def test_activations_are_those_that_the_policy_keeps(capsys):
    kept = {}
    for policy in ("save_all", "full"):
        _, totals = shown(capsys, "llama3-tiny", f"remat={policy}")
        (line,) = (line for line in totals if line.startswith("memory of activations for the backward pass: "))
        assert line.endswith(f" (remat {policy})")
        kept[policy] = line.split(": ")[1].split(" a token")[0]
    number = {policy: float(text.split()[0]) for policy, text in kept.items()}
    assert {text.split()[1] for text in kept.values()} == {"KiB"}
    assert number["full"] < number["save_all"]


def test_on_hardware_the_memory_of_a_chip_is_estimated(capsys):
    _, totals = shown(capsys, "llama2-7b", "--on", "tpu-v5p-8")
    assert "mesh: fsdp=4, 4 devices" in totals
    (line,) = (line for line in totals if line.startswith("memory per chip, by an estimate: "))
    assert line.split(" GiB ")[0].endswith(" of 95.7")


def test_what_a_large_recipe_needs_is_said_as_it_is_typed(capsys):
    rows, totals = shown(capsys, "llama3.1-405b")
    (dataset,) = (settings for label, _, settings in rows if label.strip() == "dataset")
    assert dataset == "path=?"
    assert totals[0] == "llama3.1-405b: 405,853,388,800 parameters"
    assert totals[-1] == "to be set: input.dataset.path=..."


def test_layers_of_a_pattern_that_are_alike_are_one_part(capsys):
    rows, _ = shown(capsys, "hybrid-tiny")
    assert [label.strip() for label, _, _ in rows if "layer[" in label] == ["layer[0]", "layer[1]", "layer[2-3]"]
    mixers = [figures[0] for label, figures, _ in rows if label.strip() == "mixer"]
    assert mixers == ["Mamba2", "Attention", "Mamba2"]


@pytest.mark.parametrize("name", [name for name, entry in RECIPES.items() if entry.recipe != "pretrain"])
def test_every_part_that_takes_something_is_shown(name):
    nodes, own = parts_in_print(recipe(name))
    assert own.keys() <= {node.path for node in nodes}


@pytest.mark.parametrize("name", ["mamba2-tiny", "gpt2-tiny", "qwen3-moe-tiny"])
def test_the_first_row_is_the_whole(name, capsys):
    rows, totals = shown(capsys, name)
    assert rows[0][0] == "(run)"
    assert rows[0][1][:2] == ["Trainer", rows[1][1][1]]
    assert totals[0] == f"{name}: {RECIPES[name].parameters:,} parameters"


def test_a_terminal_gets_the_same_rows_in_colours(capsys, monkeypatch):
    rows, totals = shown(capsys, "llama3-tiny")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["show", "llama3-tiny"]) == 0
    assert "\x1b[36m" in out.getvalue()
    plain = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()).splitlines()
    assert [line.split()[0] for line in plain[1 : 1 + len(rows)]] == [label.strip() for label, _, _ in rows]
    assert plain[-len(totals) :] == totals
