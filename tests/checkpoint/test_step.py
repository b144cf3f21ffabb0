# SPDX-License-Identifier: Apache-2.0
"""Manifests: damaged, missing, of another step, of a later format."""

import shutil

import pytest

from checkpoint.helpers import save_steps
from dovetail.checkpoint import CorruptionError
from dovetail.checkpoint._files import seal, unseal
from dovetail.checkpoint._step import check_files, damaged_files, read_file, read_manifest
from dovetail.config import ConfigError


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    save_steps(directory, 7)
    return directory / "step_7"


@pytest.fixture
def step(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "step_7")


def test_every_file_is_in_the_manifest(step):
    manifest = read_manifest(step)
    found = {file.relative_to(step).as_posix() for file in step.rglob("*") if file.is_file()}
    assert found == {*manifest.files, "manifest.json"}
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
    (step / "manifest.json").write_bytes(seal({**content, "format": 2}))
    with pytest.raises(ConfigError) as e:
        read_manifest(step)
    assert str(e.value) == f"checkpoint {step}: format 2 cannot be read: this version of dovetail reads 1."


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
