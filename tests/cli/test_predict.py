# SPDX-License-Identifier: Apache-2.0
"""`dovetail predict`."""

import json

from dovetail.cli import main


def test_predict_prints_the_step_what_it_goes_to_and_what_was_assumed(capsys):
    assert main(["predict", "llama2-7b", "--on", "gpu-mi300x-256"]) == 0
    out = capsys.readouterr().out
    assert "llama2-7b on gpu-mi300x-256: a step takes" in out
    assert "by its traced program: " in out
    assert "assumed: products reach" in out
    assert "assumed: traced, not compiled: no compiler for AMD Instinct MI300X" in out
    assert "no price is known" in out


def test_predict_as_json_has_the_unit_of_the_input_in_its_names(capsys):
    assert main(["predict", "llama2-7b", "--on", "tpu-v5p-512", "--fast", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"step_seconds", "interval", "mfu", "tokens_per_second_per_chip", "breakdown"} <= set(found)
    assert {"cost_per_trillion_tokens", "method", "assumptions", "versions"} <= set(found)
    assert found["method"] == "traced"


def test_an_unknown_chip_is_one_message_and_exit_code_2(capsys):
    assert main(["predict", "llama2-7b", "--on", "tpu-v9-8"]) == 2
    assert "there is no chip 'tpu-v9'" in capsys.readouterr().err
