# SPDX-License-Identifier: Apache-2.0
"""Commands in processes of their own."""

import subprocess

from dovetail.cli import _verify


def test_what_compilers_say_comes_back_by_key(monkeypatch):
    """Instead of processes, what they would print: one fits, one is too large, one has no compiler."""

    def run(command, **kwargs):
        verb, name = command[3], command[4]
        assert command[-1] == "--json"
        answers = {
            ("compile", "good"): (0, '{"hbm_per_chip_gib": 40.0}', ""),
            ("predict", "good"): (0, '{"method": "compiled", "step_seconds": 2.0}', ""),
            ("compile", "large"): (3, '{"hbm_per_chip_gib": 99.0}', ""),
            ("compile", "traced"): (0, '{"hbm_per_chip_gib": 41.0}', ""),
            ("predict", "traced"): (0, '{"method": "traced", "step_seconds": 2.0}', ""),
            ("compile", "bad"): (2, "", "noise\ndovetail compile: no compiler\n"),
        }
        return subprocess.CompletedProcess(command, *answers[verb, name])

    monkeypatch.setattr(subprocess, "run", run)
    found = dict(_verify.verify({i: [name] for i, name in enumerate(("good", "large", "traced", "bad"))}))
    assert found[0] == _verify.Verified(True, 40.0, 2.0)
    assert found[1] == _verify.Verified(False, 99.0, None)
    assert found[2] == _verify.Verified(True, 41.0, None)
    assert found[3] == _verify.Verified(True, None, None, "no compiler")


def test_a_command_that_fails_is_a_problem_of_its_row_alone():
    ((key, said),) = _verify.verify({7: ["no-such-recipe", "--on", "gpu-h100-8"]})
    assert key == 7
    assert "no-such-recipe" in said.problem
