# SPDX-License-Identifier: Apache-2.0
"""`export`: the model of a run in the format of Hugging Face, all of it or nothing."""

import json
import os
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from dovetail.cli import main
from support.directories import CHAT, change_json, contents, logits, losses, reading, write_small

ROWS = [[1, 2, 3, 4], [5, 6, 7, 8], [250, 251, 252, 253]]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A published model with more files than it needs."""
    directory = tmp_path_factory.mktemp("source") / "small"
    write_small(directory)
    (directory / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    (directory / "README.md").write_text("Not of the model.", encoding="utf-8")
    change_json(directory / "generation_config.json", do_sample=True, temperature=0.5, eos_token_id=[257, 258])
    return directory


@pytest.fixture(scope="module")
def trained(source, tmp_path_factory) -> dict[str, Path]:
    """Runs of two steps that started from the published model: on one device, and on eight."""
    place, runs = tmp_path_factory.mktemp("trained"), {}
    settings = ["steps=2", "learner.schedule.peak=1e-2", *reading(place / "text.txt")]
    for name, mesh in {"one": [], "eight": ["--mesh", "data=2,fsdp=2,tensor=2"]}.items():
        runs[name] = place / name
        assert main(["train", f"hf:{source}", *settings, f"directory={runs[name]}", *mesh]) == 0
    return runs


def test_training_on_eight_devices_starts_from_the_weights_that_one_device_has(trained):
    one, eight = losses(trained["one"]), losses(trained["eight"])
    assert eight == pytest.approx(one, rel=1e-5)
    assert one[0] > 6  # From scratch it is near log(260).
    assert one[1] < one[0]


@pytest.mark.parametrize("name", ["one", "eight"])
def test_an_exported_run_computes_what_the_run_does(name, trained, source, tmp_path):
    run, to = str(trained[name]), tmp_path / "exported"
    assert main(["export", run, "--to", str(to)]) == 0
    mesh = ["--mesh", "data=2,fsdp=2,tensor=2"] if name == "eight" else []
    found = logits(f"hf:{to}", ROWS, tmp_path, *mesh)
    np.testing.assert_array_equal(found, logits(run, ROWS, tmp_path))
    assert not np.allclose(found, logits(f"hf:{source}", ROWS, tmp_path), atol=1e-3)  # It has learned.


def test_all_but_the_weights_comes_back_from_a_run_as_it_was(trained, source, tmp_path):
    assert main(["export", str(trained["eight"]), "--to", str(tmp_path / "exported")]) == 0
    before, after = contents(source), contents(tmp_path / "exported")
    assert before.pop("model.safetensors") != after.pop("model.safetensors")
    del before["README.md"]
    assert after == before


def test_a_run_that_was_exported_and_imported_has_the_same_weights(trained, tmp_path):
    assert main(["export", str(trained["eight"]), "--to", str(tmp_path / "a")]) == 0
    assert main(["import", str(tmp_path / "a"), "--to", str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "b")]) == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_step_of_a_run_may_be_asked_for(trained, tmp_path, capsys):
    assert main(["export", str(trained["one"]), "--to", str(tmp_path / "two"), "--step", "2"]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path}/two: Qwen3ForCausalLM, 33,120 parameters in float32, {_megabytes(tmp_path / 'two')} MB\n"
    )
    assert main(["export", str(trained["one"]), "--to", str(tmp_path / "one"), "--step", "1"]) == 2
    assert capsys.readouterr().err.endswith(": there is no step 1, only 2.\n")
    assert not (tmp_path / "one").exists()


def _megabytes(directory: Path) -> str:
    return f"{sum(map(len, contents(directory).values())) / 1e6:.1f}"


def test_dtype_and_size_of_files_can_be_chosen(source, tmp_path):
    to = tmp_path / "split"
    command = ["export", f"hf:{source}", "--to", str(to), "--dtype", "bfloat16", "--shard-size", "0.00003"]
    assert main(command) == 0
    files = sorted(file.name for file in to.glob("*.safetensors"))
    assert files == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    index = json.loads((to / "model.safetensors.index.json").read_bytes())["weight_map"]
    before = load_file(source / "model.safetensors")
    after = {name: value for file in files for name, value in load_file(to / file).items()}
    assert index.keys() == after.keys() == before.keys()
    assert {value.dtype for value in after.values()} == {np.dtype(ml_dtypes.bfloat16)}
    for name, value in before.items():
        np.testing.assert_array_equal(after[name].astype(np.float32), value)  # These are exact in bfloat16.
    fields = json.loads((to / "config.json").read_bytes())
    assert (fields["dtype"], fields["torch_dtype"]) == ("bfloat16", "bfloat16")
    np.testing.assert_array_equal(logits(f"hf:{to}", ROWS, tmp_path), logits(f"hf:{source}", ROWS, tmp_path))


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_an_export_can_be_read_by_those_who_may_read_new_files(source, tmp_path):
    before = os.umask(0o022)
    try:
        assert main(["export", f"hf:{source}", "--to", str(tmp_path / "made" / "by" / "export")]) == 0
    finally:
        os.umask(before)
    directory = tmp_path / "made" / "by" / "export"
    assert directory.stat().st_mode & 0o777 == 0o755
    assert {file.stat().st_mode & 0o777 for file in directory.iterdir()} == {0o644}


def test_a_recipe_with_bytes_for_tokens_gets_a_tokenizer_that_others_read(tmp_path, capsys):
    run, to = str(tmp_path / "run"), str(tmp_path / "exported")
    assert main(["train", "llama3-tiny", "steps=1", "input.batch_size=2", f"directory={run}"]) == 0
    assert main(["export", run, "--to", to]) == 0
    np.testing.assert_array_equal(logits(f"hf:{to}", ROWS, tmp_path), logits(run, ROWS, tmp_path))
    written = []
    for name in (run, f"hf:{to}"):
        capsys.readouterr()
        assert main(["generate", name, "Wörter, 🐳 <eos>", "tokens=4", "sampling.temperature=0.0"]) == 0
        written.append(capsys.readouterr().out)
    assert written[0] == written[1]


# What is refused. All of it before anything is written.


@pytest.fixture
def refused(source, tmp_path, capsys, monkeypatch):
    """Runs an export that fails; returns what it said. It has left nothing."""

    def refused(*argv: str, name: str = f"hf:{source}", to: str = "new/export") -> str:
        monkeypatch.chdir(tmp_path)
        before = sorted(tmp_path.rglob("*"))
        assert main(["export", name, *argv, "--to", to]) == 2
        out, err = capsys.readouterr()
        assert sorted(tmp_path.rglob("*")) == before
        assert out == ""
        assert err.startswith("dovetail export: ")
        return err.removeprefix("dovetail export: ")

    return refused


def test_targets_that_cannot_be_are_refused(refused, source, trained, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine", encoding="utf-8")
    said = "--to: there is something in 'full' already. Name a directory that is new.\n"
    assert refused(to="full") == said
    assert refused(to="full", name="hf:nowhere") == said  # Before anything is read.
    assert refused(to=f"{source}/x") == (
        f"--to: '{source}/x' is inside of {str(source)!r}, which is read. Name a directory elsewhere.\n"
    )
    run = str(trained["one"])
    assert refused(name=run, to=f"{run}/x") == (
        f"--to: '{run}/x' is inside of {run!r}, which is read. Name a directory elsewhere.\n"
    )


def test_what_is_neither_a_run_nor_published_is_refused(refused):
    assert refused(name="nowhere") == "there is no run in 'nowhere': it has no directory 'checkpoints'.\n"
    assert refused(name="~nobody-of-this-name/x") == (
        "there is no run in '~nobody-of-this-name/x': it has no directory 'checkpoints'.\n"
    )


def test_a_published_model_has_no_steps(refused, source):
    assert refused("--step", "0") == f"hf:{source} is a published model, which has no steps. Leave out --step.\n"


@pytest.mark.parametrize("size", ["0", "-1", "nan", "inf"])
def test_files_of_no_size_are_refused(size, refused):
    assert refused(f"--shard-size={size}") == f"--shard-size is {float(size)}, expected more than 0.\n"


def test_a_model_of_no_family_is_refused_before_weights_are_read(refused, source, tmp_path):
    shutil.copytree(source, tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").unlink()
    said = refused("model.stack.layer.ffn_norm=LayerNorm", name=f"hf:{tmp_path}/copy")
    assert said.startswith("this model is of no family that can be published. The nearest is qwen3, which differs:\n")


def test_numbers_that_float16_does_not_reach_are_refused(refused, tmp_path):
    place = tmp_path / "large"
    write_small(place)
    raw = bytearray((place / "model.safetensors").read_bytes())
    raw[-4:] = np.float32(1e6).tobytes()
    (place / "model.safetensors").write_bytes(raw)
    said = refused("--dtype", "float16", name=f"hf:{place}", to="export")
    assert said.endswith(" has values that float16 does not reach. Use --dtype bfloat16, or float32.\n")
