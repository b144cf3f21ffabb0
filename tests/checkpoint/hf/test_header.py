# SPDX-License-Identifier: Apache-2.0
"""Headers of safetensors files: which are refused, and that no bytes at all do harm."""

import json
import os
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.hf.helpers import by_library, change, entry, error_of, write_raw
from dovetail.checkpoint.hf import OutTensor, TensorDirectory, write_tensors
from dovetail.checkpoint.hf._header import DTYPES
from dovetail.config import ConfigError

DEEP = '{"x":' + "[" * 100_000
TWICE = f'{{"x": {json.dumps(entry())}, "x": {json.dumps(entry())}}}'
HUGE = 2**62


@pytest.mark.parametrize(
    "header, message",
    [
        (b"", "the header begins with b''"),
        (b"{\xff}", r"the header is not text in UTF-8 \(byte 1 of it\)"),
        ("{", "the header is not JSON: Expecting property name"),
        ("[]", r"the header begins with b'\[\]', expected '{': no safetensors file"),
        (' {"x": 1}', "the header begins with "),
        (DEEP, "the header is nested too deeply"),
        (TWICE, "the header names 'x' twice, expected every name once"),
        (TWICE.replace('"dtype"', '"dtype": "F32", "dtype"', 1), "the header names 'dtype' twice"),
        ('{"x": NaN}', "the header is not JSON: it has NaN"),
        ('{"x": ' + "9" * 5000 + "}", "the header is not JSON: Exceeds the limit"),
        ({"__metadata__": {"a": 1}}, r"has __metadata__ {'a': 1}, expected texts by name"),
        ({"__metadata__": []}, r"has __metadata__ \[\]"),
        ({"x": 3}, "tensor 'x' is 3, expected dtype, shape and data_offsets"),
        ({"x": {"dtype": "F32", "shape": []}}, "tensor 'x' is {'dtype': 'F32', 'shape': .*expected dtype, shape and"),
        ({"x": {**entry(), "more": 1}}, "expected dtype, shape and data_offsets"),
        ({"\n": entry()}, r"names a tensor '\\n', expected printable text"),
        ({"\ud800": entry()}, r"names a tensor '\\ud800', expected printable text"),
        ({"x": entry(dtype="F33")}, r"has dtype 'F33', expected one of F64, .*F4\.\n  Did you mean 'F32'\?"),
        ({"x": {**entry(), "dtype": ["F32"]}}, r"has dtype \['F32'\], expected one of"),
        ({"x": entry(shape=(-2, -1))}, r"has shape \[-2, -1\], expected up to 64 whole numbers from 0 on"),
        ({"x": entry(shape=(2.0,))}, r"has shape \[2.0\]"),
        ({"x": entry(shape=(True, 2))}, r"has shape \[True, 2\]"),
        ({"x": entry(shape=("2",))}, r"has shape \['2'\]"),
        ({"x": entry(shape=(1,) * 65)}, "expected up to 64 whole numbers"),
        ({"x": {**entry(), "shape": 2}}, "has shape 2,"),
        ({"x": entry(shape=(10**30,))}, r"has shape \[10000+\],"),
        ({"x": entry(shape=(HUGE, HUGE))}, "which is more than any memory holds"),
        ({"x": entry(0, 0, (HUGE, HUGE, 0))}, "which is more than any memory holds"),
        ({"x": entry(shape=(3,))}, r"tensor 'x' has 8 bytes, expected 12 for F32 of shape \[3\]"),
        ({"x": entry(shape=(3,), dtype="F4")}, r"has 8 bytes, expected 1 and a part for F4 of shape \[3\]"),
        ({"x": {**entry(), "data_offsets": [0]}}, r"has data_offsets \[0\], expected its begin and end"),
        ({"x": entry(8, 0)}, r"has data_offsets \[8, 0\]"),
        ({"x": entry(-8, 0)}, r"has data_offsets \[-8, 0\]"),
        ({"x": entry(), "y": entry(4, 12)}, "tensor 'y' overlaps 'x': it starts at byte 4 of the data, expected 8"),
        ({"x": entry(), "y": entry()}, "tensor 'y' overlaps 'x'"),
        ({"x": entry(4, 12)}, "tensor 'x' leaves a hole after the header: it starts at byte 4 of the data, expected 0"),
        ({"x": entry(), "y": entry(12, 20)}, "tensor 'y' leaves a hole after 'x'"),
        ({"x": entry(0, 16, (4,))}, r"has \d+ bytes, its header speaks of \d+: the file is cut short"),
        ({"x": entry(0, 4, (1,))}, r"has \d+ bytes, its header speaks of \d+: 4 bytes belong to no tensor"),
        ({"x": entry(0, HUGE, (HUGE // 4,))}, "the file is cut short"),
    ],
)  # fmt: skip
def test_file_that_cannot_be_true_is_refused(tmp_path, header, message):
    file = write_raw(tmp_path / "model.safetensors", header, bytes(8))
    text = error_of(tmp_path)
    assert text.startswith(f"{file}: ")
    assert re.search(message, text)
    assert len(text) < 500


@pytest.mark.parametrize("length", [101, 2**40, 2**64 - 1, 100_000_001])
def test_header_bomb_is_refused_unread(tmp_path, length):
    write_raw(tmp_path / "model.safetensors", {"x": entry()}, bytes(8), length=length)
    if length == 100_000_001:
        os.truncate(tmp_path / "model.safetensors", 10**10)
    tracemalloc.start()
    text = error_of(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert re.search("its header alone is said to have 101: the file is cut short|expected at most 100,000,000", text)


@pytest.mark.parametrize("kept", [0, 1, 7])
def test_file_without_a_length_is_refused(tmp_path, kept):
    (tmp_path / "model.safetensors").write_bytes(bytes(kept))
    assert f"has {kept} bytes, expected a safetensors file, which begins with the length" in error_of(tmp_path)


# Any bytes: a ConfigError, or what the library reads.

_NAMES = {dtype: name for name, (dtype, bits) in DTYPES.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("any") / "model.safetensors"


def read(place: Path) -> dict[str, tuple[str, tuple[int, ...], bytes | None]]:
    with TensorDirectory(place.parent) as opened:
        return {
            name: (_NAMES[t.dtype], t.shape, None if t.is_packed else opened.view(name).tobytes())
            for name, t in opened.tensors.items()
        }


def read_or_refuse(place: Path, data: bytes) -> bool:
    """Whether a file is read; then the library must read the same."""
    place.write_bytes(data)
    try:
        tensors, refusal = read(place), None
    except ConfigError as e:
        tensors, refusal = {}, str(e)
    if refusal is not None:
        assert refusal.startswith(f"{place}: ")
        assert len(refusal) < len(str(place)) + 500
        return False
    library = by_library(place)
    assert library.keys() == tensors.keys()
    for name, (dtype, shape, content) in tensors.items():
        assert library[name][:2] == (dtype, shape)
        assert content in (None, library[name][2])
    return True


def good(place: Path) -> bytes:
    """Returns a file that is good."""
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.normal(size=(2, 3)).astype(np.float32),
        "b.c": np.float16(1),
        "e": np.ones((0, 2)),
        "d": np.ones(2),
    }
    place.unlink(missing_ok=True)
    write_tensors(
        place.parent, [OutTensor(n, np.shape(a), a.dtype, lambda a=a: np.asarray(a)) for n, a in arrays.items()]
    )
    return place.read_bytes()


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(place, data):
    read_or_refuse(place, data)


@given(st.binary(max_size=200), st.binary(max_size=20))
def test_any_header_is_refused_or_read(place, header, data):
    read_or_refuse(place, len(header).to_bytes(8, "little") + header + data)


@given(st.data())
def test_every_cut_is_refused(place, data):
    whole = good(place)
    assert not read_or_refuse(place, whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert not read_or_refuse(place, whole + b"x")
    assert read_or_refuse(place, whole)


@given(st.data())
def test_changed_bytes_are_refused_or_read(place, data):
    changed = bytearray(good(place))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(place, bytes(changed))


@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_changed_headers_are_refused_or_read(place, rng, times):
    whole = good(place)
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    for _ in range(times):
        header = change(header, rng)
    text = json.dumps(header).encode()
    read_or_refuse(place, len(text).to_bytes(8, "little") + text + whole[8 + length :])
