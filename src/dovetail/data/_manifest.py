# SPDX-License-Identifier: Apache-2.0
"""The format of prepared data: what is in its files, and how they are named.

    manifest.json            what the data is; written last, so that without it there is no prepared data
    shards.table             a line of `SHARD` for each shard
    tokenizer/...            the files that the tokenizer is made from
    shards/0000/0000000-0.tokens   token ids, one document after the other
    shards/0000/0000000-0.weights  of each token as a target, float32; only if some weight in the shard is not 1
    shards/0000/0000000-0.index    a line of `BLOCK` for each block, then the length of each document (uint32)
    shards/0000/0000000-0.origin   a line of `ORIGIN` for each document

All numbers are little-endian. A block is a run of whole documents, and what is read at a time; its line has where it
ends and the checksums (CRC-32) of its tokens, lengths and weights. A document longer than `max_document_tokens` of the
settings is there in parts, each like a document. Where `group` of the settings is more than 1, as many sequences that
follow each other are a document, with a length and a line of `ORIGIN` each, and always in one block.

Format 1 had no weights and no groups, and a document longer than a block was there in parts.
"""

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.config import ConfigError

from ._errors import DataError
from ._places import Place

FORMAT = 2
_READ = (1, FORMAT)
MANIFEST, TABLE = "manifest.json", "shards.table"
SHARD = np.dtype(
    [
        ("unit", "<u4"),  # The piece of the sources that it was made from, and which of its shards this is.
        ("part", "<u4"),
        ("blocks", "<i8"),
        ("documents", "<i8"),
        ("tokens", "<i8"),
        ("blocks_crc", "<u4"),  # Of the lines for blocks, and of the file of origins.
        ("origin_crc", "<u4"),
        ("weighted", "<u4"),  # 1 if there is a file of weights.
    ]
)
BLOCK = np.dtype(
    [
        ("tokens", "<i8"),
        ("documents", "<i8"),
        ("tokens_crc", "<u4"),
        ("lengths_crc", "<u4"),
        ("weights_crc", "<u4"),  # 0 without weights.
    ]
)
_LATER = ("weighted", "weights_crc")  # What lines of format 1 do not have.
ORIGIN = np.dtype(
    [
        ("digest", "<u8"),  # Of the token ids.
        ("at", "<i8"),  # Where it is in its source: the row of a table, else the byte.
        ("source", "<i4"),
        ("part", "<i4"),  # Of a document that is there in parts, from 0.
    ]
)
LENGTH, WEIGHT = np.dtype("<u4"), np.dtype("<f4")


def shard_name(unit: int, part: int) -> str:
    """Returns the name of the files of a shard, up to their endings."""
    return f"shards/{unit // 1000:04d}/{unit:07d}-{part}"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Returns the smallest type that holds all ids."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def line_type(line: np.dtype[Any], version: int) -> np.dtype[Any]:
    """Returns what a line of `SHARD` or `BLOCK` is in a version of the format."""
    if version == FORMAT:
        return line
    return np.dtype([(name, line[name]) for name in line.names or () if name not in _LATER])


def read_lines(data: bytes, line: np.dtype[Any], version: int) -> np.ndarray:
    """Returns lines of `SHARD` or `BLOCK`; what their version of the format does not have is 0."""
    found = np.frombuffer(data, line_type(line, version))
    if version == FORMAT:
        return found
    lines = np.zeros(len(found), line)
    for name in found.dtype.names or ():
        lines[name] = found[name]
    return lines


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What prepared data is."""

    tokenizer: Mapping[str, Any]  # config, fingerprint, vocab_size, and files: the checksum of each by name.
    settings: Mapping[str, Any]  # What the ids depend on besides: add_bos, add_eos, block_tokens, shard_bytes, ...
    sources: list[Mapping[str, Any]]  # Of each: file, bytes, documents, tokens, empty, digest.
    shards: Mapping[str, Any]  # count, blocks, crc32: of the table.
    statistics: Mapping[str, Any]
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """Returns the file."""
        content = dataclasses.asdict(self)
        return _text({**content, "crc32": _crc(content)})

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the ids."""
        return token_dtype(self.tokenizer["vocab_size"])

    @property
    def group(self) -> int:
        """How many sequences a document has."""
        return self.settings.get("group", 1)

    @property
    def digest(self) -> str:
        """A short text that differs for other data."""
        return hashlib.blake2b(self.to_bytes(), digest_size=8).hexdigest()


def _text(content: Any) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def _crc(content: Any) -> str:
    return f"{zlib.crc32(_text(content)):08x}"


def read_manifest(place: Place, where: str) -> Manifest:
    """Returns the manifest of what is at a place; `where` is what names the place in a config."""
    data = place.read(MANIFEST)
    if data is None:
        raise ConfigError(
            f"{where}: there is no prepared data at {place.where}: it has no {MANIFEST}.\n"
            f"  Prepare it (again, if that was broken off): dovetail data prepare SOURCE... --to {place.where}"
        )
    try:
        content = json.loads(data)
        crc = content.pop("crc32")
        if content.get("format") in _READ and crc == _crc(content):
            return Manifest(**content)
        found = content.get("format")
    except (ValueError, AttributeError, KeyError, TypeError):
        found = FORMAT
    if found not in _READ:
        raise ConfigError(
            f"{place.named(MANIFEST)}: is of format {found}, this is made for {' and '.join(map(str, _READ))}."
        )
    raise DataError(f"{place.named(MANIFEST)}: is damaged: its checksum does not fit. Prepare the data again.")


def read_table(place: Place, manifest: Manifest) -> np.ndarray:
    """Returns the lines for shards."""
    data = place.need(TABLE)
    if f"{zlib.crc32(data):08x}" != manifest.shards["crc32"]:
        raise DataError(f"{place.named(TABLE)}: is damaged: its checksum does not fit. Prepare the data again.")
    return read_lines(data, SHARD, manifest.format)
