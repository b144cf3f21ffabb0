# SPDX-License-Identifier: Apache-2.0
"""`PreparedData`: reads blocks of prepared data by their number, and says which file is not what it was."""

import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail.config import ConfigError, from_json

from ._errors import DataError
from ._manifest import (
    BLOCK,
    LENGTH,
    ORIGIN,
    WEIGHT,
    Manifest,
    line_type,
    read_lines,
    read_manifest,
    read_table,
    shard_name,
)
from ._places import Place, Range, open_place
from ._tokenizer import KnownTokenizer, Tokenizer

_TABLES = 4096  # Tables of blocks that are kept: some kilobytes each.


class Block(NamedTuple):
    """Documents that lie together, or groups of sequences."""

    tokens: np.ndarray  # [N], uint16 or uint32.
    lengths: np.ndarray  # [sequences].
    weights: np.ndarray | None = None  # [N], float32: of each token as a target; None: 1.


class PreparedData:
    """What `dovetail data prepare` has written, by the numbers of its blocks."""

    def __init__(self, path: str, where: str = "path") -> None:
        self.path, self._where = path, where
        self.place: Place = open_place(path, where)
        self.manifest = read_manifest(self.place, where)
        self.shards = read_table(self.place, self.manifest)
        self._ends = np.cumsum(self.shards["blocks"])  # Blocks up to the end of each shard.
        self._tables: dict[int, np.ndarray] = {}  # Of the shards that were read last.
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return PreparedData, (self.path, self._where)

    def __len__(self) -> int:
        """The number of blocks."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def tokenizer(self) -> Tokenizer:
        """Returns the tokenizer that the data was prepared with."""
        known = _known_tokenizer(self.place, self.manifest)
        built: Tokenizer = known.cfg.build(files=known.files, path="tokenizer")
        if built.fingerprint() != self.manifest.tokenizer["fingerprint"]:
            raise ConfigError(f"{self.place.where}: its tokenizer is made by another version of dovetail.")
        return built

    def locate(self, block: int) -> tuple[int, int]:
        """Returns the shard of a block, and its number there."""
        shard = int(np.searchsorted(self._ends, block, side="right"))
        return shard, block - (int(self._ends[shard - 1]) if shard else 0)

    def name(self, shard: int) -> str:
        """Returns the name of the files of a shard, up to their endings."""
        return shard_name(int(self.shards[shard]["unit"]), int(self.shards[shard]["part"]))

    def read(self, blocks: Sequence[int]) -> list[Block]:
        """Returns blocks, read together and checked."""
        located = [self.locate(block) for block in blocks]
        tables = self._tables_of([shard for shard, _ in located])
        ranges = list[Range]()
        checks = list[int]()
        line = line_type(BLOCK, self.manifest.format).itemsize
        for shard, number in located:
            table, name = tables[shard], self.name(shard)
            tokens, documents = _bounds(table["tokens"], number), _bounds(table["documents"], number)
            size, head = self.manifest.dtype.itemsize, len(table) * line
            ranges.append(Range(f"{name}.tokens", tokens[0] * size, tokens[1] * size))
            starts = [head + each * LENGTH.itemsize for each in documents]
            ranges.append(Range(f"{name}.index", starts[0], starts[1]))
            checks += [int(table["tokens_crc"][number]), int(table["lengths_crc"][number])]
            if self.shards[shard]["weighted"]:
                ranges.append(Range(f"{name}.weights", tokens[0] * WEIGHT.itemsize, tokens[1] * WEIGHT.itemsize))
                checks.append(int(table["weights_crc"][number]))
        found = self.place.read_ranges(ranges)
        for data, part, crc in zip(found, ranges, checks, strict=True):
            _check(data, crc, f"{self.place.named(part.name)}, bytes {part.start} to {part.stop}")
        each, read = iter(found), list[Block]()
        for shard, _ in located:
            tokens, lengths = np.frombuffer(next(each), self.manifest.dtype), np.frombuffer(next(each), LENGTH)
            weights = np.frombuffer(next(each), WEIGHT) if self.shards[shard]["weighted"] else None
            read.append(Block(tokens, lengths, weights))
        return read

    def _tables_of(self, shards: Sequence[int]) -> dict[int, np.ndarray]:
        """Returns the lines for the blocks of shards; those that are not kept are read together."""
        with self._lock:
            found = {shard: self._tables[shard] for shard in shards if shard in self._tables}
        missing = [shard for shard in dict.fromkeys(shards) if shard not in found]
        line = line_type(BLOCK, self.manifest.format).itemsize
        sizes = [int(self.shards[shard]["blocks"]) * line for shard in missing]
        names = [f"{self.name(shard)}.index" for shard in missing]
        read = self.place.read_ranges([Range(name, 0, size) for name, size in zip(names, sizes, strict=True)])
        for shard, name, data in zip(missing, names, read, strict=True):
            _check(data, int(self.shards[shard]["blocks_crc"]), self.place.named(name))
            found[shard] = read_lines(data, BLOCK, self.manifest.format)
        with self._lock:
            self._tables.update(found)
            for shard in list(self._tables)[: max(len(self._tables) - _TABLES, 0)]:
                del self._tables[shard]
        return found

    def sizes_of_blocks(self) -> np.ndarray:
        """Returns how many tokens, and sequences, each block has: [blocks, 2]. Reads the tables of shards, no text."""
        counts = list[np.ndarray]()
        for first in range(0, len(self.shards), _TABLES):
            shards = range(first, min(first + _TABLES, len(self.shards)))
            tables = self._tables_of(shards)
            ends = (np.stack([tables[shard]["tokens"], tables[shard]["documents"]], axis=1) for shard in shards)
            counts += [np.diff(each, axis=0, prepend=0) for each in ends]
        return np.concatenate(counts)

    def origins(self, shard: int) -> np.ndarray:
        """Returns where the documents of a shard come from."""
        name = f"{self.name(shard)}.origin"
        data = self.place.need(name)
        _check(data, int(self.shards[shard]["origin_crc"]), self.place.named(name))
        return np.frombuffer(data, ORIGIN)

    def where(self, block: int, number: int) -> str:
        """Returns where a sequence of a block comes from, as messages name it. Slow."""
        shard, at = self.locate(block)
        first = _bounds(self._tables_of([shard])[shard]["documents"], at)[0]
        origin = self.origins(shard)[first + number]
        file = self.manifest.sources[int(origin["source"])]["file"]
        return f"{file}: {'row' if str(file).endswith('.parquet') else 'byte'} {int(origin['at'])}"

    def problems(self) -> Iterator[tuple[int, list[str]]]:
        """Yields what is wrong with the files of each shard, with its number. Reads all of it."""
        for shard in range(len(self.shards)):
            found = list[str]()
            first = int(self._ends[shard]) - int(self.shards[shard]["blocks"])
            try:
                self.origins(shard)
            except DataError as e:
                found.append(_first_line(e))
            for block in range(first, int(self._ends[shard])):
                try:
                    self.read([block])
                except DataError as e:
                    found.append(_first_line(e))
            yield shard, list(dict.fromkeys(found))


def tokenizer_at(path: str, where: str) -> KnownTokenizer:
    """Returns the tokenizer that the data at a place was prepared with; little else is read."""
    place = open_place(path, where)
    return _known_tokenizer(place, read_manifest(place, where))


def _known_tokenizer(place: Place, manifest: Manifest) -> KnownTokenizer:
    about = manifest.tokenizer
    files = {name: place.need(f"tokenizer/{name}") for name in about["files"]}
    for name, crc in about["files"].items():
        _check(files[name], int(crc, 16), f"{place.where}/tokenizer/{name}")
    return KnownTokenizer(from_json(about["config"]), files)


def _first_line(error: DataError) -> str:
    return str(error).partition("\n")[0]


def _bounds(ends: np.ndarray, number: int) -> tuple[int, int]:
    return int(ends[number - 1]) if number else 0, int(ends[number])


def _check(data: bytes, crc: int, what: str) -> None:
    found = zlib.crc32(data)
    if found != crc:
        raise DataError(
            f"{what}: is damaged: its checksum is {found:08x}, and was {crc:08x}.\n"
            "  `dovetail data check` finds all that is. Get the file again, or remove manifest.json and prepare again."
        )
