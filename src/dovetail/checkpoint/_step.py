# SPDX-License-Identifier: Apache-2.0
"""One step on disk: its manifest lists every leaf with its fingerprint and every file with its checksum.

    arrays/           the leaves
    config.json       the config of the run
    data_state.json   where the input was
    files/            what else is needed to use the model
    manifest.json     written last

How arrays lie on processes is in the manifest; each process writes one file of bytes under `arrays`, and one with their
sums. Those two are not listed, so a manifest is about as large for many processes as for few.

Steps of format 1 have arrays by Orbax, and all their files in the manifest.

A step may come from elsewhere. What is opened is a regular file under it, of a bounded size, and nothing else: no link,
device or pipe, and no name that leads out.
"""

import dataclasses
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Never

import jax.numpy as jnp

from dovetail.config import ConfigError
from dovetail.storage import reason

from ._errors import damaged
from ._files import FileSum, seal, sum_file, sync, unseal, write_file
from ._layout import Layout, Place, layout_from_text, layout_to_text
from ._leaves import LeafInfo
from ._step_files import not_regular, open_regular

ARRAYS = "arrays"
CONFIG = "config.json"
DATA_STATE = "data_state.json"
FILES = "files"
MANIFEST = "manifest.json"
_FORMAT = 2
_SMALL = 1 << 16  # Files up to this size are summed before each restore; the rest when something is wrong.
_MOST = 1 << 30  # Of the files that are read whole: manifest, config, files.
_CRC = re.compile(r"[0-9a-f]{8}\Z")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What is in a step."""

    step: int
    leaves: Mapping[str, LeafInfo]
    files: Mapping[str, FileSum]  # By path, relative to the step: those other than arrays; of format 1, all.
    places: Mapping[str, Place]  # How arrays lie on the processes that wrote them; of format 1, none.

    def to_bytes(self) -> bytes:
        """Returns the manifest as the content of its file."""
        layouts = list(dict.fromkeys(place.layout for place in self.places.values()))
        numbers = {layout: number for number, layout in enumerate(layouts)}
        leaves = {path: info.to_json() for path, info in self.leaves.items()}
        for path, place in self.places.items():
            how = {"shape": place.shape, "dtype": place.dtype, "grid": place.grid}
            leaves[path]["stored"] = {**how, "layout": numbers[place.layout]}
        content = {
            "format": _FORMAT if self.places else 1,
            "step": self.step,
            "leaves": leaves,
            "files": dict(self.files),
        }
        return seal(content | {"layouts": list(map(layout_to_text, layouts))})

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "Manifest":
        """Returns what `to_bytes` was called on, or a manifest of format 1; some error if it is none."""
        leaves, files = content["leaves"], _file_sums(content["files"])
        plain = {path: {key: info[key] for key in info if key != "stored"} for path, info in leaves.items()}
        places: dict[str, Place] = {}
        if content["format"] != 1:
            layouts = list(map(layout_from_text, content["layouts"]))
            places = {path: _place(info["stored"], layouts) for path, info in leaves.items()}
        return Manifest(content["step"], {p: LeafInfo.from_json(info) for p, info in plain.items()}, files, places)


def _place(stored: Mapping[str, Any], layouts: Sequence[Layout]) -> Place:
    """Returns how an array lies on processes; a ValueError if the parts do not fit."""
    shape, grid = tuple(stored["shape"]), tuple(stored["grid"])
    sizes_fit = all(type(size) is int and size >= 0 for size in shape) and len(shape) == len(grid)
    if not sizes_fit or not all(type(count) is int and count > 0 for count in grid):
        raise ValueError(f"{stored!r:.80} does not say how an array was written")
    place = Place(shape, str(jnp.dtype(stored["dtype"])), grid, layouts[stored["layout"]])
    cells = sum(len(group.cells) for group in place.layout.groups)
    if math.prod(grid) != cells or any(size % count for size, count in zip(shape, grid, strict=True)):
        raise ValueError(f"{stored!r:.80} does not say how an array was written")
    return place


def write_rest(
    path: Path,
    *,
    step: int,
    leaves: Mapping[str, LeafInfo],
    places: Mapping[str, Place],
    rest: Mapping[str, bytes],
) -> None:
    """Writes the files other than arrays, and last the manifest of all."""
    (path / FILES).mkdir()
    sums = {name: write_file(path / name, data) for name, data in rest.items()}
    write_file(path / MANIFEST, Manifest(step, leaves, sums, places).to_bytes())
    for directory in (path / ARRAYS, path / FILES, path):
        sync(directory)


def read_manifest(path: Path) -> Manifest:
    """Returns the manifest of a finished step. Of format 1, all that is there are regular files."""
    try:
        data = _read(path / MANIFEST)
    except (OSError, ValueError) as e:
        _raise_damaged(path, [f"{MANIFEST}: {reason(e)}"], e)
    manifest = parse_manifest(str(path), data)
    problems = [f"{name}: is a symbolic link." for name in (ARRAYS, FILES) if (path / name).is_symlink()]
    if not manifest.places:
        problems += _irregular(path)
    if problems:
        _raise_damaged(path, problems)
    return manifest


def parse_manifest(name: str, data: bytes) -> Manifest:
    """Returns the manifest of the step of that name (its last part says the number) from the content of its file."""
    try:
        content = unseal(data)
        if content["format"] in (1, _FORMAT):
            manifest = Manifest.from_json(content)
            if name.rpartition("/")[2] == f"step_{manifest.step}":
                return manifest
            raise ValueError(f"it is of step {manifest.step}")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as e:
        raise damaged(name, [f"{MANIFEST}: {reason(e)}"]) from e
    raise ConfigError(
        f"checkpoint {name}: format {content['format']!r} cannot be read: "
        f"this version of dovetail reads 1 to {_FORMAT}."
    )


def _irregular(path: Path, under: str = "") -> Iterator[str]:
    """Yields what is wrong with entries that are neither regular files nor directories."""
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = f"{under}{entry.name if entry.name.isprintable() else ascii(entry.name)}"
            if entry.is_dir(follow_symlinks=False):
                yield from _irregular(Path(entry.path), f"{name}/")
            elif not entry.is_file(follow_symlinks=False):
                yield f"{name}: {not_regular(entry.stat(follow_symlinks=False).st_mode)}."


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
    with open(open_regular(file), "rb") as opened:
        data = opened.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError(f"it has more than {_MOST:,} bytes")
    return data


def read_file(path: Path, manifest: Manifest, name: str) -> bytes:
    """Returns the content of a small file of the step, checked."""
    if name not in manifest.files:
        _raise_damaged(path, [f"{MANIFEST}: it does not list {name!r}."])
    if problem := _file_problem(path, name, manifest.files[name], thorough=True):
        _raise_damaged(path, [problem])
    try:
        return _read(path / name)
    except ValueError as e:
        _raise_damaged(path, [f"{name}: {e}."], e)


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
        if not stat.S_ISREG((found := (path / name).lstat()).st_mode):
            return f"{name}: {not_regular(found.st_mode)}."
        size = found.st_size
        if size != expected["size"]:
            return f"{name}: {size} bytes, {expected['size']} were written."
        if thorough and (now := sum_file(path / name)) != expected:
            return f"{name}: crc32 {now['crc32']}, {expected['crc32']} was written."
    except OSError as e:
        return f"{name}: {reason(e)}"
    return None


def _raise_damaged(path: Path, problems: Sequence[str | None], cause: Exception | None = None) -> Never:
    raise damaged(str(path), list(filter(None, problems))) from cause
