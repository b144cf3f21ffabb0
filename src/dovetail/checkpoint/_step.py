# SPDX-License-Identifier: Apache-2.0
"""One step on disk: its manifest lists every leaf with its fingerprint and every file with its checksum.

    arrays/           the leaves, by Orbax
    config.json       the config of the run
    data_state.json   where the input was
    files/            what else is needed to use the model
    manifest.json     written last

Each process writes `part_<process>.json`: the fingerprints of its shards, and the sums of its share of the files under
`arrays`. The first one puts them together in the manifest.

A step may come from elsewhere. What is opened is a regular file under it, of a bounded size, and nothing else: no link,
device or pipe, and no name that leads out.
"""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Never

import numpy as np

from dovetail.config import ConfigError

from ._errors import CorruptionError, ElsewhereError, bullets, reason
from ._files import FileSum, seal, sum_file, sync, unseal, write_file
from ._fingerprint import to_text
from ._leaves import LeafInfo

ARRAYS = "arrays"
CONFIG = "config.json"
DATA_STATE = "data_state.json"
FILES = "files"
_MANIFEST = "manifest.json"
_FAILED = "failed"  # In a step in the making: a process could not write its part.
_FORMAT = 1
_SMALL = 1 << 16  # Files up to this size are summed before each restore; the rest when something is wrong.
_MOST = 1 << 30  # Of the files that are read whole: manifest, config, files.
_CRC = re.compile(r"[0-9a-f]{8}\Z")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What is in a step."""

    step: int
    leaves: Mapping[str, LeafInfo]
    files: Mapping[str, FileSum]  # By path, relative to the step.

    def to_bytes(self) -> bytes:
        """Returns the manifest as the content of its file."""
        leaves = {path: info.to_json() for path, info in self.leaves.items()}
        return seal({"format": _FORMAT, "step": self.step, "leaves": leaves, "files": dict(self.files)})


def write_part(path: Path, fingerprints: Mapping[str, np.ndarray], process: int, processes: int) -> None:
    """Writes what one process adds to the manifest."""
    found = sorted([path / ARRAYS, *(path / ARRAYS).rglob("*")])
    share = [p for p in found if p.is_file()][process::processes]
    for p in [*share, *(p for p in found if p.is_dir())]:
        sync(p)  # TensorStore has done so for its files, Orbax has not for those it writes itself.
    sums = {p.relative_to(path).as_posix(): sum_file(p) for p in share}
    prints = {leaf: numbers.tolist() for leaf, numbers in fingerprints.items()}
    write_file(_part(path, process), seal({"files": sums, "fingerprints": prints}))


def note_failure(path: Path) -> None:
    """Tells the other processes that this one has not written its part, if the disk lets it."""
    with contextlib.suppress(OSError):
        (path / _FAILED).touch()


def has_failed(path: Path) -> bool:
    """Whether a process has noted that it failed."""
    return (path / _FAILED).exists()


def write_rest(
    path: Path, *, step: int, leaves: Mapping[str, LeafInfo], rest: Mapping[str, bytes], processes: int
) -> None:
    """Writes the files other than arrays, and last the manifest of all."""
    sums: dict[str, FileSum] = {}
    prints = {leaf: np.zeros(2, np.uint32) for leaf in leaves}
    if not all(_part(path, process).exists() for process in range(processes)):
        raise ElsewhereError
    for process in range(processes):
        part = unseal(_part(path, process).read_bytes())
        _part(path, process).unlink()
        sums |= part["files"]
        prints = {leaf: total + np.array(part["fingerprints"][leaf], np.uint32) for leaf, total in prints.items()}
    (path / FILES).mkdir()
    for name, data in rest.items():
        sums[name] = write_file(path / name, data)
    infos = {leaf: dataclasses.replace(info, fingerprint=to_text(prints[leaf])) for leaf, info in leaves.items()}
    write_file(path / _MANIFEST, Manifest(step, infos, sums).to_bytes())
    sync(path / FILES)
    sync(path)


def _part(path: Path, process: int) -> Path:
    return path / f"part_{process}.json"


def read_manifest(path: Path) -> Manifest:
    """Returns the manifest of a finished step, whose names are those of regular files under it."""
    try:
        if problems := list(_irregular(path)):
            _raise_damaged(path, problems)
        content = unseal(_read(path / _MANIFEST))
        if content["format"] == _FORMAT:
            leaves = {leaf: LeafInfo.from_json(info) for leaf, info in content["leaves"].items()}
            manifest = Manifest(content["step"], leaves, _file_sums(content["files"]))
            if path.name == f"step_{manifest.step}":
                return manifest
            raise ValueError(f"it is of step {manifest.step}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        _raise_damaged(path, [f"{_MANIFEST}: {reason(e)}"], e)
    raise ConfigError(
        f"checkpoint {path}: format {content['format']!r} cannot be read: this version of dovetail reads {_FORMAT}."
    )


def _irregular(path: Path, under: str = "") -> Iterator[str]:
    """Yields what is wrong with entries that are neither regular files nor directories."""
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = f"{under}{entry.name if entry.name.isprintable() else ascii(entry.name)}"
            if entry.is_dir(follow_symlinks=False):
                yield from _irregular(Path(entry.path), f"{name}/")
            elif not entry.is_file(follow_symlinks=False):
                what = "a symbolic link" if entry.is_symlink() else "a device, pipe or socket"
                yield f"{name}: is {what}, expected a regular file."


def _file_sums(found: Mapping[str, Any]) -> dict[str, FileSum]:
    """Returns the sums of the files in a manifest, checked; a ValueError for a name that leads out of the step."""
    for name, file in found.items():
        if not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
            raise ValueError(f"it lists {name!r}, expected the relative name of a file of the step")
        if file.keys() != {"size", "crc32"} or type(file["size"]) is not int or not _CRC.match(file["crc32"]):
            raise ValueError(f"it lists {name!r} as {file!r:.80}, expected a size and a crc32")
    return dict(found)


def _read(file: Path) -> bytes:
    """Returns the content of a file that is read whole."""
    with file.open("rb") as opened:
        data = opened.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError(f"it has more than {_MOST:,} bytes")
    return data


def read_file(path: Path, manifest: Manifest, name: str) -> bytes:
    """Returns the content of a small file of the step, checked."""
    if name not in manifest.files:
        _raise_damaged(path, [f"{_MANIFEST}: it does not list {name!r}."])
    if problem := _file_problem(path, name, manifest.files[name], thorough=True):
        _raise_damaged(path, [problem])
    try:
        return _read(path / name)
    except ValueError as e:
        _raise_damaged(path, [f"{name}: {e}."], e)


def read_text(path: Path, manifest: Manifest, name: str) -> str:
    """Returns the content of a small file of the step that is text, checked."""
    try:
        return read_file(path, manifest, name).decode()
    except UnicodeDecodeError as e:
        _raise_damaged(path, [f"{name}: it is not text in UTF-8."], e)


def read_json(path: Path, manifest: Manifest, name: str) -> Any:
    """Returns the JSON data in a small file of the step, checked."""
    text = read_text(path, manifest, name)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        _raise_damaged(path, [f"{name}: {reason(e)}"], e)


def check_files(path: Path, manifest: Manifest) -> None:
    """Raises if a file is missing or of another size, or if a small one has changed. Reads no array."""
    sums = manifest.files.items()
    problems = [_file_problem(path, name, file, thorough=file["size"] <= _SMALL) for name, file in sums]
    if any(problems):
        _raise_damaged(path, problems)


def damaged_files(path: Path, manifest: Manifest) -> list[str]:
    """Returns what is wrong with which file. Reads all of them."""
    problems = [_file_problem(path, name, file, thorough=True) for name, file in manifest.files.items()]
    return [problem for problem in problems if problem]


def _file_problem(path: Path, name: str, expected: FileSum, *, thorough: bool) -> str | None:
    try:
        size = (path / name).stat().st_size
        if size != expected["size"]:
            return f"{name}: {size} bytes, {expected['size']} were written."
        if thorough and (found := sum_file(path / name)) != expected:
            return f"{name}: crc32 {found['crc32']}, {expected['crc32']} was written."
    except OSError as e:
        return f"{name}: {reason(e)}"
    return None


def _raise_damaged(path: Path, problems: Sequence[str | None], cause: Exception | None = None) -> Never:
    raise CorruptionError(f"checkpoint {path} is damaged:{bullets(list(filter(None, problems)))}") from cause
