# SPDX-License-Identifier: Apache-2.0
"""`doctor`: what it finds on this machine."""

import functools
import json

from dovetail.cli import _doctor, main


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
