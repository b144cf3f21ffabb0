# SPDX-License-Identifier: Apache-2.0
"""`dovetail plot`, and `--picture` of other commands."""

import json

import pytest

from dovetail.cli import main
from dovetail.pictures import Picture
from support.drawn import check_texts, checked, texts


def _run(directory, *names):
    directory.mkdir(parents=True)
    lines = [{"step": step, "time": float(step), **dict.fromkeys(names, 1.0 / step)} for step in range(1, 9)]
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    return str(directory)


def _read(file):
    root = checked(Picture(file.read_text("utf-8")))
    check_texts(root)
    return texts(root)


def test_plot_draws_the_losses_of_runs_and_says_where(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, other = _run(tmp_path / "runs" / "a", "loss"), _run(tmp_path / "runs" / "<b>", "loss", "eval/loss")
    assert main(["plot", one, other]) == 0
    assert capsys.readouterr().out == "curves.svg\n"
    assert {"a", "<b>", "loss", "eval/loss", "step"} <= set(_read(tmp_path / "curves.svg"))
    assert main(["plot", "runs", "--metric", "eval/loss", "--smooth", "0.5", "--log", "--to", "new/eval.png"]) == 0
    assert "without eval/loss: a" in capsys.readouterr().err
    assert (tmp_path / "new" / "eval.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["--to", "a.gif"], "'a.gif': expected a file that ends with .svg or .png"),
        (["--metric", "los"], "none of these runs has measured 'los'. Did you mean 'loss'?"),
        (["--smooth", "2"], "smooth is 2, expected a number from 0 up to 1"),
        (["-x", "tokens"], "these runs count nothing: they share no such axis"),
    ],
)
def test_mistakes_are_one_message_and_exit_code_2(tmp_path, capsys, arguments, error):
    assert main(["plot", _run(tmp_path / "a", "loss"), *arguments]) == 2
    assert error in capsys.readouterr().err


def test_show_draws_the_model(tmp_path, capsys):
    file = tmp_path / "model.svg"
    assert main(["show", "gpt-neox-tiny", "--full", "--picture", str(file)]) == 0
    assert f"drawn: {file}" in capsys.readouterr().err
    assert {"gpt-neox-tiny", "embedding", "mixer", "ffn"} <= set(_read(file))


def test_predict_draws_a_step(tmp_path, capsys):
    file = tmp_path / "step.svg"
    arguments = ["predict", "tiny-lm", "--on", "tpu-v5p-8", "--fast", "--json", "--picture", str(file)]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["timeline"] == []
    assert any(text.startswith("tiny-lm on tpu-v5p-8: a step takes") for text in _read(file))


def test_plan_draws_the_options(tmp_path, capsys):
    file = tmp_path / "plan.svg"
    arguments = ["plan", "tiny-lm", "--on", "tpu-v5p-8", "--no-verify", "--json", "--picture", str(file)]
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert any(text.startswith("tiny-lm: ") for text in _read(file))
    assert file.read_text("utf-8").count('r="4.5"') == len(rows)


@pytest.mark.parametrize("command", ["predict", "compile", "plan", "show"])
def test_a_picture_that_could_not_be_written_is_refused_before_anything_takes_time(capsys, command):
    on = ["--on", "tpu-v5p-8"] if command != "show" else []
    assert main([command, "llama3-8b", *on, "--picture", "a.pdf"]) == 2
    assert "expected a file that ends with .svg or .png" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["compile", "tiny-lm", "--on", "tpu-v5p-8", "--serve"], "a step of training is drawn. Leave out --serve"),
        (["predict", "tiny-lm", "--on", "tpu-v5p-8", "--what-if"], "a prediction is drawn, no table"),
    ],
)
def test_a_table_is_no_picture(capsys, arguments, error):
    assert main([*arguments, "--picture", "a.svg"]) == 2
    assert error in capsys.readouterr().err
