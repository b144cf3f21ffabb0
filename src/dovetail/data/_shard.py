# SPDX-License-Identifier: Apache-2.0
"""Shards in the making: documents are put in, files come out, the same for the same documents."""

import dataclasses
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._manifest import BLOCK, LENGTH, ORIGIN, WEIGHT
from ._run import Tokens, is_masked, joined, joined_weights

Write = Callable[[str, bytes | bytearray], None]  # Writes a file of a shard, by its ending.


class Sizes(NamedTuple):
    """How large what is stored may be."""

    block: int  # Tokens: a block ends with the document that fills it.
    document: int  # Tokens of a document, of which a longer one is stored in parts.
    shard_bytes: int  # Of tokens: a shard ends with the block that fills it.


TOTALS = ("documents", "tokens", "empty", "cut", "split", "masked")


@dataclasses.dataclass
class Counts:
    """What there is of a source in a unit."""

    documents: int = 0
    tokens: int = 0
    empty: int = 0
    cut: int = 0  # Documents that were tokenised in several pieces, as they are long.
    split: int = 0  # Documents that are there in several parts, as they are very long.
    masked: int = 0  # Documents that were left out as all their weights are 0.
    digest: str = ""

    def add(self, other: "Counts") -> None:
        """Adds what there is in the unit that comes next."""
        for name in TOTALS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.digest = hashlib.blake2b(f"{self.digest} {other.digest}".encode(), digest_size=8).hexdigest()


class ShardMaker:
    """Makes the shards of one unit. Holds one of them in memory, and a document, or a part of a very long one."""

    def __init__(self, write: Callable[[int], Write], dtype: np.dtype[Any], sizes: Sizes, group: int = 1) -> None:
        """`write` gives what writes the files of the n-th shard; `group` sequences that follow are a document."""
        self._write, self._dtype, self._sizes, self._group = write, dtype, sizes, group
        self.shards: list[dict[str, int]] = []
        self.sources: dict[int, Counts] = {}
        self.lengths = Counter[int]()  # Sequences by how many bits their number of tokens has.
        self._digests: dict[int, Any] = {}
        self._waiting: list[Tokens] = []  # Of the sequence that is open, not yet in a part.
        self._count = self._parts = self._stored = self._length = self._pieces = 0
        self._complete: list[Tokens] = []  # Sequences of the group that is open.
        self._start()

    def _start(self) -> None:
        self._tokens, self._weights = bytearray(), bytearray()
        self._lengths, self._origins = list[int](), list[tuple[int, int, int, int]]()
        self._blocks = list[tuple[int, int, int, int, int]]()
        self._in_blocks, self._documents_in_blocks = 0, 0

    def extend(self, ids: np.ndarray, source: int, at: int, weight: float = 1.0) -> None:
        """Adds tokens to the sequence that is open."""
        weights = None if weight == 1 else np.full(len(ids), weight, WEIGHT)
        self._waiting.append(Tokens(ids.astype(self._dtype, copy=False), weights))
        self._count += len(ids)
        while self._group == 1 and self._count > self._sizes.document:
            first, rest = _split(_joined(self._waiting), self._sizes.document)
            if not is_masked(first.weights):
                self._put(first, source, at, self._parts)
                self._end_full()
                self._stored += 1
            self._parts += 1
            self._length += len(first.ids)
            self._waiting, self._count = [rest], len(rest.ids)

    def end(self, source: int, at: int, *, pieces: int) -> None:
        """Ends the sequence that is open; `pieces` says in how many it was tokenised. Of a group, the last ends all."""
        self._pieces = max(self._pieces, pieces)
        self._complete.append(_joined(self._waiting) if self._waiting else Tokens(np.zeros(0, self._dtype)))
        self._length += self._count
        self._waiting, self._count = [], 0
        if len(self._complete) < self._group:
            return
        counts, length, parts = self.sources.setdefault(source, Counts()), self._length, self._parts
        is_empty = not length if self._group == 1 else not all(len(each.ids) for each in self._complete)
        is_all_masked = not self._stored and any(is_masked(each.weights) for each in self._complete)
        if is_empty:
            counts.empty += 1
        elif is_all_masked:
            counts.masked += 1
        else:
            for each in self._complete:
                if len(each.ids) and not is_masked(each.weights):
                    self._put(each, source, at, parts)
                self.lengths[(length if self._group == 1 else len(each.ids)).bit_length()] += 1
            counts.documents += 1
            counts.cut += self._pieces > 1
            counts.split += parts > 0
            self._end_full()
        self._complete = []
        self._parts = self._stored = self._length = self._pieces = 0

    def _put(self, some: Tokens, source: int, at: int, part: int) -> None:
        """Adds a sequence, or a part of one, to the block that is open."""
        data = some.ids.tobytes()
        digest = hashlib.blake2b(data, digest_size=8).digest()
        before = len(self._tokens) // self._dtype.itemsize
        self._tokens += data
        self._digests.setdefault(source, hashlib.blake2b(digest_size=8)).update(digest)
        if some.weights is not None:
            weights = some.weights.tobytes()
            self._weights += np.ones(before - len(self._weights) // WEIGHT.itemsize, WEIGHT).tobytes() + weights
            self._digests[source].update(weights)
        self._lengths.append(len(some.ids))
        self._origins.append((int.from_bytes(digest, "little"), at, source, part))
        self.sources.setdefault(source, Counts()).tokens += len(some.ids)

    def _end_full(self) -> None:
        """Ends the block, and the shard, if there is enough in them."""
        if len(self._tokens) // self._dtype.itemsize - self._in_blocks >= self._sizes.block:
            self._end_block()
            if len(self._tokens) >= self._sizes.shard_bytes:
                self._end_shard()

    def _end_block(self) -> None:
        size = self._dtype.itemsize
        tokens_crc = zlib.crc32(memoryview(self._tokens)[self._in_blocks * size :])
        lengths = np.array(self._lengths[self._documents_in_blocks :], LENGTH)
        self._in_blocks, self._documents_in_blocks = len(self._tokens) // size, len(self._lengths)
        lengths_crc = zlib.crc32(lengths.tobytes())
        self._blocks.append((self._in_blocks, self._documents_in_blocks, tokens_crc, lengths_crc, 0))

    def _end_shard(self) -> None:
        if len(self._lengths) > self._documents_in_blocks:
            self._end_block()
        if not self._lengths:
            return
        write = self._write(len(self.shards))
        blocks = np.array(self._blocks, BLOCK)
        weights = self._all_weights(blocks)
        blocks = blocks.tobytes()
        origins = np.array(self._origins, ORIGIN).tobytes()
        self.shards.append(
            {
                "blocks": len(self._blocks),
                "documents": len(self._lengths),
                "tokens": self._in_blocks,
                "blocks_crc": zlib.crc32(blocks),
                "origin_crc": zlib.crc32(origins),
                "weighted": int(weights is not None),
            }
        )
        write("tokens", self._tokens)
        if weights is not None:
            write("weights", weights.tobytes())
        write("index", blocks + np.array(self._lengths, LENGTH).tobytes())
        write("origin", origins)
        self._start()

    def _all_weights(self, blocks: np.ndarray) -> np.ndarray | None:
        """Returns the weights of all tokens of the shard, if some are not 1, and notes the checksum of each block."""
        if not self._weights:
            return None
        missing = self._in_blocks - len(self._weights) // WEIGHT.itemsize
        weights = np.concatenate([np.frombuffer(self._weights, WEIGHT), np.ones(missing, WEIGHT)])
        for line, start, stop in zip(blocks, [0, *blocks["tokens"][:-1]], blocks["tokens"], strict=True):
            line["weights_crc"] = zlib.crc32(weights[start:stop].tobytes())
        return weights

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


def _joined(parts: Sequence[Tokens]) -> Tokens:
    return Tokens(joined([each.ids for each in parts]), joined_weights(parts))


def _split(tokens: Tokens, at: int) -> tuple[Tokens, Tokens]:
    ids, weights = tokens
    if weights is None:
        return Tokens(ids[:at]), Tokens(ids[at:])
    return Tokens(ids[:at], weights[:at]), Tokens(ids[at:], weights[at:])
