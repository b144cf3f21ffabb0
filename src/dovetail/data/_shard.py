# SPDX-License-Identifier: Apache-2.0
"""Shards in the making: documents are put in, files come out, the same for the same documents."""

import dataclasses
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ._manifest import BLOCK, LENGTH, ORIGIN

Write = Callable[[str, bytes | bytearray], None]  # Writes a file of a shard, by its ending.


@dataclasses.dataclass
class Counts:
    """What there is of a source in a unit."""

    documents: int = 0
    tokens: int = 0
    empty: int = 0
    cut: int = 0  # Documents that were tokenised in several pieces, as they are long.
    digest: str = ""

    def add(self, other: "Counts") -> None:
        """Adds what there is in the unit that comes next."""
        for name in ("documents", "tokens", "empty", "cut"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.digest = hashlib.blake2b(f"{self.digest} {other.digest}".encode(), digest_size=8).hexdigest()


class ShardMaker:
    """Makes the shards of one unit. Holds one of them in memory, and no document beside it."""

    def __init__(self, write: Callable[[int], Write], dtype: np.dtype[Any], block_tokens: int, limit: int) -> None:
        """`write` gives what writes the files of the n-th shard, which has about `limit` bytes of tokens at most."""
        self._write, self._dtype, self._block_tokens, self._limit = write, dtype, block_tokens, limit
        self.shards: list[dict[str, int]] = []
        self.sources: dict[int, Counts] = {}
        self.lengths = Counter[int]()  # Documents by how many bits their number of tokens has.
        self._digests: dict[int, Any] = {}
        self._waiting: list[np.ndarray] = []  # Of the document that is open, not yet in a part.
        self._count = self._parts = self._length = 0
        self._start()

    def _start(self) -> None:
        self._tokens = bytearray()
        self._lengths, self._origins = list[int](), list[tuple[int, int, int, int]]()
        self._blocks = list[tuple[int, int, int, int]]()
        self._in_blocks, self._documents_in_blocks = 0, 0

    def extend(self, ids: np.ndarray, source: int, at: int) -> None:
        """Adds tokens to the document that is open."""
        self._waiting.append(ids.astype(self._dtype, copy=False))
        self._count += len(ids)
        while self._count > self._block_tokens:
            joined = np.concatenate(self._waiting)
            self._part(joined[: self._block_tokens], source, at)
            self._waiting = [joined[self._block_tokens :]]
            self._count = len(self._waiting[0])

    def end(self, source: int, at: int, *, pieces: int) -> None:
        """Ends the document that is open; `pieces` says in how many it was tokenised."""
        counts = self.sources.setdefault(source, Counts())
        if self._count:
            self._part(np.concatenate(self._waiting), source, at)
        if self._length:
            counts.documents += 1
            counts.cut += pieces > 1
            self.lengths[self._length.bit_length()] += 1
        else:
            counts.empty += 1
        self._waiting, self._count, self._parts, self._length = [], 0, 0, 0

    def _part(self, ids: np.ndarray, source: int, at: int) -> None:
        data = ids.tobytes()
        digest = hashlib.blake2b(data, digest_size=8).digest()
        self._tokens += data
        self._lengths.append(len(ids))
        self._origins.append((int.from_bytes(digest, "little"), at, source, self._parts))
        self._digests.setdefault(source, hashlib.blake2b(digest_size=8)).update(digest)
        self._parts += 1
        self._length += len(ids)
        self.sources.setdefault(source, Counts()).tokens += len(ids)
        if len(self._tokens) // self._dtype.itemsize - self._in_blocks >= self._block_tokens:
            self._end_block()
            if len(self._tokens) >= self._limit:
                self._end_shard()

    def _end_block(self) -> None:
        size = self._dtype.itemsize
        tokens_crc = zlib.crc32(memoryview(self._tokens)[self._in_blocks * size :])
        lengths = np.array(self._lengths[self._documents_in_blocks :], LENGTH)
        self._in_blocks, self._documents_in_blocks = len(self._tokens) // size, len(self._lengths)
        self._blocks.append((self._in_blocks, self._documents_in_blocks, tokens_crc, zlib.crc32(lengths.tobytes())))

    def _end_shard(self) -> None:
        if len(self._lengths) > self._documents_in_blocks:
            self._end_block()
        if not self._lengths:
            return
        write = self._write(len(self.shards))
        blocks = np.array(self._blocks, BLOCK).tobytes()
        origins = np.array(self._origins, ORIGIN).tobytes()
        self.shards.append(
            {
                "blocks": len(self._blocks),
                "documents": len(self._lengths),
                "tokens": self._in_blocks,
                "blocks_crc": zlib.crc32(blocks),
                "origin_crc": zlib.crc32(origins),
            }
        )
        write("tokens", self._tokens)
        write("index", blocks + np.array(self._lengths, LENGTH).tobytes())
        write("origin", origins)
        self._start()

    def finish(self) -> dict[str, Any]:
        """Writes the last shard; returns what there is in all of them."""
        self._end_shard()
        for source, digest in self._digests.items():
            self.sources[source].digest = digest.hexdigest()
        return {
            "shards": self.shards,
            "sources": {str(source): dataclasses.asdict(counts) for source, counts in self.sources.items()},
            "lengths": {str(bits): count for bits, count in sorted(self.lengths.items())},
        }
