# SPDX-License-Identifier: Apache-2.0
"""`dovetail loc`: what a user types, sees and gets as exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.cli import main

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTION = """\
name = "Mine"
source = ["src"]
[features.rope]
home = ["src/rope.py"]
mentions = ["RoPE"]
budget = 1
modifier = "src/rope.py::with_rope"
modifier_budget = 2
"""
MODIFIER = 'def with_rope(cfg):\n    """Not a line of code."""\n\n    return cfg\n'


@pytest.fixture
def repo(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "rope.py").write_text("class RoPE:\n    pass\n\n\n" + MODIFIER)
    (tmp_path / "src" / "model.py").write_text("from rope import RoPE\n")
    (tmp_path / "mine.toml").write_text(DESCRIPTION)
    return tmp_path


def run(repo, *argv):
    return main(["loc", *argv, "--repo", str(repo), "--description", str(repo / "mine.toml")])


def test_footprint_is_a_table_or_json(repo, capsys):
    assert run(repo, "footprint", "--files") == 0
    assert capsys.readouterr().out == (
        "Mine: 5 lines of code in 2 files\n"
        "feature  home lines  files outside  lines outside  without users\n"
        "rope              4              1              1              1\n"
        "\n"
        "rope\n"
        "     1  src/model.py\n"
    )
    assert run(repo, "footprint", "rope", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["features"]["rope"]["per_file"] == {"src/model.py": 1}
    assert (found["files"], found["lines"], found["unread"]) == (2, 5, [])


def test_check_passes_within_the_budget_and_lists_the_lines_beyond_it(repo, capsys):
    assert run(repo, "check") == 0
    assert capsys.readouterr().out == (
        "feature  what                             lines  budget\n"
        "rope     lines that mention it elsewhere      1       1\n"
        "rope     lines that apply it                  2       2\n"
    )
    (repo / "src" / "trainer.py").write_text("if isinstance(model, RoPE):\n    pass\n")
    assert run(repo, "check") == 1
    assert capsys.readouterr().out.endswith(
        "rope: 2 lines that mention it elsewhere, 1 are allowed:\n"
        "src/model.py:1: from rope import RoPE\n"
        "src/trainer.py:1: if isinstance(model, RoPE):\n"
    )
    assert run(repo, "check", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert len(found["budgets"]["rope"]["mentions"]["exceeded_by"]) == 2
    assert found["budgets"]["rope"]["modifier"] == {"lines": 2, "budget": 2, "exceeded_by": []}


def test_check_lists_the_lines_of_a_modifier_that_is_too_long(repo, capsys):
    with (repo / "src" / "rope.py").open("a") as file:
        file.write("    # A comment.\n    return None\n")
    assert run(repo, "check") == 1
    assert capsys.readouterr().out.endswith(
        "rope: 3 lines that apply it, 2 are allowed:\n"
        "src/rope.py:5: def with_rope(cfg):\n"
        "src/rope.py:8: return cfg\n"
        "src/rope.py:10: return None\n"
    )
    (repo / "src" / "rope.py").write_text("class RoPE:\n    pass\n")
    assert run(repo, "check") == 2
    assert "feature 'rope': its modifier 'src/rope.py::with_rope' is not there" in capsys.readouterr().err


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_history_of_a_feature_of_ours(capsys):
    assert main(["loc", "history", "lora", "--repo", str(ROOT), "--json"]) == 0
    commits = json.loads(capsys.readouterr().out)["lora"]
    assert commits[-1]["home"] == {"files": 1, "added": 64, "removed": 0}
    assert main(["loc", "history", "lora", "--repo", str(ROOT)]) == 0
    assert capsys.readouterr().out.startswith("lora\ncommit ")


@pytest.mark.parametrize(
    "argv, text",
    [
        (["footprint", "--repo", "nowhere"], "nowhere: no such directory.\n"),
        (["footprint", "rop", "--repo", str(ROOT)], "Dovetail has no feature 'rop'. Did you mean 'rope'?\n"),
        (
            ["check", "--repo", str(ROOT / "docs")],
            f"{ROOT / 'docs'}: of the descriptions axlearn, dovetail, levanter, maxtext, megatron, torchtitan, none "
            "fits. Name one with --description.\n",
        ),
        (
            ["footprint", "--repo", str(ROOT), "--description", "maxtext"],
            f"{ROOT}: not a checkout of MaxText: there is no directory 'src/maxtext'.\n",
        ),
        (["growth", "--experiments", "0"], "--experiments is 0, expected at least 1.\n"),
        (["growth", "--models", "0"], "--models is 0, expected at least 1.\n"),
    ],
)
def test_what_the_user_can_fix_is_one_message_and_exit_code_2(argv, text, capsys):
    assert main(["loc", *argv]) == 2
    assert capsys.readouterr().err == f"dovetail loc: {text}"


def test_no_history_is_one_message(repo, capsys):
    assert run(repo, "history", "rope") == 2
    assert "not in a git repository" in capsys.readouterr().err


def test_our_own_features_are_within_their_budgets_and_checking_them_does_not_import_jax():
    program = """if True:
        import sys
        from dovetail.cli import main
        code = main(["loc", "check"])
        assert not {"jax", "numpy"} & set(sys.modules)
        sys.exit(code)
    """
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_growth_over_budget_is_said():
    from dovetail.cli._loc import _over_budget
    from dovetail.loc._fit import Growth, Interval
    from dovetail.loc.description import load
    from dovetail.loc.growth import Measured

    zero, some = Interval(0, 0, 0), Interval(0.5, 0.4, 0.6)
    fine = Measured(7, Growth(Interval(7, 7, 7), zero, zero, ()), 4, 4, 16)
    features = load("dovetail").features
    assert _over_budget({"moe": fine}, features) == []
    long = Measured(11, fine.growth, 4, 4, 16)
    assert _over_budget({"moe": long}, features) == ["moe: 11 lines to apply it, 10 are allowed."]
    grown = Measured(7, fine.growth._replace(models=some), 4, 4, 16)
    assert _over_budget({"moe": grown}, features) == ["moe: lines grow with models or variants."]
