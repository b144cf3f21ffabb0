# SPDX-License-Identifier: Apache-2.0
"""Parts: what each process keeps of a step outside of the store, and how all parts together make leaves again.

A *keep* is one step as it was at one moment of one gang of processes. Its name is unique: after a rollback the same
step may be made twice, and parts of both never mix. Everything here is pure.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._errors import CorruptionError
from ._files import seal, unseal
from ._leaves import LeafInfo

_KEEP = re.compile(r"([0-9a-f]+)\.(\d+)\.(\d+)\.(\d+)\Z")
_INDEX, _DATA = "index", "data"
_ALIGNED = 64
_FORMAT = 1
Starts = tuple[int, ...]


class Keep(NamedTuple):
    """Which keep it is."""

    gang: str  # Of the processes that made it: no other gang, of any launch, has the same.
    number: int  # Of this gang, from 1.
    step: int
    parts: int  # As many as there were processes.

    @property
    def name(self) -> str:
        """The name, under which its blobs are."""
        return f"{self.gang}.{self.number}.{self.step}.{self.parts}"

    def contents(self, rank: int) -> str:
        """The name of the blob that says what is in a part. It is written last."""
        return f"{self.name}/{rank}.{_INDEX}"

    def data(self, rank: int) -> str:
        """The name of the blob with the numbers of a part."""
        return f"{self.name}/{rank}.{_DATA}"

    def blobs(self, rank: int) -> tuple[str, str]:
        """Both, in the order in which they are dropped."""
        return self.contents(rank), self.data(rank)


def keep_of(blob: str) -> Keep | None:
    """Returns the keep that a blob belongs to; None: it is none of ours."""
    match = _KEEP.match(blob.partition("/")[0])
    return None if match is None else Keep(match[1], int(match[2]), int(match[3]), int(match[4]))


def complete(places: Sequence[Iterable[str]]) -> dict[Keep, list[list[int]]]:
    """Returns the keeps of which every part is somewhere, newest first, with the places of each part.

    Of the same step, that which was kept last comes first; gangs are not compared, only the later keep of one gang.

    Args:
        places: the names of the blobs at each place.
    """
    found: dict[Keep, dict[int, list[int]]] = {}
    for place, names in enumerate(places):
        there = set(names)
        for name in there:
            keep = keep_of(name)
            rank, _, kind = name.partition("/")[2].partition(".")
            if keep is None or kind != _INDEX or not rank.isdecimal() or keep.data(int(rank)) not in there:
                continue
            found.setdefault(keep, {}).setdefault(int(rank), []).append(place)
    whole = {
        keep: [sorted(parts[rank]) for rank in range(keep.parts)]
        for keep, parts in found.items()
        if parts.keys() == set(range(keep.parts))
    }
    order = sorted(whole, key=lambda keep: (keep.step, keep.number, keep.gang), reverse=True)
    return {keep: whole[keep] for keep in order}


class Piece(NamedTuple):
    """A block of a leaf, and where its bytes are in the data of a part."""

    leaf: str
    start: Starts
    shape: tuple[int, ...]
    offset: int
    size: int
    crc: int = 0


@dataclasses.dataclass(frozen=True)
class Part:
    """What is in one part."""

    leaves: Mapping[str, LeafInfo]  # All of the state, those included of which this part has nothing.
    pieces: Sequence[Piece]
    fingerprints: Mapping[str, Sequence[int]]  # Of its pieces; those of all parts add up to that of the leaf.
    position: Any  # In the data, of this process.
    config: str  # Of the run, in JSON; of the first process only.

    def to_bytes(self) -> bytes:
        """Returns the part as the content of its blob."""
        leaves = {path: info.to_json() for path, info in self.leaves.items()}
        prints = {path: list(numbers) for path, numbers in self.fingerprints.items()}
        rest = {"position": self.position, "config": self.config, "format": _FORMAT}
        return seal({"leaves": leaves, "pieces": [list(piece) for piece in self.pieces], "prints": prints, **rest})

    @staticmethod
    def from_bytes(data: bytes, where: str) -> "Part":
        """Returns what `to_bytes` was called on; a CorruptionError if it cannot have been."""
        try:
            found = unseal(data)
            if found["format"] != _FORMAT:
                raise ValueError(f"format {found['format']!r}, expected {_FORMAT}")
            leaves = {path: LeafInfo.from_json(info) for path, info in found["leaves"].items()}
            rows = found["pieces"]
            pieces = [Piece(leaf, tuple(start), tuple(shape), *rest) for leaf, start, shape, *rest in rows]
            return Part(leaves, pieces, found["prints"], found["position"], found["config"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise CorruptionError(f"{where} is damaged: {e}") from e


def laid_out(blocks: Iterable[tuple[str, Starts, tuple[int, ...], int]]) -> tuple[list[Piece], int]:
    """Returns blocks, each a leaf, its start, shape and bytes an element, one after the other; and the bytes of all."""
    pieces, offset = list[Piece](), 0
    for leaf, start, shape, width in blocks:
        size = math.prod(shape) * width
        pieces.append(Piece(leaf, start, shape, offset, size))
        offset += -(-size // _ALIGNED) * _ALIGNED
    return pieces, offset


def shared_out(sizes: Mapping[tuple[str, Starts], int], holders: Mapping[tuple[str, Starts], Sequence[int]]) -> Any:
    """Returns who keeps which block, of those who have it: all about the same number of bytes.

    >>> shared_out({("a", (0,)): 8, ("b", (0,)): 6, ("c", (0,)): 3}, dict.fromkeys([(n, (0,)) for n in "abc"], (0, 1)))
    {('a', (0,)): 0, ('b', (0,)): 1, ('c', (0,)): 1}
    """
    load: dict[int, int] = {}
    owners: dict[tuple[str, Starts], int] = {}
    for block in sorted(sizes, key=lambda block: (-sizes[block], block)):
        owners[block] = owner = min(holders[block], key=lambda rank: (load.get(rank, 0), rank))
        load[owner] = load.get(owner, 0) + sizes[block]
    return owners


class Range(NamedTuple):
    """A block of a leaf that is needed."""

    start: Starts
    shape: tuple[int, ...]


def range_of(index: Sequence[slice], shape: Sequence[int]) -> Range:
    """Returns the block that slices take of an array."""
    ends = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    return Range(tuple(start for start, _ in ends), tuple(stop - start for start, stop in ends))


def overlap(wanted: Range, piece: Range | Piece) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Returns which part of the block that is wanted comes from which part of a piece; None: nothing does."""
    into, out = list[slice](), list[slice]()
    for a, n, b, m in zip(wanted.start, wanted.shape, piece.start, piece.shape, strict=True):
        low, high = max(a, b), min(a + n, b + m)
        if low >= high:
            return None
        into.append(slice(low - a, high - a))
        out.append(slice(low - b, high - b))
    return tuple(into), tuple(out)


def sources(leaf: str, wanted: Range, pieces: Iterable[Piece]) -> list[Piece]:
    """Returns the pieces that a block is made of; a CorruptionError if they do not cover it, each place once."""
    found = [(piece, over) for piece in pieces if (over := overlap(wanted, piece)) is not None]
    covered = sum(math.prod(part.stop - part.start for part in into) for _, (into, _) in found)
    if covered != math.prod(wanted.shape):
        raise CorruptionError(
            f"{leaf!r}: {covered} of {math.prod(wanted.shape)} numbers are kept of the block at {wanted.start}"
        )
    return [piece for piece, _ in found]


def assembled(wanted: Range, pieces: Iterable[Piece], dtype: Any, data: Callable[[Piece], memoryview]) -> np.ndarray:
    """Returns a block, from the pieces that it is made of, in memory of its own: devices may use it as theirs."""
    blocks = [(piece, np.frombuffer(data(piece), np.uint8).view(dtype).reshape(piece.shape)) for piece in pieces]
    whole = np.empty(wanted.shape, dtype)
    for piece, block in blocks:
        if (over := overlap(wanted, piece)) is not None:
            whole[over[0]] = block[over[1]]
    return whole


def runs(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """Returns pieces of a part in groups that are read at once: those that lie side by side."""
    groups: list[list[Piece]] = []
    for piece in sorted(set(pieces), key=lambda piece: piece.offset):
        last = groups[-1][-1] if groups else None
        if last is not None and piece.offset - (last.offset + last.size) < _ALIGNED:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups
