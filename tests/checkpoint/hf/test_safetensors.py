# SPDX-License-Identifier: Apache-2.0
"""Weights in safetensors files: as the library reads and writes them, and what is refused."""

import json
import os
import random
import re
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from checkpoint.hf.helpers import by_library, change, entry, error_of, write_raw
from dovetail.checkpoint.hf import OutTensor, TensorDirectory, write_tensors
from dovetail.config import ConfigError

NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "bool": "BOOL"}
INDEX = "model.safetensors.index.json"


def random_tensors(rng: np.random.Generator, dtypes=("float32", "float16", "bfloat16", "float64")) -> dict:
    shapes = [(), (0,), (3, 0, 2), (1,), (5,), (3, 4), (2, 3, 5), (1, 1, 1, 7)]
    return {
        f"model.layers.{i}.{dtype}": rng.normal(size=shape).astype(np.dtype(dtype))
        for dtype in dtypes
        for i, shape in enumerate(shapes)
    }


def outs(tensors: dict) -> list[OutTensor]:
    return [OutTensor(name, a.shape, a.dtype, lambda a=a: a) for name, a in tensors.items()]


def by_us(directory: Path) -> dict:
    with TensorDirectory(directory) as opened:
        return {name: (NAMES[str(t.dtype)], t.shape, opened.view(name).tobytes()) for name, t in opened.tensors.items()}


def expected(tensors: dict) -> dict:
    return {name: (NAMES[str(a.dtype)], a.shape, a.tobytes()) for name, a in tensors.items()}


@pytest.fixture
def two_shards(tmp_path: Path) -> Path:
    """A directory with `a` in the first file and `b` in the second."""
    a, b = np.arange(3, dtype=np.float32), np.ones((2, 2), np.float32)
    write_tensors(tmp_path, outs({"a": a, "b": b}), max_shard_bytes=12)
    return tmp_path


def set_index(directory: Path, weight_map: object) -> None:
    text = weight_map if isinstance(weight_map, str) else json.dumps({"metadata": {}, "weight_map": weight_map})
    (directory / INDEX).write_text(text)


# Equality with the library.


def test_views_are_what_the_library_wrote(tmp_path):
    tensors = random_tensors(np.random.default_rng(0))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with TensorDirectory(tmp_path) as opened:
        assert opened.tensors.keys() == tensors.keys()
        for name, array in tensors.items():
            view = opened.view(name)
            assert (view.dtype, view.shape) == (array.dtype, array.shape)
            assert view.tobytes() == array.tobytes()
            assert not view.flags.writeable


def test_library_reads_what_we_wrote(tmp_path):
    tensors = random_tensors(np.random.default_rng(1))
    tensors["transposed"] = np.arange(12, dtype=np.float32).reshape(3, 4).T
    write_tensors(tmp_path, outs(tensors))
    assert os.listdir(tmp_path) == ["model.safetensors"]
    assert by_library(tmp_path / "model.safetensors") == expected(tensors) == by_us(tmp_path)
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_random_shards_hold_the_same_tensors(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for trial in range(20):
        tensors = random_tensors(rng)
        directory, most = tmp_path / str(trial), int(rng.integers(1, 600))
        directory.mkdir()
        write_tensors(directory, outs(tensors), max_shard_bytes=most)
        index = json.loads((directory / INDEX).read_text())
        shards = sorted(directory.glob("*.safetensors"))
        count = len(shards)
        assert [shard.name for shard in shards] == [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
        assert index["metadata"] == {"total_size": sum(a.nbytes for a in tensors.values())}
        found = {shard.name: by_library(shard) for shard in shards}
        assert {name: part for part, held in found.items() for name in held} == index["weight_map"]
        sizes = [[len(content) for *_, content in held.values() if content] for held in found.values()]
        assert all(len(some) == 1 or sum(some) <= most for some in sizes)
        assert {name: t for held in found.values() for name, t in held.items()} == expected(tensors)
        assert by_us(directory) == expected(tensors)


def test_every_tensor_starts_at_a_multiple_of_its_item_size(tmp_path):
    tensors = {"b": np.ones(3, np.int8), "h": np.ones(3, np.float16), "d": np.ones(1), "f": np.ones(1, np.float32)}
    write_tensors(tmp_path, outs(tensors))
    with TensorDirectory(tmp_path) as opened:
        assert all(t.start % t.dtype.itemsize == 0 for t in opened.tensors.values())
        assert min(t.start for t in opened.tensors.values()) % 8 == 0


def test_every_dtype_of_the_format_is_listed_as_what_it_is(tmp_path):
    types = {
        "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "I8": np.int8, "U8": np.uint8,
        "BOOL": np.bool_, "I16": np.int16, "U16": np.uint16, "I32": np.int32, "U32": np.uint32, "I64": np.int64,
        "U64": np.uint64, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu, "C64": np.complex64,
    }  # fmt: skip
    header, at = {}, 0
    for name, dtype in types.items():
        header[name] = entry(at, at := at + 2 * np.dtype(dtype).itemsize, (2,), name)
    write_raw(tmp_path / "model.safetensors", header, data := bytes(at))
    with TensorDirectory(tmp_path) as opened:
        assert {name: t.dtype for name, t in opened.tensors.items()} == {k: np.dtype(v) for k, v in types.items()}
        assert b"".join(opened.view(name).tobytes() for name in types) == data
    assert by_library(tmp_path / "model.safetensors").keys() == types.keys()


def test_packed_dtypes_are_listed_but_have_no_view(tmp_path):
    write_raw(tmp_path / "model.safetensors", {"x": entry(0, 3, (2, 3), "F4"), "e": entry(3, 3, (0,), "F4")}, bytes(3))
    with TensorDirectory(tmp_path) as opened:
        assert opened.tensors["x"].dtype == ml_dtypes.float4_e2m1fn
        assert opened.view("e").shape == (0,)
        with pytest.raises(ConfigError, match="tensor 'x' has dtype float4_e2m1fn, of which several share a byte"):
            opened.view("x")


def test_data_at_any_address_is_read(tmp_path):
    write_raw(
        tmp_path / "model.safetensors", '{"x":' + json.dumps(entry()) + "} ", np.array([1, 2], np.float32).tobytes()
    )
    with TensorDirectory(tmp_path) as opened:
        assert opened.tensors["x"].start % 4
        assert opened.view("x").tolist() == [1, 2]


# What memory and files it takes.


def test_views_do_not_copy_and_can_be_released(tmp_path):
    size = 64 << 20
    with open(write_raw(tmp_path / "model.safetensors", {"x": entry(0, size, (size // 4,))}), "ab") as file:
        file.truncate(file.tell() + size)
    tracemalloc.start()
    with TensorDirectory(tmp_path) as opened:
        view = opened.view("x")
        assert view[::1024].sum() == 0
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20
        before = resident()
        opened.release("x")
        assert before - resident() > 0.9 * size or not before
        assert view[-1] == 0  # It is still there.


def resident() -> int:
    """Returns the bytes of this process that are in memory, or 0 where that is not known."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


def test_one_tensor_is_in_memory_at_a_time_when_writing(tmp_path):
    size = 4 << 20
    make = lambda: np.zeros(size, np.int8)  # noqa: E731
    tracemalloc.start()
    write_tensors(tmp_path, [OutTensor(f"t{i}", (size,), np.dtype(np.int8), make) for i in range(5)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size <= peak < 1.5 * size


def test_views_outlive_the_directory_and_files_are_closed(two_shards):
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    with TensorDirectory(two_shards) as opened:
        view = opened.view("a")
    assert view.tolist() == [0, 1, 2]
    del view
    (two_shards / "model-00002-of-00002.safetensors").write_bytes(b"")
    error_of(two_shards)
    assert not before or len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ValueError, match="is closed"):
        opened.view("a")


def test_nothing_is_written_while_reading(two_shards):
    files = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in two_shards.iterdir()}
    by_us(two_shards)
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in two_shards.iterdir()} == files


# Which files are taken.


def test_single_file_of_any_name_is_taken(tmp_path):
    write_raw(tmp_path / "weights.safetensors", {"x": entry()}, bytes(8))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert by_us(tmp_path).keys() == {"x"}


def test_file_beside_the_index_that_it_does_not_name_is_ignored(two_shards):
    (two_shards / "consolidated.safetensors").write_bytes(b"no")
    assert by_us(two_shards).keys() == {"a", "b"}


def test_index_of_one_file_is_taken(tmp_path):
    write_raw(tmp_path / "model.safetensors", {"x": entry()}, bytes(8))
    set_index(tmp_path, {"x": "model.safetensors"})
    assert by_us(tmp_path).keys() == {"x"}


def test_links_of_a_hub_cache_are_followed_and_no_others(tmp_path):
    repo = tmp_path / "models--x--y"
    snapshot, blobs = repo / "snapshots" / "0123abcd", repo / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    write_raw(blobs / "f00d", {"x": entry()}, bytes(8))
    (snapshot / "model.safetensors").symlink_to("../../blobs/f00d")
    assert by_us(snapshot).keys() == {"x"}
    (tmp_path / "short").symlink_to(snapshot)  # The directory is the user's choice.
    assert by_us(tmp_path / "short").keys() == {"x"}
    for wrong in ("../../../secret", "../../f00d", "../../blobs/f00d/.."):
        (tmp_path / "secret").write_bytes((blobs / "f00d").read_bytes())
        (repo / "f00d").write_bytes((blobs / "f00d").read_bytes())
        (snapshot / "model.safetensors").unlink()
        (snapshot / "model.safetensors").symlink_to(wrong)
        assert re.search("is a symbolic link|cannot be read", error_of(snapshot))
    (blobs / "link").symlink_to("../../secret")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../blobs/link")
    assert "is a symbolic link" in error_of(snapshot)


# What is refused: directories.


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model-00001-of-2.bin", "x.pt", "x.PTH", "x.ckpt", "x.pkl"]
)
def test_pickle_files_are_never_loaded(tmp_path, name):
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch /tmp/harm'\ntR.")
    assert error_of(tmp_path) == (
        f"{tmp_path / name}: is a pickle file, which can run code; it is never loaded.\n"
        "  Convert it with transformers: save_pretrained(safe_serialization=True)."
    )


def test_gguf_is_named(tmp_path):
    (tmp_path / "model-Q4.gguf").write_bytes(b"GGUF")
    assert error_of(tmp_path).startswith(f"{tmp_path / 'model-Q4.gguf'}: is a GGUF file, which is not read; expected")


def test_directory_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert "has no weights: none of its 1 files is model.safetensors, " in error_of(tmp_path)
    assert "config.json: is a file, expected a directory of weights.\n  Name the" in error_of(tmp_path / "config.json")
    assert "cannot be read: No such file or directory." in error_of(tmp_path / "gone")


def test_several_files_without_index_are_refused(tmp_path):
    write_raw(tmp_path / "model-00001-of-00002.safetensors", {"x": entry()}, bytes(8))
    said = "but no model.safetensors.index.json that says what is in which file.\n  Download or copy that, too."
    assert error_of(tmp_path) == f"{tmp_path}: has 'model-00001-of-00002.safetensors', {said}"
    write_raw(tmp_path / "model-00002-of-00002.safetensors", {"y": entry()}, bytes(8))
    assert error_of(tmp_path).endswith(said)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    (tmp_path / "model-00002-of-00002.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    assert by_us(tmp_path).keys() == {"y"}


def test_index_and_whole_file_that_it_does_not_name_are_refused(two_shards):
    write_raw(two_shards / "model.safetensors", {"x": entry()}, bytes(8))
    assert f"{two_shards}: has both model.safetensors and {INDEX}, which does not name it" in error_of(two_shards)


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", INDEX])
def test_links_directories_and_pipes_are_refused(two_shards, tmp_path_factory, name):
    file = two_shards / name
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "x"
    elsewhere.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(elsewhere)
    assert error_of(two_shards).startswith(f"{file}: is a symbolic link, expected a regular file (links are followed")
    file.unlink()
    file.symlink_to(file)
    assert error_of(two_shards).startswith(f"{file}: cannot be read: ")
    file.unlink()
    file.mkdir()
    assert error_of(two_shards) == f"{file}: is a directory, expected a regular file.\n  Put the file itself there."
    file.rmdir()
    os.mkfifo(file)  # Nobody writes to it: opening it must not wait.
    assert error_of(two_shards).startswith(f"{file}: is a device, pipe or socket, expected a regular file.")


def test_file_that_changes_its_size_is_refused(two_shards):
    with TensorDirectory(two_shards) as opened:
        with open(two_shards / "model-00001-of-00002.safetensors", "ab") as file:
            file.write(b"more")
        with pytest.raises(ConfigError, match=r"has \d+ bytes, had \d+ when it was opened: another program writes to"):
            opened.view("a")
        assert opened.view("b").shape == (2, 2)


def test_unknown_tensor_is_an_error_with_the_nearest_name(two_shards):
    with (
        TensorDirectory(two_shards) as opened,
        pytest.raises(ConfigError, match=r"has no tensor 'A'. Did you mean 'a'\?"),
    ):
        opened.view("A")


# What is refused: the index.

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    "weight_map, message",
    [
        ({"a": ONE, "b": "../" + TWO}, rf"names the file '\.\./{TWO}', expected one in the same directory"),
        ({"a": ONE, "b": "/etc/x.safetensors"}, "names the file '/etc/x.safetensors'"),
        ({"a": ONE, "b": "x\\y.safetensors"}, r"names the file 'x\\\\y.safetensors'"),
        ({"a": ONE, "b": "sub/x.safetensors"}, "names the file 'sub/x.safetensors'"),
        ({"a": ONE, "b": "x.bin"}, r"names the file 'x.bin', expected one in the same directory, \*.safetensors"),
        ({"a": ONE, "b": ".."}, r"names the file '\.\.'"),
        ({"a": ONE, "b": 3}, "names the file 3"),
        ({"a": ONE, "b": [TWO]}, "names the file "),
        ({"a": ONE, "b": "gone.safetensors"}, "names 2 files, of which 1 are not there, such as 'gone.safetensors'"),
        ({"a": ONE, "b": TWO, "c": ONE}, f"{ONE}: has no tensor 'c', which {INDEX} expects in it"),
        ({"b": TWO, "c": ONE}, f"{ONE}: has the tensor 'a', which {INDEX} lists nowhere"),
        ({"a": TWO, "b": TWO, "c": ONE}, f"{ONE}: has the tensor 'a', which {INDEX} lists in '{TWO}'"),
        ({}, "has the weight_map {}, expected the names of files by those of tensors"),
        ("{}", "has the weight_map None, expected"),
        ("[]", r"the index is \[\], expected a JSON object"),
        ("{", "the index is not JSON: "),
        (f'{{"weight_map": {{"a": "{ONE}", "a": "{TWO}"}}}}', "the index names 'a' twice, expected every name once"),
        ('{"metadata": {"total_size": NaN}}', "the index is not JSON: it has NaN"),
        ("[" * 100_000, "the index is nested too deeply"),
    ],
)  # fmt: skip
def test_index_that_does_not_fit_is_refused(two_shards, weight_map, message):
    set_index(two_shards, weight_map)
    assert re.search(message, error_of(two_shards))


def test_tensor_in_two_files_is_refused(two_shards):
    (two_shards / TWO).write_bytes((two_shards / ONE).read_bytes())
    set_index(two_shards, {"a": ONE, "b": TWO})
    assert f"{two_shards / TWO}: has the tensor 'a', which {INDEX} lists in '{ONE}'." in error_of(two_shards)


def test_index_bomb_is_refused_unread(two_shards):
    with open(two_shards / INDEX, "ab") as file:
        file.truncate(10**12)
    assert f"{two_shards / INDEX}: has 1,000,000,000,000 bytes, expected at most 100,000,000." in error_of(two_shards)


@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_changed_indexes_are_refused_or_read(tmp_path_factory, rng, times):
    directory = tmp_path_factory.getbasetemp() / "indexes"
    if not directory.exists():
        directory.mkdir()
        write_tensors(directory, outs({"a": np.ones(3), "b": np.ones(2), "c": np.ones(3)}), max_shard_bytes=24)
        (directory / INDEX).rename(directory / "kept")
    index = json.loads((directory / "kept").read_text())
    for _ in range(times):
        index = change(index, rng)
    (directory / INDEX).write_text(json.dumps(index))
    try:
        names = by_us(directory).keys()
    except ConfigError as e:
        names, refusal = None, str(e)
        assert re.match(rf"{directory}(/[\w.-]+)?: [\s\S]{{20,500}}$", refusal)
    # An index may leave out a file with all of its tensors: whoever needs those misses them.
    assert names is None or names <= {"a", "b", "c"}


# What is refused when writing.


def test_tensors_that_are_not_as_announced_are_refused(tmp_path):
    out = OutTensor("x", (2,), np.dtype(np.float32), lambda: np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"tensor 'x' was made as float32 \(3,\), expected float32 \(2,\)"):
        write_tensors(tmp_path, [out])


def test_names_and_dtypes_that_the_format_cannot_hold_are_refused(tmp_path):
    x = np.zeros(2, np.float32)
    for tensors in ([], outs({"x": x}) * 2, outs({"__metadata__": x})):
        with pytest.raises(ValueError, match="expected tensors with names"):
            write_tensors(tmp_path, tensors)
    for dtype in (np.complex128, ml_dtypes.float4_e2m1fn, ">f4"):
        with pytest.raises(ValueError, match=r"has no name in safetensors\. It has: F64, F32"):
            write_tensors(tmp_path / "new", outs({"x": x.astype(dtype)}))
    with pytest.raises(ConfigError, match="max_shard_bytes is 0, expected at least 1"):
        write_tensors(tmp_path, outs({"x": x}), max_shard_bytes=0)
