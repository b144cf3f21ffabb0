# SPDX-License-Identifier: Apache-2.0
"""`hf:DIRECTORY` as a recipe: what commands make of it, and of one that is damaged or means harm."""

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dovetail.cli import main, resolve
from dovetail.config import from_json
from support.directories import change_json, reading, write_small

INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A published model, which tests do not change."""
    directory = tmp_path_factory.mktemp("source") / "small"
    write_small(directory)
    return directory


@pytest.fixture
def copied(source, tmp_path) -> Path:
    """A copy of it, which they do."""
    shutil.copytree(source, tmp_path / "copy")
    return tmp_path / "copy"


# What commands make of it.


def test_show_prints_the_model_and_where_its_weights_are_from(source, capsys):
    assert main(["show", f"hf:{source}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    cfg: Any = from_json(json.dumps(shown["config"]))
    assert shown["parameters"] == 33_120
    assert cfg.init_from.path == f"hf:{source}"
    assert main(["show", f"hf:{source}"]) == 0
    out = capsys.readouterr().out
    assert f"hf:{source}: 33,120 parameters\n" in out
    assert out.endswith("to be set: input.dataset.source.files=...\n")
    assert max(map(len, out.splitlines())) < 400  # The table of weights is cut short.


def test_show_without_weights_needs_no_weights(copied, capsys):
    (copied / WEIGHTS).unlink()
    assert main(["show", f"hf:{copied}", "--full"]) == 0
    assert "model.vocab_size = 260\n" in capsys.readouterr().out


def test_diff_has_places_and_what_the_files_say_differently(source, copied, capsys):
    change_json(copied / "config.json", rms_norm_eps=0.001)
    change_json(copied / "generation_config.json", eos_token_id=[257, 258])
    assert main(["diff", f"hf:{source}", f"hf:{copied}", "--json"]) == 0
    found = {each["path"]: each["new"] for each in json.loads(capsys.readouterr().out)}
    places = {"input.tokenizer.file", "init_from.path", "directory"}
    eps = {path for path, new in found.items() if path.endswith(".eps") and new == "0.001"}
    assert len(eps) == 5  # Of two norms in a layer, of queries and keys, and of the last.
    assert found.keys() == places | eps | {"evaluators.sample.sampling.stop"}
    assert found["directory"] == "'runs/copy'"


def test_compile_reports_a_step_of_training(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = ["compile", f"hf:{source}", "--on", "cpu-1", "--json", "input.batch_size=2", "input.seq_len=16"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["parameters"], report["tokens_per_step"], report["fits"]) == (33_120, 32, True)


def test_eval_reads_all_of_a_text_with_the_tokenizer_of_the_directory(source, tmp_path, capsys):
    reading(tmp_path / "text.txt")
    assert main(["eval", f"hf:{source}", "--json", "--text", str(tmp_path / "text.txt")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"step", "eval/loss", "eval/accuracy", "eval/tokens"}
    assert (found["step"], found["eval/tokens"]) == (0, len((tmp_path / "text.txt").read_bytes()))
    assert main(["eval", f"hf:{source}"]) == 2
    assert capsys.readouterr().err == (
        "dovetail eval: this run has nothing to evaluate it (in evaluators). "
        "Name a text or data: --text FILE, --data PLACE\n"
    )


def test_train_needs_a_text_and_leaves_nothing_without(source, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"hf:{source}", "steps=1"]) == 2
    assert capsys.readouterr().err == (
        "dovetail train: Trainer.Config: 1 required field is not set:\n"
        "  input.dataset.source.files: list[str]\n"
        "  Add them, as in input.dataset.source.files=...\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_named_after_directory_and_text_and_goes_on_without_the_directory(
    copied, capsys, tmp_path, monkeypatch
):
    reading(tmp_path / "my notes.txt")
    monkeypatch.chdir(tmp_path)
    command = ["train", "hf:copy", "--text", "my notes.txt", "steps=1", "input.batch_size=2", "input.seq_len=16"]
    assert main(command) == 0
    assert "The run is in runs/copy-my-notes.\nWeights are from hf:copy.\n" in capsys.readouterr().out
    shutil.rmtree(copied)
    assert main(["train", "runs/copy-my-notes", "steps=2", "--allow-change"]) == 0
    assert "Going on after step 1.\nIts weights are its own, not those of init_from.\n" in capsys.readouterr().out


def test_hardware_may_follow_the_name(source):
    assert resolve(f"hf:{source}@tpu-v5e-8").cfg == resolve(f"hf:{source}", on="tpu-v5e-8").cfg
    assert resolve(f"hf:{source}@tpu-v5e-8").cfg.mesh.num_devices == 8


def test_another_run_does_not_start_from_it_without_its_table(source, tmp_path, capsys):
    command = ["train", "qwen3-tiny", "--from", f"hf:{source}", "steps=1", f"directory={tmp_path}/run"]
    assert main(command) == 2
    assert capsys.readouterr().err == (
        f"dovetail train: init_from: 'hf:{source}' is in the format of Hugging Face, but there is no table of its "
        f"weights.\n  Start from its recipe, which has it: dovetail train hf:{source} ...\n"
    )
    assert not (tmp_path / "run").exists()


# What is damaged.


@pytest.fixture
def refusal(copied, tmp_path, capsys, monkeypatch) -> Callable[..., str]:
    """Returns the one message of every command that reads the weights of the copy; they leave nothing behind."""
    monkeypatch.chdir(tmp_path)
    text = reading(tmp_path / "text.txt")
    (tmp_path / "tokens.txt").write_text("1 2 3", encoding="utf-8")

    def refusal(name: str = f"hf:{copied}") -> str:
        before, said = sorted(tmp_path.rglob("*")), set()
        for command, *others in (
            ["import", name, "--to", "new"],
            ["export", name, "--to", "new"],
            ["train", name, "steps=1", "directory=new", *text],
            ["generate", name, "--tokens", "tokens.txt", "--logits", "out.npy"],
            ["eval", name, "--text", "text.txt"],
        ):
            assert main([command, *others]) == 2
            out, err = capsys.readouterr()
            assert out == ""
            assert "Traceback" not in err
            said.add(err.removeprefix(f"dovetail {command}: "))
            assert sorted(tmp_path.rglob("*")) == before
        (only,) = said
        return only

    return refusal


def test_names_that_lead_nowhere_are_refused(refusal, tmp_path):
    advice = "Name one, or a repository as in hf:ORG/NAME.\n"
    assert refusal("hf:") == f"hf:: names no directory. {advice}"
    for name in ("nowhere", "./nowhere", "../nowhere", "~nobody-of-this-name/x", "a/b/c"):
        assert refusal(f"hf:{name}") == f"hf:{name}: there is no directory {name!r}. {advice}"
    assert refusal("hf:text.txt") == f"hf:text.txt: there is no directory 'text.txt'. {advice}"
    (tmp_path / "empty").mkdir()
    assert refusal("hf:empty") == (
        "hf:empty: the directory has no config.json. Name one in the format of Hugging Face.\n"
    )


def test_a_repository_without_the_library_to_download_it_is_refused(refusal, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refusal("hf:org/name") == (
        "hf:org/name: there is no such directory, and to download it huggingface_hub is needed: "
        "pip install 'dovetail[hf]'.\n"
    )


@pytest.mark.parametrize(
    "text, said",
    [
        ("{", "is not JSON: Expecting property name"),
        ("[]", "holds a list, expected an object."),
        ('{"model_type": "x", "model_type": "y"}', "is not JSON: the key 'model_type' is there twice."),
        ("[" * 10**5, "is nested too deeply."),
        ("{}", "model_type is None, which dovetail does not have."),
        ('{"model_type": "nope"}', "model_type is 'nope', which dovetail does not have.\n  It has: "),
        ('{"model_type": ["qwen3"]}', "model_type is ['qwen3'], which dovetail does not have."),
    ],
)
def test_a_config_that_is_none_is_refused(text, said, refusal, copied):
    (copied / "config.json").write_text(text, encoding="utf-8")
    assert refusal().startswith(f"{copied / 'config.json'}: {said}")


@pytest.mark.parametrize(
    "change, said",
    [
        ({"hidden_act": "mish"}, "hidden_act is 'mish': is not implemented here, only "),
        ({"clever": True}, "fields that dovetail does not know for qwen3: clever = True.\n"),
        ({"architectures": ["BertModel"]}, "architectures is ['BertModel'], expected ['Qwen3ForCausalLM'] for "),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"hidden_size": -32}, "hidden_size is -32"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"hidden_size": None}, "has no field 'hidden_size', which its model needs.\n"),
    ],
)
def test_a_config_with_values_that_cannot_be_is_refused(change, said, refusal, copied):
    change_json(copied / "config.json", **change)
    assert f"config.json: {said}" in refusal()


def _changed(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS)


def _pickle_only(directory: Path) -> str:
    (directory / WEIGHTS).rename(directory / "pytorch_model.bin")
    return f"{directory}/pytorch_model.bin: is a pickle file, which can run code; it is never loaded.\n"


def _no_weights(directory: Path) -> str:
    (directory / WEIGHTS).unlink()
    return f"{directory}: has no weights: "


def _cut(directory: Path) -> str:
    (directory / WEIGHTS).write_bytes((directory / WEIGHTS).read_bytes()[:-1000])
    return f"{directory / WEIGHTS}: "


def _bomb(directory: Path) -> str:
    (directory / WEIGHTS).write_bytes((2**62).to_bytes(8, "little") + b"{}")
    return f"{directory / WEIGHTS}: "


def _link(directory: Path) -> str:
    (directory / WEIGHTS).rename(directory.parent / "elsewhere.safetensors")
    (directory / WEIGHTS).symlink_to("../elsewhere.safetensors")
    return f"{directory / WEIGHTS}: is a symbolic link, expected a regular file"


def _traversal(directory: Path) -> str:
    names = dict.fromkeys(load_file(directory / WEIGHTS), "../elsewhere.safetensors")
    (directory / WEIGHTS).rename(directory.parent / "elsewhere.safetensors")
    (directory / INDEX).write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    return f"{directory / INDEX}: names the file '../elsewhere.safetensors', expected one in the same directory"


def _missing(directory: Path) -> str:
    _changed(directory, lambda tensors: tensors.pop("model.norm.weight"))
    return f"{directory}: its tensors are not those that its config.json describes:\n  is missing: model.norm.weight\n"


def _spare(directory: Path) -> str:
    _changed(directory, lambda tensors: tensors.update({"model.extra.weight": np.zeros(3, np.float32)}))
    return (
        f"{directory}: its tensors are not those that its config.json describes:\n"
        "  has no place in the model: model.extra.weight\n"
    )


def _misshapen(directory: Path) -> str:
    _changed(directory, lambda tensors: tensors.update({"model.norm.weight": np.zeros(31, np.float32)}))
    return (
        f"{directory}: its tensors are not those that its config.json describes:\n"
        "  model.norm.weight is (31,), expected (32,)\n"
    )


def _integers(directory: Path) -> str:
    _changed(directory, lambda tensors: tensors.update({"model.norm.weight": np.zeros(32, np.int32)}))
    return f"{directory}: its tensors are not those that its config.json describes:\n  model.norm.weight is "


@pytest.mark.parametrize(
    "damage",
    [
        _pickle_only,
        _no_weights,
        _cut,
        _bomb,
        _link,
        _traversal,
        _missing,
        _spare,
        _misshapen,
        _integers,
    ],
)
def test_weights_that_are_not_those_of_the_config_are_one_message(damage, refusal, copied):
    said = damage(copied)
    assert refusal().startswith(said)


def test_a_file_beside_that_leads_elsewhere_is_refused_and_not_copied(refusal, copied, tmp_path):
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    (copied / "merges.txt").symlink_to("../secret")
    assert refusal().startswith(f"{copied / 'merges.txt'}: is a symbolic link")


@pytest.mark.parametrize("content", [b"{}", b"\xff", b"[" * 10**5])
def test_a_tokenizer_that_is_none_is_refused(content, refusal, copied):
    (copied / "tokenizer.json").write_bytes(content)
    assert refusal().startswith(f"input.tokenizer.file: '{copied}/tokenizer.json' is not a tokenizer.json: ")


# What means harm.


class _Harm:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def harmful(copied, tmp_path) -> tuple[Path, Path]:
    """A directory that has code in all places where others run it, and what that code would make."""
    marker = tmp_path / "harm"
    code = f"import os\nos.mkdir({str(marker)!r})\n"
    for name in ("modeling_small.py", "configuration_small.py", "tokenization_small.py", "__init__.py", "conftest.py"):
        (copied / name).write_text(code, encoding="utf-8")
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (copied / name).write_bytes(pickle.dumps(_Harm(marker)))
    return copied, marker


def test_no_code_of_a_directory_is_run(harmful, tmp_path, capsys, monkeypatch):
    directory, marker = harmful
    name, opened = f"hf:{directory}", set[str]()
    watching = [True]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if watching[0] and event == "open" and isinstance(args[0], str) and args[0].startswith(str(directory)):
            opened.add(Path(args[0]).name)

    sys.addaudithook(hook)
    monkeypatch.chdir(directory)  # Where Python would look for modules.
    text = reading(tmp_path / "text.txt")
    assert main(["show", name]) == 0
    assert main(["generate", name, "It was", "tokens=2"]) == 0
    assert main(["import", name, "--to", str(tmp_path / "run")]) == 0
    assert main(["train", name, "steps=1", f"directory={tmp_path}/trained", *text]) == 0
    assert main(["export", str(tmp_path / "trained"), "--to", str(tmp_path / "exported")]) == 0
    watching[0] = False
    assert not marker.exists()
    assert "config.json" in opened  # The watch works.
    assert not [each for each in opened if each.endswith((".py", ".bin", ".pt"))]
    exported = {file.name for file in (tmp_path / "exported").iterdir()}
    assert exported == {"config.json", "generation_config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_model_that_is_code_is_refused(file, harmful, refusal):
    directory, marker = harmful
    change_json(directory / file, auto_map={"AutoModelForCausalLM": "modeling_small.Small"})
    if file == "config.json":
        change_json(directory / file, model_type="small")
    assert "never run" in refusal()
    assert not marker.exists()
