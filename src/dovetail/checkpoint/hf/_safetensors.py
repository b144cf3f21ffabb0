# SPDX-License-Identifier: Apache-2.0
"""Weights in the format of Hugging Face: a directory with one safetensors file, or several and an index of them.

    model.safetensors                    all tensors, or

    model-00001-of-00002.safetensors     some of them
    model-00002-of-00002.safetensors     the others
    model.safetensors.index.json         which is where

A directory may come from elsewhere. What is opened is a regular file in it. A symbolic link is refused, for it can lead
anywhere, with one exception: the cache of Hugging Face keeps `<repo>/snapshots/<commit>/model.safetensors` as a link to
`<repo>/blobs/<id>`. A link is followed if the directory is under such a `snapshots`, and the file that it leads to is
in the `blobs` beside it. Nothing is written while reading.
"""

import contextlib
import itertools
import json
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from dovetail.config import ConfigError, did_you_mean
from dovetail.progress import Count, counting

from .._files import sync, write_file
from ._header import AGAIN, METADATA, MOST, StoredTensor, header_bytes, parse, read_header, refuse, shown

_ONE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SUFFIX = ".safetensors"
_PICKLE = re.compile(r"pytorch_model.*\.bin|.*\.(?:pt|pth|ckpt|pkl)", re.IGNORECASE)
_PART = re.compile(r".*-\d+-of-(?!0*1\.)\d+\.safetensors")
_NOT_ONE_MODEL = "Download or copy both again: they are not of the same model."
_CONVERT = "Convert it with transformers: save_pretrained(safe_serialization=True)."


class _OpenFile(NamedTuple):
    descriptor: int
    size: int


class TensorDirectory:
    """The tensors in a directory of safetensors files, as views of the files.

    All headers are read and checked at once, and their tensors are those the index lists; no tensor is read. The files
    stay open, so that each is the one that was checked, until `close`, or the end of a `with`.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._files: dict[Path, _OpenFile] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        try:
            self.tensors: Mapping[str, StoredTensor] = MappingProxyType(self._read())
        except BaseException:
            self.close()
            raise

    def view(self, name: str) -> np.ndarray:
        """Returns a tensor as a read-only array in the memory-mapped file: it is read when it is looked at.

        It may lie at any address, not only at a multiple of its item size. A file that another program cuts short while
        there are views of it ends the process when they are looked at: that is how memory maps work.
        """
        tensor = self._tensor(name)
        if tensor.is_packed:
            refuse(
                tensor.file,
                f"tensor {shown(name)} has dtype {tensor.dtype}, of which several share a byte: it cannot be viewed",
                "Convert it to a dtype of whole bytes.",
            )
        data = self._map(tensor.file)
        if not tensor.nbytes:
            empty = np.empty(tensor.shape, tensor.dtype)
            empty.flags.writeable = False
            return empty
        count = tensor.nbytes // tensor.dtype.itemsize
        return np.frombuffer(data, tensor.dtype, count, tensor.start).reshape(tensor.shape)

    def release(self, name: str) -> None:
        """Tells the system that the pages of a tensor need not stay in memory. Views of it are read again if needed."""
        tensor = self._tensor(name)
        data = self._maps.get(tensor.file)
        if data is not None and tensor.nbytes and hasattr(mmap, "MADV_DONTNEED"):
            start = tensor.start // mmap.PAGESIZE * mmap.PAGESIZE
            data.madvise(mmap.MADV_DONTNEED, start, tensor.start + tensor.nbytes - start)

    def close(self) -> None:
        """Closes the files. A map is kept as long as there are views of it."""
        while self._files:
            os.close(self._files.popitem()[1].descriptor)
        while self._maps:
            with contextlib.suppress(BufferError):  # There are views: it goes with the last of them.
                self._maps.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tensor(self, name: str) -> StoredTensor:
        if name not in self.tensors:
            raise ConfigError(f"{self.directory}: has no tensor {name!r}.{did_you_mean(name, self.tensors)}")
        return self.tensors[name]

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._files:
            raise ValueError(f"{self.directory}: is closed.")
        descriptor, size = self._files[file]
        if (now := os.fstat(descriptor).st_size) != size:
            refuse(file, f"has {now:,} bytes, had {size:,} when it was opened: another program writes to it")
        if file not in self._maps:
            self._maps[file] = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        return self._maps[file]

    def _read(self) -> dict[str, StoredTensor]:
        names = _names_in(self.directory)
        if _INDEX not in names:
            return self._headers([_weights_file(self.directory, names)])
        weight_map = self._weight_map()
        shards = sorted(set(weight_map.values()))
        if _ONE in names and _ONE not in shards:
            refuse(
                self.directory,
                f"has both {_ONE} and {_INDEX}, which does not name it: which of them is meant is not known",
                "Remove the one that is not.",
            )
        if missing := [shard for shard in shards if shard not in names]:
            refuse(
                self.directory / _INDEX,
                f"names {len(shards)} files, of which {len(missing)} are not there, such as {shown(missing[0])}",
                "Download or copy the missing files.",
            )
        tensors = self._headers(shards, weight_map)
        if lost := next((name for name in weight_map if name not in tensors), None):
            refuse(
                self.directory / weight_map[lost],
                f"has no tensor {shown(lost)}, which {_INDEX} expects in it",
                _NOT_ONE_MODEL,
            )
        return tensors

    def _weight_map(self) -> dict[str, str]:
        """Returns the name of the file of each tensor, as the index has it."""
        place = self.directory / _INDEX
        descriptor, size = _open(self.directory, _INDEX)
        try:
            if size > MOST:
                refuse(place, f"has {size:,} bytes, expected at most {MOST:,}")
            data = os.pread(descriptor, size, 0)
        finally:
            os.close(descriptor)
        weight_map = parse(place, data, "index").get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            refuse(place, f"has the weight_map {shown(weight_map)}, expected the names of files by those of tensors")
        for shard in weight_map.values():
            if not isinstance(shard, str) or not _is_plain(shard) or not shard.endswith(_SUFFIX):
                refuse(place, f"names the file {shown(shard)}, expected one in the same directory, *{_SUFFIX}")
        return weight_map

    def _headers(self, shards: Sequence[str], weight_map: Mapping[str, str] | None = None) -> dict[str, StoredTensor]:
        """Opens files and returns their tensors, which the index, if there is one, must have in them."""
        tensors: dict[str, StoredTensor] = {}
        for shard in shards:
            file = self.directory / shard
            self._files[file] = opened = _open(self.directory, shard)
            found = read_header(file, *opened)
            if weight_map is not None:
                _check_listed(file, found, weight_map)
            tensors |= found
        return tensors


def read_beside(directory: Path, name: str, most: int = 1 << 28) -> bytes | None:
    """Returns the content of a file of a directory that may come from elsewhere; None if there is none."""
    if not os.path.lexists(directory / name):
        return None
    descriptor, size = _open(directory, name)
    try:
        if size > most:
            refuse(directory / name, f"has {size:,} bytes, expected at most {most:,}")
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)


def _check_listed(file: Path, found: Mapping[str, StoredTensor], weight_map: Mapping[str, str]) -> None:
    """Raises if a file has a tensor that the index has elsewhere or not at all."""
    for name in found:
        if weight_map.get(name) != file.name:
            listed = f"in {shown(weight_map[name])}" if name in weight_map else "nowhere"
            refuse(file, f"has the tensor {shown(name)}, which {_INDEX} lists {listed}", _NOT_ONE_MODEL)


def _is_plain(name: str) -> bool:
    return name.isprintable() and not any(c in name for c in "/\\:") and name not in ("", ".", "..")


def _names_in(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except NotADirectoryError as e:
        refuse(directory, "is a file, expected a directory of weights", "Name the directory that it is in.", e)
    except OSError as e:
        refuse(directory, f"cannot be read: {e.strerror}", "Name a directory with weights in safetensors files.", e)


def _weights_file(directory: Path, names: set[str]) -> str:
    """Returns the name of the file that has all tensors of a directory without an index."""
    found = sorted(name for name in names if name.endswith(_SUFFIX))
    if _ONE in found:
        return _ONE
    if len(found) == 1 and not _PART.fullmatch(found[0]):
        return found[0]
    if found:
        some = ", ".join(map(shown, found[:3])) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        refuse(directory, f"has {some}, but no {_INDEX} that says what is in which file", "Download or copy that, too.")
    if pickles := sorted(name for name in names if _PICKLE.fullmatch(name)):
        refuse(directory / pickles[0], "is a pickle file, which can run code; it is never loaded", _CONVERT)
    if gguf := sorted(name for name in names if name.lower().endswith(".gguf")):
        refuse(
            directory / gguf[0],
            "is a GGUF file, which is not read; expected safetensors",
            "Use the model that it was made from, or convert it with transformers: "
            "from_pretrained(..., gguf_file=...), then save_pretrained(safe_serialization=True).",
        )
    refuse(
        directory,
        f"has no weights: none of its {len(names)} files is {_ONE}, {_INDEX} or another *{_SUFFIX}",
        "Name a directory with weights in safetensors files.",
    )


def _open(directory: Path, name: str) -> _OpenFile:
    """Opens a regular file, and nothing else."""
    file, descriptor = directory / name, -1
    try:
        real = _target_in_cache(directory, file) if stat.S_ISLNK(os.lstat(file).st_mode) else file
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(real, flags)  # Without waiting for the other end of a pipe.
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            what = "a directory" if stat.S_ISDIR(info.st_mode) else "a device, pipe or socket"
            refuse(file, f"is {what}, expected a regular file", "Put the file itself there.")
        return _OpenFile(descriptor, info.st_size)
    except BaseException as e:
        if descriptor >= 0:
            os.close(descriptor)
        if isinstance(e, OSError | RuntimeError):  # RuntimeError: links that lead to each other.
            refuse(file, f"cannot be read: {getattr(e, 'strerror', None) or e}", AGAIN, e)
        raise


def _target_in_cache(directory: Path, file: Path) -> Path:
    """Returns what a link leads to, if both are in one repository of the cache of Hugging Face."""
    target = file.resolve(strict=True)
    for parent in directory.resolve().parents:
        if parent.name == "snapshots" and target.parent == parent.parent / "blobs":
            return target
    refuse(
        file,
        "is a symbolic link, expected a regular file (links are followed only inside a cache of Hugging Face, from "
        "<repo>/snapshots/<commit> to <repo>/blobs)",
        "Put the file itself there.",
    )


class OutTensor(NamedTuple):
    """A tensor to be written. It is made when its turn comes, and dropped after."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    make: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return int(np.prod(self.shape, dtype=object)) * np.dtype(self.dtype).itemsize


def write_tensors(directory: Path, tensors: Sequence[OutTensor], *, max_shard_bytes: int = 5 * 10**9) -> None:
    """Writes tensors as new files in a directory, as transformers reads them, and waits until they are on disk.

    One tensor is in memory at a time. A file has at most `max_shard_bytes` bytes of tensors, or one tensor; inside it,
    larger dtypes come first, so that each tensor starts at a multiple of its item size.
    """
    if max_shard_bytes <= 0:
        raise ConfigError(f"max_shard_bytes is {max_shard_bytes}, expected at least 1.")
    names = [tensor.name for tensor in tensors]
    if not names or len(set(names)) < len(names) or METADATA in names:
        raise ValueError(f"expected tensors with names, each once, other than {METADATA}; found {len(names)}: {names}")
    shards = [sorted(shard, key=lambda t: -np.dtype(t.dtype).itemsize) for shard in _shards(tensors, max_shard_bytes)]
    headers = [header_bytes([(t.name, t.shape, t.dtype) for t in shard]) for shard in shards]
    count = len(shards)
    files = [_ONE] if count == 1 else [f"model-{i:05}-of-{count:05}{_SUFFIX}" for i in range(1, count + 1)]
    written = counting(sum(tensor.nbytes for tensor in tensors), "bytes")
    for file, header, shard in zip(files, headers, shards, strict=True):
        _write_shard(directory / file, header, shard, written)
    if count > 1:
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors)},
            "weight_map": {t.name: file for file, shard in zip(files, shards, strict=True) for t in shard},
        }
        write_file(directory / _INDEX, (json.dumps(index, indent=2, sort_keys=True) + "\n").encode())
    sync(directory)


def _shards(tensors: Sequence[OutTensor], most: int) -> Iterator[list[OutTensor]]:
    """Yields the tensors of each file, in order."""
    numbers: list[int] = []
    number = size = 0
    for tensor in tensors:
        if size and size + tensor.nbytes > most:
            number, size = number + 1, 0
        numbers.append(number)
        size += tensor.nbytes
    for _, group in itertools.groupby(zip(numbers, tensors, strict=True), key=lambda pair: pair[0]):
        yield [tensor for _, tensor in group]


def _write_shard(file: Path, header: bytes, tensors: Sequence[OutTensor], written: Count) -> None:
    with open(file, "xb") as out:
        out.write(header)
        for tensor in tensors:
            out.write(_bytes_of(tensor))
            written.advance(tensor.nbytes)
        out.flush()
        os.fsync(out.fileno())


def _bytes_of(tensor: OutTensor) -> memoryview:
    """Makes a tensor, and returns its bytes, without a copy if they are in order."""
    array = np.asarray(tensor.make())
    if array.shape != tuple(tensor.shape) or array.dtype != np.dtype(tensor.dtype):
        raise ValueError(
            f"tensor {tensor.name!r} was made as {array.dtype} {array.shape}, "
            f"expected {np.dtype(tensor.dtype)} {tuple(tensor.shape)}."
        )
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
