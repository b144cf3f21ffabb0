# SPDX-License-Identifier: Apache-2.0
"""`dovetail plan`."""

import json
import shlex

import pytest

from dovetail.cli import _plan, main
from dovetail.cli._main import parsed
from dovetail.cli._resolve import resolve
from dovetail.cli._verify import Verified
from dovetail.plan import Wanted, pools_on

ARGS = ["plan", "llama2-7b", "--on", "gpu-h100-64"]


def test_a_plan_has_a_table_a_command_and_what_was_assumed(capsys):
    assert main([*ARGS, "--no-verify", "--tokens", "2T", "--by", "cost"]) == 0
    out = capsys.readouterr().out
    assert "llama2-7b: 2.00T tokens, by cost" in out
    assert "1: dovetail train llama2-7b --on gpu-h100-64 --mesh " in out
    assert "mesh rules" in out
    assert "tie" in out
    assert "assumed: gpu-h100-64: 6.88 US dollars a chip-hour" in out


def test_a_plan_as_json_has_everything(capsys):
    assert main([*ARGS, "--no-verify", "--json", "--deadline", "30d"]) == 0
    found = json.loads(capsys.readouterr().out)
    row = found["rows"][0]
    assert {"fits", "step_seconds", "interval", "cost", "days", "breakdown", "command", "tie", "goodput"} <= set(row)
    assert row["meets_deadline"] in (True, False)
    assert row["compiled_gib"] is None
    assert found["candidates"] > 1000


@pytest.mark.parametrize(
    "name, on, overrides, linear",
    [
        ("llama2-7b", "gpu-h100-64", [], "Float8Linear"),
        ("llama2-70b", "gpu-h100-4096", [], ""),  # The mesh rules choose a pipeline there.
        ("llama2-7b", "tpu-v6e-16x2", ["input.batch_size=512", "mesh.tensor=2"], ""),
    ],
)
def test_the_command_of_a_row_makes_its_config(name, on, overrides, linear):
    cfg = resolve(name, overrides).cfg
    fixed = _plan._fixed(cfg, overrides)
    args = parsed(["plan", name, "--on", on, *overrides, *(["--linear", linear] if linear else [])])
    found = _plan._planned(cfg, pools_on([on]), Wanted(1e12), args)
    assert any(row.overrides for row in found.rows) == bool(linear)
    for row in found.rows[::3]:
        args = parsed(shlex.split(_plan.train_command(name, overrides, row))[1:])
        assert resolve(args.recipe, args.overrides, args.mesh, args.on).cfg == row.cfg
        args = parsed(["compile", *_plan.compile_arguments(name, overrides, row)])
        assert resolve(args.recipe, args.overrides, on=args.on).cfg == row.cfg
        assert row.cfg.mesh.sizes["tensor"] == 2 or not fixed


def test_what_the_compiler_says_decides(capsys, monkeypatch):
    """Of the first row it says that it does not fit, of others their time; the first that is left was compiled."""
    asked = []

    def verify(runs):
        for key, arguments in runs.items():
            asked.append(arguments)
            yield key, Verified(key != 0 or len(asked) > 1, 50.0, None if key == 0 else 1.0 + len(asked) / 100)

    monkeypatch.setattr(_plan, "verify", verify)
    monkeypatch.setattr("dovetail.aot.versions", lambda hardware: {})
    assert main([*ARGS, "--verify", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(arguments[:3] == ["llama2-7b", "--on", "gpu-h100-64"] for arguments in asked)
    assert found["rows"][0]["compiled_gib"] == 50.0
    assert not found["rows"][-1]["fits"]


def test_without_a_compiler_it_is_said(capsys):
    assert main(["plan", "llama2-7b", "--on", "trn2-16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "no compiler for AWS Trainium2" in found["not_compiled"][0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--on", "tpu-v9-8"], "there is no chip 'tpu-v9'"),
        (["--on", ","], "--on names no hardware"),
        (["--on", "gpu-h100-64", "--tokens", "many"], "--tokens is 'many'"),
        (["--on", "gpu-h100-64", "--deadline", "soon"], "--deadline is 'soon'"),
        (["--on", "gpu-gb200-64", "--by", "cost"], "there is no price of gpu-gb200"),
        (["--on", "tpu-v5p-64", "--by", "energy"], "the power of tpu-v5p is not published"),
        (["--on", "gpu-h100-64", "--verify", "-1"], "--verify is -1"),
        (["--pools", "nowhere.toml"], "nowhere.toml: it cannot be read"),
        (["--on", "gpu-h100-64", "mesh.tensor=5"], "there is no plan"),
        (["--on", "cpu-8"], "the bandwidth of its memory is not known"),
    ],
)
def test_what_a_user_can_fix_is_one_message_and_exit_code_2(arguments, message, capsys):
    assert (
        main(
            ["plan", "llama2-7b", "--no-verify", *arguments]
            if "--verify" not in arguments
            else ["plan", "llama2-7b", *arguments]
        )
        == 2
    )
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
