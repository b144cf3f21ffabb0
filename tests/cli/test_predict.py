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


def test_a_recipe_may_stand_behind_an_option(capsys):
    assert main(["predict", "--on", "gpu-h100-8", "llama3-8b"]) == 0
    assert "llama3-8b on gpu-h100-8" in capsys.readouterr().out


def test_without_hardware_the_message_says_what_to_give(capsys):
    assert main(["predict", "llama2-7b"]) == 2
    assert "--on HARDWARE is missing" in capsys.readouterr().err


TABLE = """system,model,hw,chips,precision,seq,gbs,parallelism,remat,step_s,source
AXLearn,Llama2-7B,TPU v5p,256,bf16,4096,1024,fsdp=256,minimal,2.5,a paper
AXLearn,Llama2-70B,H100,512,bf16,4096,1024,,,9.2,a paper
Somebody,Unheard-of,H100,512,bf16,4096,1024,,,9.2,nowhere
"""


def test_a_table_of_measured_steps_is_scored(capsys, tmp_path):
    file = tmp_path / "steps.csv"
    file.write_text(TABLE)
    assert main(["predict", "--score", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rebuilt"], len(found["rows"])) == (2, 3)
    assert {"median_error", "p90_error", "coverage"} <= set(found)
    assert main(["predict", "--score", str(file)]) == 0
    out = capsys.readouterr().out
    assert "2 of 3 rows rebuilt: median error" in out
    assert "row 3: Unheard-of on H100: the shape of 'Unheard-of' is not known." in out
    assert "worst rows" in out


def test_a_table_that_is_not_there_is_one_message(capsys):
    assert main(["predict", "--score", "nowhere.csv"]) == 2
    assert "nowhere.csv: there is no such file" in capsys.readouterr().err
