# SPDX-License-Identifier: Apache-2.0
"""Manifests: damaged, missing, of another step, of a later format, or made to lead elsewhere."""

import copy
import json
import os
import random
import shutil
import sys
import zlib
from typing import Any

import pytest

from checkpoint.helpers import abstract, config_in, save_steps, small_state
from dovetail.checkpoint import CheckpointError, CorruptionError, load_config
from dovetail.checkpoint._files import seal, unseal
from dovetail.checkpoint._step import check_files, damaged_files, read_file, read_manifest
from dovetail.checkpoint._store_posix import PosixStore
from dovetail.config import ConfigError


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    save_steps(directory, 7)
    return directory / "step_7"


@pytest.fixture
def step(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "step_7")


def test_every_file_is_in_the_manifest_but_those_of_the_arrays(step):
    manifest = read_manifest(step)
    found = {file.relative_to(step).as_posix() for file in step.rglob("*") if file.is_file()}
    assert found == {*manifest.files, "manifest.json", "arrays/0", "arrays/0.json"}
    assert {"config.json", "data_state.json", "files/vocab"} < found
    check_files(step, manifest)
    assert damaged_files(step, manifest) == []
    assert sorted(manifest.leaves) == ["key", "params.ffn.bias", "params.ffn.weight", "step"]


def test_damage_to_the_manifest_is_named(step):
    file = step / "manifest.json"
    good = file.read_bytes()

    def problem(data: bytes | None) -> str:
        file.unlink(missing_ok=True)
        if data is not None:
            file.write_bytes(data)
        with pytest.raises(CorruptionError) as e:
            read_manifest(step)
        return str(e.value).removeprefix(f"checkpoint {step} is damaged:\n  manifest.json: ")

    assert problem(None) == "No such file or directory."
    assert problem(b"").startswith("JSONDecodeError: Expecting value")
    assert problem(good[:-20]).startswith("JSONDecodeError")
    assert problem(good.replace(b"float32", b"float64", 1)) == "ValueError: its checksum does not fit its content"
    assert problem(seal({"format": 1})) == "KeyError: 'leaves'"
    assert problem(seal({**unseal(good), "step": 8})) == "ValueError: it is of step 8"


def test_a_later_format_is_not_damage(step):
    content = unseal((step / "manifest.json").read_bytes())
    (step / "manifest.json").write_bytes(seal({**content, "format": 3}))
    with pytest.raises(ConfigError) as e:
        read_manifest(step)
    assert str(e.value) == f"checkpoint {step}: format 3 cannot be read: this version of dovetail reads 1 to 2."


def test_a_changed_file_is_named_with_both_checksums(step):
    manifest = read_manifest(step)
    assert read_file(step, manifest, "files/vocab") == b"a b c"
    (step / "files/vocab").write_bytes(b"a b d")
    with pytest.raises(CorruptionError) as e:
        read_file(step, manifest, "files/vocab")
    assert str(e.value) == f"checkpoint {step} is damaged:\n  files/vocab: crc32 564a9873, c82e0dd0 was written."
    (step / "files/vocab").write_bytes(b"a b")
    (step / "config.json").unlink()
    with pytest.raises(CorruptionError) as e:
        check_files(step, manifest)
    assert str(e.value) == (
        f"checkpoint {step} is damaged:\n"
        f"  config.json: No such file or directory.\n"
        f"  files/vocab: 3 bytes, 5 were written."
    )


@pytest.mark.parametrize(
    "name", ["/dev/zero", "../step_7/files/vocab", "files/../../x", "", "files//vocab", "a\0b", "\x1b[2J"]
)
def test_a_manifest_may_only_list_files_of_its_step(name, step):
    content = unseal((step / "manifest.json").read_bytes())
    content["files"][name] = {"size": 5, "crc32": "c82e0dd0"}
    (step / "manifest.json").write_bytes(seal(content))
    with pytest.raises(CorruptionError) as e:
        read_manifest(step)
    expected = f"it lists {name!r}, expected the relative name of a file of the step"
    assert str(e.value) == f"checkpoint {step} is damaged:\n  manifest.json: ValueError: {expected}"


@pytest.mark.parametrize("name", ["manifest.json", "files/vocab", "arrays/0", "arrays/0.json"])
@pytest.mark.parametrize("kind", ["a symbolic link", "a device, pipe or socket"])
def test_what_is_not_a_regular_file_is_never_opened(kind, name, step):
    file = step / name
    file.unlink(missing_ok=True)
    if kind == "a symbolic link":
        file.symlink_to("/dev/zero")  # It never ends; a pipe never begins.
    else:
        os.mkfifo(file)
    with pytest.raises(CorruptionError) as e:
        config_in(step.parent).build().restore(abstract(small_state()))
    assert str(e.value) == f"checkpoint {step} is damaged:\n  {name}: is {kind}, expected a regular file."


@pytest.mark.parametrize("name", ["arrays", "files"])
def test_directories_of_a_step_are_no_links(name, step):
    (step / name).rename(step / "elsewhere")
    (step / name).symlink_to(step / "elsewhere")
    with pytest.raises(CorruptionError) as e:
        read_manifest(step)
    assert str(e.value) == f"checkpoint {step} is damaged:\n  {name}: is a symbolic link."


@pytest.mark.parametrize(
    "name, data, problem",
    [
        ("config.json", b"\xff", "it is not text in UTF-8."),
        ("data_state.json", b"\xff", "it is not text in UTF-8."),
        ("data_state.json", b"{", "JSONDecodeError: Expecting property name"),
        ("data_state.json", b"[" * 100_000, "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_a_file_that_is_as_its_manifest_says_and_yet_cannot_be_read_is_damage(name, data, problem, step):
    (step / name).write_bytes(data)
    content = unseal((step / "manifest.json").read_bytes())
    content["files"][name] = {"size": len(data), "crc32": f"{zlib.crc32(data):08x}"}
    (step / "manifest.json").write_bytes(seal(content))
    read = {"config.json": lambda: load_config(str(step.parent))}
    with pytest.raises(CorruptionError) as e:
        read.get(name, lambda: PosixStore(step.parent).read_json(7, read_manifest(step), name))()
    assert str(e.value).startswith(f"checkpoint {step} is damaged:\n  {name}: {problem}")


ODD: list[Any] = [None, True, -1, 1 << 70, 0.5, "", "x", "..", "../x", "/dev/zero", "/etc/passwd", "\x1b[2J", [], {}]
ODD += [["/dev/zero"], {"size": 5}, {"size": 0, "crc32": "00000000"}, {"size": -1, "crc32": 7}, [[[]]]]
NAMES = ["..", "/dev/zero", "../../etc/passwd", "files/vocab/x", "arrays", "manifest.json", "files/\ud800", "new", ""]


def mutated(content: Any, choose: random.Random) -> Any:
    """Returns JSON data in which one place, anywhere, was replaced, removed or added."""
    root: Any = {"": copy.deepcopy(content)}
    places: list[tuple[Any, Any]] = [(root, "")]
    for holder, key in places:  # It grows while we go.
        value = holder[key]
        keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        places += [(value, k) for k in keys]
    holder, key = choose.choice(places)
    value = holder[key]
    if isinstance(value, dict) and choose.random() < 0.5:
        value[choose.choice(NAMES)] = choose.choice([*ODD, {"size": 5, "crc32": "c82e0dd0"}])
    elif isinstance(holder, dict) and key and choose.random() < 0.3:
        del holder[key]
    else:
        holder[key] = choose.choice(ODD)
    return root[""]


opened: list[str] = []
watching = False


def note_opened(event: str, args: tuple[Any, ...]) -> None:
    if watching and event == "open" and isinstance(args[0], str | os.PathLike):
        opened.append(os.path.abspath(os.fspath(args[0])))


def test_whatever_a_manifest_says_the_answer_is_a_clear_error_and_nothing_outside_the_step_is_opened(step):
    global watching
    sys.addaudithook(note_opened)  # For the rest of the process: there is no way to take it back.
    good = unseal((step / "manifest.json").read_bytes())
    choose, refused = random.Random(0), 0
    for _ in range(300):
        content = mutated(mutated(good, choose) if choose.random() < 0.5 else good, choose)
        (step / "manifest.json").write_bytes(seal(content))
        watching = True
        try:
            manifest = read_manifest(step)
            check_files(step, manifest)
            damaged_files(step, manifest)
            load_config(str(step.parent))
        except (CheckpointError, ConfigError):
            refused += 1
        finally:
            watching = False
    outside = [path for path in opened if not path.startswith(f"{step}{os.sep}")]
    assert not outside
    assert opened
    assert refused > 200


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"content": 1e400, "crc32": ""}', b"9" * 10_000, json.dumps("x").encode()]
)
def test_a_manifest_that_is_no_manifest_is_damage(data, step):
    (step / "manifest.json").write_bytes(data)
    with pytest.raises(CorruptionError, match=r"manifest\.json: "):
        read_manifest(step)
