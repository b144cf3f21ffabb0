# SPDX-License-Identifier: Apache-2.0
"""What `diff` prints of two recipes."""

import json
import sys

from dovetail.cli import main


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
    assert main(["diff", "tiny-lm", "tiny-lm"]) == 0
    assert capsys.readouterr().out == ""
