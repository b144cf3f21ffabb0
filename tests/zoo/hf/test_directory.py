# SPDX-License-Identifier: Apache-2.0
"""`hf:DIRECTORY` and `hf:ORG/NAME`: what the files of a published model say; no code and no link is followed."""

import fnmatch
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from dovetail.config import ConfigError
from dovetail.zoo.hf import directory_of, open_directory
from support.published import golden_configs

CONFIG = golden_configs()["llama/0"]


def write(directory: Path, **files: Any) -> str:
    """Writes the config.json of a model and further JSON files, by their names without the ending."""
    for name, value in {"config": CONFIG, **files}.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (directory / f"{name}.json").write_text(text, encoding="utf-8")
    return f"hf:{directory}"


def error_of(name: str) -> str:
    with pytest.raises(ConfigError) as e:
        open_directory(name)
    return str(e.value)


def test_a_directory_says_its_family_its_model_and_what_has_no_effect(tmp_path):
    found = open_directory(write(tmp_path, generation_config={"temperature": 0.5}))
    assert (found.path, found.family.model_type, dict(found.fields)) == (tmp_path, "llama", CONFIG)
    assert found.model == found.family.read("x", CONFIG).model
    assert found.ignored["model_type"] == "names the family"
    assert (found.generation, found.special, found.has_tokenizer) == ({"temperature": 0.5}, {}, False)
    assert found.beside == ("config.json", "generation_config.json")
    assert found.files["config.json"] == (tmp_path / "config.json").read_bytes()


def test_the_files_that_travel_are_read_and_others_are_not(tmp_path):
    texts = ("chat_template.jinja", "vocab.json", "merges.txt", "tokenizer.model", "tokenizer.json")
    others = ("modeling_own.py", "pytorch_model.bin", "README.md", "tokenizer.py")
    for name in (*texts, *others):
        (tmp_path / name).write_bytes(b"\xff\x00 of " + name.encode())
    found = open_directory(write(tmp_path))
    assert set(found.files) == {"config.json", *texts}
    assert found.has_tokenizer
    assert set(found.beside) == {"config.json", *texts} - {"tokenizer.json"}
    assert all(found.files[name] == (tmp_path / name).read_bytes() for name in texts)


def test_special_tokens_are_texts_or_objects_and_those_of_the_tokenizer_win(tmp_path):
    special = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None, "unk_token": 3}
    name = write(tmp_path, special_tokens_map=special, tokenizer_config={"eos_token": "<end>", "bos_token": None})
    assert open_directory(name).special == {"bos_token": "<s>", "eos_token": "<end>"}


@pytest.mark.parametrize("token", [3, ["<s>"], {}, {"content": 3}, True])
def test_a_special_token_that_is_no_text_is_refused(token, tmp_path):
    name = write(tmp_path, tokenizer_config={"eos_token": token})
    assert error_of(name) == (
        f"{tmp_path / 'tokenizer_config.json'}: eos_token is {token!r}, expected text, or an object with content."
    )


@pytest.mark.parametrize("file", ["special_tokens_map", "tokenizer_config"])
def test_a_tokenizer_with_code_of_its_own_is_refused(file, tmp_path):
    name = write(tmp_path, **{file: {"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}})
    assert error_of(name) == (
        f"{tmp_path / file}.json: auto_map names code of the tokenizer's own, which is never run.\n"
        "  Remove it if tokenizer.json says all that the code does."
    )


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "is not JSON: Expecting value: line 1 column 1 (char 0)."),
        ("{", "is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."),
        ("[1]", "holds a list, expected an object."),
        ("null", "holds a NoneType, expected an object."),
        ('{"a": 1, "b": 2, "a": 1}', "is not JSON: the key 'a' is there twice."),
        ('{"a": {"b": 1, "b": 2}}', "is not JSON: the key 'b' is there twice."),
        ("[" * 100_000, "is nested too deeply."),
        ('{"a":' * 100_000, "is nested too deeply."),
    ],
)
@pytest.mark.parametrize("file", ["config", "generation_config", "tokenizer_config"])
def test_a_file_that_is_no_object_of_json_is_refused(file, text, why, tmp_path):
    assert error_of(write(tmp_path, **{file: text})) == f"{tmp_path / file}.json: {why}"


def test_a_file_that_is_no_text_is_refused(tmp_path):
    name = write(tmp_path)
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    assert error_of(name).startswith(f"{tmp_path / 'config.json'}: is not JSON: 'utf-8' codec can't decode byte 0xff")


def test_a_number_of_many_digits_is_refused(tmp_path):
    name = write(tmp_path, config=json.dumps(CONFIG)[:-1] + ', "vocab_size_": 1' + "0" * 5000 + "}")
    assert error_of(name).startswith(f"{tmp_path / 'config.json'}: is not JSON: Exceeds the limit")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    name = write(tmp_path)
    os.truncate(tmp_path / "config.json", (1 << 25) + 1)
    assert error_of(name) == (
        f"{tmp_path / 'config.json'}: has 33,554,433 bytes, expected at most 33,554,432.\n  Download or copy it again."
    )


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"])
def test_a_link_is_not_followed(file, tmp_path):
    (tmp_path / "model").mkdir()
    name = write(tmp_path / "model")
    secret = tmp_path / "secret"
    secret.write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "model" / file).unlink(missing_ok=True)
    (tmp_path / "model" / file).symlink_to(secret)
    assert error_of(name) == (
        f"{tmp_path / 'model' / file}: is a symbolic link, expected a regular file (links are followed only inside a "
        "cache of Hugging Face, from <repo>/snapshots/<commit> to <repo>/blobs).\n  Put the file itself there."
    )


def test_a_link_of_the_cache_of_hugging_face_is_followed(tmp_path):
    snapshot, blobs = tmp_path / "repo" / "snapshots" / "abc", tmp_path / "repo" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "123").write_text(json.dumps(CONFIG), encoding="utf-8")
    (snapshot / "config.json").symlink_to(Path("..") / ".." / "blobs" / "123")
    assert open_directory(f"hf:{snapshot}").family.model_type == "llama"


def test_a_directory_or_pipe_for_a_file_is_refused_without_waiting(tmp_path):
    name = write(tmp_path)
    (tmp_path / "tokenizer.json").mkdir()
    what = f"{tmp_path / 'tokenizer.json'}: is {{}}, expected a regular file.\n  Put the file itself there."
    assert error_of(name) == what.format("a directory")
    (tmp_path / "tokenizer.json").rmdir()
    os.mkfifo(tmp_path / "tokenizer.json")
    assert error_of(name) == what.format("a device, pipe or socket")


@pytest.mark.parametrize(
    "make", [lambda file: None, lambda file: file.mkdir(), lambda file: file.symlink_to("nowhere")]
)
def test_a_directory_without_a_config_is_refused(make, tmp_path):
    make(tmp_path / "config.json")
    assert error_of(f"hf:{tmp_path}") == (
        f"hf:{tmp_path}: the directory has no config.json. Name one in the format of Hugging Face."
    )


@pytest.mark.parametrize("place", ["/nowhere/at/all", "nowhere", "a/b/c", "a/../b", "org/na me", "org/"])
def test_what_is_neither_a_directory_nor_a_repository_is_refused_without_a_download(place, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("there is no such name"))
    assert error_of(f"hf:{place}") == (
        f"hf:{place}: there is no directory {place!r}. Name one, or a repository as in hf:ORG/NAME."
    )


def test_no_name_is_refused():
    assert error_of("hf:") == "hf:: names no directory. Name one, or a repository as in hf:ORG/NAME."


REPOSITORY = (
    *("config.json", "tokenizer.json", "model.safetensors", "model-00001-of-00002.safetensors"),
    *("model.safetensors.index.json", "chat_template.jinja", "tokenizer.model", "merges.txt", "vocab.json"),
)
LEFT_OUT = (
    *("modeling_own.py", "pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "weights.pkl", "tf_model.h5"),
    *("consolidated.safetensors", "consolidated.00.pth", "onnx/model.json", "original/params.json", "setup.sh"),
    *("model.gguf", "flax_model.msgpack", "rust_model.ot", "code/x.py", "README.md", "model.npz"),
)


class Hub:
    """Stands for the library: what it is asked for, and what it would take of a repository."""

    def __init__(self, directory: Path | BaseException) -> None:
        self.directory, self.calls = directory, list[dict[str, Any]]()

    def __call__(self, repository: str, **options: Any) -> str:
        self.calls.append({"repository": repository, **options})
        if isinstance(self.directory, BaseException):
            raise self.directory
        return str(self.directory)

    def taken(self) -> set[str]:
        allowed, ignored = (self.calls[-1][f"{name}_patterns"] for name in ("allow", "ignore"))

        def is_in(name: str, patterns: list[str]) -> bool:
            return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

        return {each for each in (*REPOSITORY, *LEFT_OUT) if is_in(each, allowed) and not is_in(each, ignored)}


def test_a_repository_is_downloaded_without_code_and_pickles(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub := Hub(tmp_path))
    assert open_directory("hf:org/name").path == tmp_path
    assert hub.calls[0]["repository"] == "org/name"
    assert set(hub.calls[0]) == {"repository", "allow_patterns", "ignore_patterns"}
    assert hub.taken() == set(REPOSITORY)
    open_directory("hf:org/name", weights=False)
    assert hub.taken() == {name for name in REPOSITORY if not name.endswith(".safetensors")}


@pytest.mark.parametrize(
    "raised, why",
    [
        (OSError("Network is unreachable"), "Network is unreachable"),
        (ConnectionError("\n\nGot: no route to host\nmore\n"), "no route to host"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("Repository Not Found for url: x.\nPlease log in."), "Repository Not Found for url: x."),
    ],
)
def test_whatever_the_network_raises_is_one_line_of_a_config_error(raised, why, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Hub(raised))
    with pytest.raises(ConfigError) as e:
        directory_of("hf:org/name")
    assert str(e.value) == (
        f"hf:org/name: there is no directory 'org/name', and no repository of this name can be downloaded: {why}"
    )
    assert e.value.__cause__ is raised


def test_ctrl_c_in_a_download_is_not_an_error_of_the_network(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Hub(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        directory_of("hf:org/name")


def test_without_the_library_a_download_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=re.escape("huggingface_hub is needed: pip install 'dovetail[hf]'.")):
        directory_of("hf:org/name")


def test_a_directory_here_wins_over_a_repository_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("org/name").mkdir(parents=True)
    write(Path("org/name"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("it is here"))
    assert open_directory("hf:org/name").path == Path("org/name")


def test_a_home_directory_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    write(tmp_path / "model")
    assert open_directory("hf:~/model").path == tmp_path / "model"
