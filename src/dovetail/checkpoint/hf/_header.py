# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file: which tensors it holds, where, and whether that can be true.

    8 bytes           the length of the header, little-endian
    header            a JSON object: name -> dtype, shape, data_offsets [begin, end); `__metadata__` -> texts by name
    data              the tensors, one after the other, without holes

A file may come from elsewhere. Nothing in it is executed, and what cannot be true is refused, with the reason.
"""

import json
import math
import os
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Never

import ml_dtypes
import numpy as np

from dovetail.config import ConfigError, did_you_mean

MOST = 100_000_000  # Bytes of a header or an index: the limit of the format.
METADATA = "__metadata__"
_LENGTH = 8  # Bytes of the length of the header.
_MOST_DIMS = 64  # Of NumPy.
_MOST_BYTES = 2**63 - 1
_KEYS = {"dtype", "shape", "data_offsets"}
AGAIN = "Download or copy it again."
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxlevel = 60, 8, 4, 3

# Name in the format: (dtype in memory, bits in the file).
DTYPES: Mapping[str, tuple[np.dtype[Any], int]] = {
    **{
        name: (np.dtype(dtype), 8 * np.dtype(dtype).itemsize)
        for name, dtype in {
            "F64": "<f8",
            "F32": "<f4",
            "F16": "<f2",
            "BF16": ml_dtypes.bfloat16,
            "F8_E4M3": ml_dtypes.float8_e4m3fn,
            "F8_E5M2": ml_dtypes.float8_e5m2,
            "F8_E8M0": ml_dtypes.float8_e8m0fnu,
            "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
            "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
            "C64": "<c8",
            "I64": "<i8",
            "I32": "<i4",
            "I16": "<i2",
            "I8": "i1",
            "U64": "<u8",
            "U32": "<u4",
            "U16": "<u2",
            "U8": "u1",
            "BOOL": "?",
        }.items()
    },
    "F6_E2M3": (np.dtype(ml_dtypes.float6_e2m3fn), 6),  # These are packed: a byte in memory, less in the file.
    "F6_E3M2": (np.dtype(ml_dtypes.float6_e3m2fn), 6),
    "F4": (np.dtype(ml_dtypes.float4_e2m1fn), 4),
}


class StoredTensor(NamedTuple):
    """Where a tensor is."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    file: Path
    start: int  # From the beginning of the file.
    nbytes: int  # In the file: less than in memory if the dtype has fewer than 8 bits.

    @property
    def is_packed(self) -> bool:
        """Whether several elements share a byte: such a tensor has no view."""
        return self.nbytes != math.prod(self.shape) * self.dtype.itemsize


def refuse(place: Path, found: str, advice: str = AGAIN, cause: BaseException | None = None) -> Never:
    """Raises a ConfigError about a file: what was found and expected, and what to do."""
    raise ConfigError(f"{place}: {found}.\n  {advice}") from cause


def shown(value: Any) -> str:
    """Returns what a file says, in one short printable line.

    >>> print(shown("a" * 100), shown({"x": list(range(1000))}))
    'aaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaaaaaaa' {'x': [0, 1, 2, 3, 4, 5, 6, 7, ...]}
    """
    text = _SHORT.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def parse(place: Path, data: bytes, what: str) -> dict[str, Any]:
    """Returns a JSON object: text in UTF-8, no name twice, no NaN. `what` is the name of this part in an error."""
    try:
        content = json.loads(data.decode(), object_pairs_hook=_no_name_twice, parse_constant=_no_constant)
    except UnicodeDecodeError as e:
        refuse(place, f"the {what} is not text in UTF-8 (byte {e.start} of it)", cause=e)
    except RecursionError as e:
        refuse(place, f"the {what} is nested too deeply", cause=e)
    except _TwiceError as e:
        refuse(place, f"the {what} names {shown(e.args[0])} twice, expected every name once", cause=e)
    except ValueError as e:
        refuse(place, f"the {what} is not JSON: {e}", cause=e)
    if not isinstance(content, dict):
        refuse(place, f"the {what} is {shown(content)}, expected a JSON object")
    return content


class _TwiceError(Exception):
    """A name is there twice."""


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        raise _TwiceError(next(name for name, _ in pairs if name in seen or seen.add(name)))
    return content


def _no_constant(name: str) -> Never:
    raise ValueError(f"it has {name}")


def read_header(place: Path, descriptor: int, size: int) -> dict[str, StoredTensor]:
    """Returns the tensors of an open file of that size, in the order of their bytes. Reads the header only."""
    prefix = os.pread(descriptor, _LENGTH, 0)
    if len(prefix) < _LENGTH:
        refuse(place, f"has {size} bytes, expected a safetensors file, which begins with the length of its header")
    length = int.from_bytes(prefix, "little")
    if length > MOST:
        refuse(place, f"the header is said to have {length:,} bytes, expected at most {MOST:,}: no safetensors file")
    if _LENGTH + length > size:
        refuse(place, f"has {size:,} bytes, its header alone is said to have {length:,}: the file is cut short")
    data = os.pread(descriptor, length, _LENGTH)
    if len(data) < length:
        refuse(
            place, f"has become shorter while it was read: {len(data):,} of {length:,} bytes of the header are there"
        )
    if not data.startswith(b"{"):
        refuse(place, f"the header begins with {shown(data[:8])}, expected '{{': no safetensors file")
    header = parse(place, data, "header")
    _check_metadata(place, header.pop(METADATA, {}))
    tensors = sorted(
        (_tensor(place, name, entry, _LENGTH + length) for name, entry in header.items()),
        key=lambda tensor: (tensor.start, tensor.nbytes),
    )
    _check_bytes(place, tensors, _LENGTH + length, size)
    return {tensor.name: tensor for tensor in tensors}


def _check_metadata(place: Path, found: Any) -> None:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        refuse(place, f"the header has {METADATA} {shown(found)}, expected texts by name")


def _tensor(place: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    if not name.isprintable():
        refuse(place, f"the header names a tensor {shown(name)}, expected printable text")
    where = f"tensor {shown(name)}"
    if not isinstance(entry, dict) or entry.keys() != _KEYS:
        refuse(place, f"{where} is {shown(entry)}, expected dtype, shape and data_offsets")
    dtype_name, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype_name, str) or dtype_name not in DTYPES:
        hint = did_you_mean(dtype_name[:20], DTYPES) if isinstance(dtype_name, str) else ""
        found = f"{where} has dtype {shown(dtype_name)}, expected one of {', '.join(DTYPES)}"
        refuse(place, found, hint.strip() or AGAIN)
    if not _are_counts(shape) or len(shape) > _MOST_DIMS:
        refuse(place, f"{where} has shape {shown(shape)}, expected up to {_MOST_DIMS} whole numbers from 0 on")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        refuse(place, f"{where} has data_offsets {shown(offsets)}, expected its begin and end")
    dtype, bits = DTYPES[dtype_name]
    if math.prod(filter(None, shape)) * max(bits, 8) > 8 * _MOST_BYTES:
        refuse(place, f"{where} has shape {shown(shape)}, which is more than any memory holds")
    expected, rest = divmod(math.prod(shape) * bits, 8)
    nbytes = offsets[1] - offsets[0]
    if nbytes != expected or rest:
        refuse(
            place,
            f"{where} has {nbytes:,} bytes, expected {expected:,}{' and a part' if rest else ''} "
            f"for {dtype_name} of shape {shown(shape)}",
        )
    return StoredTensor(name, tuple(shape), dtype, place, data_start + offsets[0], nbytes)


def _are_counts(found: Any) -> bool:
    return isinstance(found, list) and all(type(n) is int and 0 <= n <= _MOST_BYTES for n in found)


def _check_bytes(place: Path, tensors: Sequence[StoredTensor], data_start: int, size: int) -> None:
    """Raises unless the tensors follow each other up to the end of the file."""
    end, before = data_start, None
    for tensor in tensors:
        if tensor.start != end:
            what = "overlaps" if tensor.start < end else "leaves a hole after"
            other = "the header" if before is None else shown(before)
            refuse(
                place,
                f"tensor {shown(tensor.name)} {what} {other}: it starts at byte {tensor.start - data_start:,} "
                f"of the data, expected {end - data_start:,}",
            )
        end, before = tensor.start + tensor.nbytes, tensor.name
    if end > size:
        refuse(place, f"has {size:,} bytes, its header speaks of {end:,}: the file is cut short")
    if end < size:
        refuse(place, f"has {size:,} bytes, its header speaks of {end:,}: {size - end:,} bytes belong to no tensor")


def header_bytes(tensors: Sequence[tuple[str, tuple[int, ...], np.dtype[Any]]]) -> bytes:
    """Returns the beginning of a file in which these tensors (name, shape, dtype) follow each other.

    Spaces at its end make it a multiple of 8 bytes long.
    """
    names = {dtype: name for name, (dtype, bits) in DTYPES.items() if bits >= 8}
    header: dict[str, Any] = {METADATA: {"format": "pt"}}
    end = 0
    for name, shape, dtype in tensors:
        if np.dtype(dtype) not in names:
            raise ValueError(
                f"tensor {name!r}: {dtype} has no name in safetensors. It has: {', '.join(names.values())}."
            )
        begin, end = end, end + math.prod(shape) * np.dtype(dtype).itemsize
        header[name] = {"dtype": names[np.dtype(dtype)], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH, "little") + text
