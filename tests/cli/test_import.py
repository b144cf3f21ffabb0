# SPDX-License-Identifier: Apache-2.0
"""`import`: a published model becomes a run, which is used, trained and resumed, and comes back as it was."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.checkpoint import Checkpointer
from dovetail.cli import main, resolve
from dovetail.config import ConfigError
from support.directories import CHAT, change_json, contents, logits, losses, reading, write_small

ROWS = [[1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A published model, which tests do not change."""
    directory = tmp_path_factory.mktemp("source") / "small"
    write_small(directory)
    return directory


@pytest.fixture(scope="module")
def run(source, tmp_path_factory) -> Path:
    """A run that was imported and trained for four steps."""
    place = tmp_path_factory.mktemp("run")
    settings = ["steps=4", "save_every=2", "seed=7", *reading(place / "text.txt")]
    assert main(["import", str(source), *settings, "--to", str(place / "run")]) == 0
    shutil.copytree(place / "run", place / "untrained")
    assert main(["train", str(place / "run")]) == 0
    return place / "run"


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("qwen3-tiny", "float32"),
        ("llama3-tiny", "bfloat16"),
        ("mixtral-tiny", "float16"),
        ("hybrid-tiny", "float32"),
        ("deepseek-v3-tiny", "bfloat16"),
    ],
)
def test_export_of_an_import_is_what_was_imported_byte_for_byte(name, dtype, tmp_path, capsys):
    write_small(tmp_path / "source", name, dtype=dtype)
    (tmp_path / "source" / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    (tmp_path / "source" / "merges.txt").write_bytes(b"\xff\x00 any bytes")
    assert main(["import", str(tmp_path / "source"), "--to", str(tmp_path / "run")]) == 0
    assert f" parameters in {dtype}\n" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "again")]) == 0
    assert contents(tmp_path / "again") == contents(tmp_path / "source")


def test_an_import_says_what_it_is_and_what_was_not_used(source, tmp_path, capsys):
    assert main(["import", f"hf:{source}", "--to", str(tmp_path / "run")]) == 0
    assert capsys.readouterr() == (
        f"{tmp_path}/run: Qwen3ForCausalLM, 33,120 parameters in float32\n"
        "  not used of config.json: architectures, model_type: names the family\n"
        "  not used of config.json: bos_token_id, eos_token_id, pad_token_id: of the tokenizer\n"
        "  not used of config.json: dtype, torch_dtype: of the file: the tensors say it themselves\n",
        "",
    )
    assert resolve(str(tmp_path / "run")).cfg.init_from is None  # It has all that it needs.


def test_an_imported_run_evaluates_and_writes_as_the_directory_does_after_that_is_gone(tmp_path, capsys):
    write_small(tmp_path / "source")
    reading(tmp_path / "text.txt")
    commands = (["eval", "--json", "--text", str(tmp_path / "text.txt")], ["generate", "It was", "--json", "tokens=5"])
    found = []
    for name in (f"hf:{tmp_path}/source", f"{tmp_path}/run"):
        for command, *others in commands:
            assert main([command, name, *others]) == 0
            found.append(json.loads(capsys.readouterr().out) | {"tokens_per_second": 0})
        if name.startswith("hf:"):
            assert main(["import", name, "--to", str(tmp_path / "run")]) == 0
            shutil.rmtree(tmp_path / "source")
            capsys.readouterr()
    assert found[:2] == found[2:]
    assert found[0]["eval/loss"] > 6  # That of a model before it has learned is near log(260), which is less.


def test_training_goes_on_from_the_imported_weights(run, source, tmp_path):
    input_cfg: Any = resolve(str(run)).cfg.input
    batch = next(iter(input_cfg.build()))
    scores = logits(f"hf:{source}", batch["tokens"], tmp_path).astype(np.float64)
    chances = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    expected = -np.take_along_axis(chances, batch["targets"][..., None].astype(int), -1)[..., 0]
    assert (batch["segments"] == 1).all()  # So that rows are read alone here.
    first, *others = losses(run)
    assert first == pytest.approx(np.average(expected, weights=batch["weights"]), rel=1e-5)
    assert len({first, *others}) == 4
    assert first > 6  # From scratch it is near log(260).


def test_an_imported_run_that_was_stopped_goes_on_bit_for_bit(run, tmp_path, capsys):
    stopped = tmp_path / "run"
    shutil.copytree(run, stopped)
    shutil.rmtree(stopped / "checkpoints" / "step_4")
    assert main(["train", str(stopped)]) == 0
    assert "Going on after step 2." in capsys.readouterr().out
    np.testing.assert_array_equal(logits(str(stopped), ROWS, tmp_path), logits(str(run), ROWS, tmp_path))


def test_a_run_on_another_text_starts_from_an_imported_one_and_leaves_it(run, tmp_path, capsys):
    untrained = run.parent / "untrained"
    file, new = tmp_path / "other.txt", tmp_path / "new"
    file.write_text("Some other text. " * 40, encoding="utf-8")
    assert main(["train", str(untrained), "--text", str(file), "steps=1", f"directory={new}"]) == 0
    assert f"Weights are from {untrained}, step 0." in capsys.readouterr().out
    assert [each.name for each in (untrained / "checkpoints").iterdir()] == ["step_0"]
    assert not np.array_equal(logits(str(new), ROWS, tmp_path), logits(str(untrained), ROWS, tmp_path))


def test_an_import_onto_a_mesh_has_the_same_weights(source, tmp_path):
    command = ["import", str(source), "--to", str(tmp_path / "run"), "--mesh", "fsdp=4,tensor=2"]
    assert main(command) == 0
    assert resolve(str(tmp_path / "run")).cfg.mesh.text() == "fsdp=4,tensor=2"
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "again")]) == 0
    assert contents(tmp_path / "again") == contents(source)


# Tokenizers.


def test_without_a_tokenizer_the_run_takes_tokens_and_says_what_is_missing(source, tmp_path, capsys):
    bare, to = tmp_path / "bare", str(tmp_path / "run")
    shutil.copytree(source, bare)
    (bare / "tokenizer.json").unlink()
    assert main(["import", str(bare), "--to", to]) == 0
    said = "  There is no tokenizer.json: to read and write text, set input.tokenizer.file=...\n"
    assert capsys.readouterr().err == said
    np.testing.assert_array_equal(logits(to, ROWS, tmp_path), logits(f"hf:{source}", ROWS, tmp_path))
    capsys.readouterr()
    assert main(["generate", to, "It was"]) == 2
    assert "  input.tokenizer.file: str\n" in capsys.readouterr().err


@pytest.mark.parametrize("has_its_own", [True, False])
def test_a_tokenizer_that_is_named_is_the_one_that_the_run_carries(has_its_own, source, tmp_path, capsys):
    directory, other, to = tmp_path / "source", tmp_path / "other.json", str(tmp_path / "run")
    shutil.copytree(source, directory)
    content = (source / "tokenizer.json").read_text(encoding="utf-8")
    other.write_text(content.replace("<pad>", "<end>"), encoding="utf-8")
    if not has_its_own:
        (directory / "tokenizer.json").unlink()
    settings = [f"input.tokenizer.file={other}", "input.tokenizer.pad_token=<end>", "input.tokenizer.beside=()"]
    assert main(["import", str(directory), *settings, "--to", to]) == 0
    assert capsys.readouterr().err == ""
    files = resolve(to).files
    assert files is not None
    assert files["tokenizer.json"] == other.read_bytes()
    other.unlink()
    shutil.rmtree(directory)
    assert main(["generate", to, "It was", "tokens=2"]) == 0
    assert capsys.readouterr().out.startswith("It was")


# What is refused. All of it before anything is written.


@pytest.fixture
def refused(source, tmp_path, capsys, monkeypatch):
    """Runs an import that fails; returns what it said. It has left nothing."""

    def refused(*argv: str, directory: Path = source, to: str = "new/run") -> str:
        monkeypatch.chdir(tmp_path)
        before = sorted(tmp_path.rglob("*"))
        assert main(["import", str(directory), *argv, "--to", to]) == 2
        out, err = capsys.readouterr()
        assert sorted(tmp_path.rglob("*")) == before
        assert out == ""
        assert err.startswith("dovetail import: ")
        return err.removeprefix("dovetail import: ")

    return refused


def test_a_target_with_something_in_it_is_refused_before_anything_is_read(refused, tmp_path):
    said = "--to: there is something in 'full' already. Name a directory that is new.\n"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("not even JSON", encoding="utf-8")
    assert refused(directory=tmp_path / "broken", to="full") == said
    (tmp_path / "link").symlink_to("nowhere")
    assert refused(to="link") == said.replace("full", "link")
    assert refused(to="full/notes.txt") == said.replace("full", "full/notes.txt")
    assert refused(to="full/notes.txt/run") == (
        f"--to: 'full/notes.txt/run' cannot be made: '{tmp_path}/full/notes.txt' is not a directory.\n"
    )
    assert refused(to="") == "--to: names no directory.\n"


def test_a_target_inside_of_the_source_is_refused(refused, source, tmp_path):
    said = f"is inside of {str(source)!r}, which is read. Name a directory elsewhere.\n"
    assert refused(to=f"{source}/run") == f"--to: '{source}/run' {said}"
    (tmp_path / "alias").symlink_to(source)
    assert refused(to="alias/run") == f"--to: 'alias/run' {said}"
    assert refused(to=f"{source}/../small/x/y") == f"--to: '{source}/../small/x/y' {said}"
    assert not (source / "run").exists()


def test_an_empty_target_is_taken(source, tmp_path):
    (tmp_path / "run").mkdir()
    assert main(["import", str(source), "--to", str(tmp_path / "run")]) == 0
    assert [each.name for each in (tmp_path / "run").iterdir()] == ["checkpoints"]


def test_a_run_is_not_imported(refused, run):
    assert refused(directory=run) == f"{str(run)!r} is a run already. Use it as it is, or copy it.\n"


def test_overrides_that_leave_parameters_without_weights_are_refused(refused, source):
    one = "init_from: weights are saved from one published model. Leave init_from as its recipe has it.\n"
    assert refused("init_from=None") == one
    assert refused("init_from.path=runs/other") == one
    assert refused("init_from.strict=False", "model.stack.layer.ffn_norm=LayerNorm") == (
        "this model has parameters for which the format of its family has no place:\n"
        "  stack.layer.ffn_norm.bias\n"
        "  Leave out what they belong to, or use a family that has it.\n"
    )
    assert refused("model.vocab_size=270") == (
        f"{source}: its tensors are not those that its config.json describes:\n"
        "  model.embed_tokens.weight is (260, 32), expected (270, 32)\n"
        "  Nothing was loaded.\n"
    )
    assert refused("steps=many") == "steps: expected int, found 'many'.\n"


def test_a_second_file_that_is_cut_short_leaves_nothing(refused, source, tmp_path, capsys):
    assert main(["export", f"hf:{source}", "--to", str(tmp_path / "split"), "--shard-size", "0.00007"]) == 0
    capsys.readouterr()
    second = tmp_path / "split" / "model-00002-of-00002.safetensors"
    content = second.read_bytes()
    second.write_bytes(content[:-100])
    assert f"{second}: " in refused(directory=tmp_path / "split")
    second.write_bytes(content)
    assert main(["import", str(tmp_path / "split"), "--to", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("error", [ConfigError("the disk is full"), KeyboardInterrupt()])
def test_an_import_that_fails_while_it_writes_leaves_nothing(error, source, tmp_path, monkeypatch):
    def save(self: Any, step: int, state: Any, **_: Any) -> None:
        directory = tmp_path / "run" / "checkpoints" / "step_0"
        directory.mkdir(parents=True)
        (directory / "half").write_bytes(bytes(10))
        raise error

    monkeypatch.setattr(Checkpointer, "save", save)
    command = ["import", str(source), "--to", str(tmp_path / "run")]
    if isinstance(error, ConfigError):
        assert main(command) == 2
    else:
        with pytest.raises(KeyboardInterrupt):
            main(command)
    assert list(tmp_path.iterdir()) == []


def test_values_that_change_nothing_are_taken_and_come_back(source, tmp_path):
    shutil.copytree(source, tmp_path / "source")
    change_json(tmp_path / "source" / "config.json", use_cache=True, pad_token_id=258, attention_dropout=0.0)
    assert main(["import", str(tmp_path / "source"), "--to", str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "again")]) == 0
    before, after = (json.loads((tmp_path / each / "config.json").read_bytes()) for each in ("source", "again"))
    assert after == before
