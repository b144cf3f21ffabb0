# SPDX-License-Identifier: Apache-2.0
"""What the tests of safetensors files share: files with any header, and what the library reads."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import safetensors

from dovetail.checkpoint.hf import TensorDirectory
from dovetail.config import ConfigError


def by_library(file: Path) -> dict:
    """Returns what the library reads: name -> (dtype, shape, bytes)."""
    read = safetensors.deserialize(file.read_bytes())
    return {name: (v["dtype"], tuple(v["shape"]), bytes(v["data"])) for name, v in read}


def write_raw(file: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    """Writes a file with any header: text, bytes, or what JSON makes of it."""
    header = header if isinstance(header, bytes | str) else json.dumps(header)
    raw = header if isinstance(header, bytes) else header.encode()
    file.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return file


def entry(begin=0, end=8, shape=(2,), dtype="F32") -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def error_of(directory: Path) -> str:
    with pytest.raises(ConfigError) as e:
        TensorDirectory(directory)
    return str(e.value)


_ODD: list[Any] = [
    None, True, 0, -1, 1, 2, 8, 1.5, 2**31, 2**63, 2**64, 10**40, float("nan"), float("inf"), "", "F32", "F16", "BF16",
    "F4", "I8", "I64", "x", "\ud800", "__metadata__", [], [0], [0, 0], [0, 8], [2], [-1], [[]], {}, {"dtype": "F32"},
]  # fmt: skip


def change(value: Any, rng: random.Random) -> Any:
    """Returns JSON data with one part of it changed, dropped, doubled or swapped."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.15:
        return rng.choice(_ODD)
    if isinstance(value, list):
        at = rng.randrange(len(value))
        kind = rng.randrange(4)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        return [*value[:at], change(value[at], rng) if kind > 1 else value[at], *value[at + (kind != 1) :]]
    key = rng.choice(list(value))
    kind = rng.randrange(5)
    if kind == 0:
        return {k: v for k, v in value.items() if k != key}
    if kind == 1:
        return {**value, str(rng.choice(_ODD)): value[key]}
    return {**value, key: change(value[key], rng)}
