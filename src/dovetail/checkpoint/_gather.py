# SPDX-License-Identifier: Apache-2.0
"""Reads what this process needs of a keep from the places that have it, and makes leaves of it."""

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.blobs import BlobError

from ._errors import CorruptionError, bullets
from ._fingerprint import fingerprint, to_text
from ._leaves import check_fits, sharding_of
from ._parts import Keep, Part, Piece, Range, assembled, range_of, runs, sources
from ._places import Place
from ._processes import add_up

_AT_ONCE = 8  # Parts that are read at a time.
_T = TypeVar("_T")


class Gather:
    """Reads one keep.

    Args:
        holders: the places that have each part.
        where: what to call it in messages.
    """

    def __init__(self, keep: Keep, holders: Sequence[Sequence[Place]], where: str) -> None:
        self._keep, self._where = keep, where
        # Not all from the same host: processes begin with different ones.
        rank = jax.process_index()
        self._holders = [[*each[rank % len(each) :], *each[: rank % len(each)]] for each in holders]
        self._lock = threading.Lock()
        self.used: set[str] = set()  # The hosts that something was read from.
        self.problems: list[str] = []  # What was not right at one place, and found at another.

    def parts(self) -> list[Part]:
        """Returns what is in each part."""
        return _at_once(self.part, range(self._keep.parts))

    def part(self, rank: int) -> Part:
        """Returns what is in one part."""
        name = self._keep.contents(rank)
        return self._first_good(rank, lambda place: Part.from_bytes(place.client.get(name), f"part {rank}"))

    def leaves(self, parts: Sequence[Part], wanted: Mapping[str, Any]) -> dict[str, Array]:
        """Returns leaves, laid out as `wanted` says, not verified as a whole yet. Only what they need is read."""
        infos = parts[0].leaves
        check_fits(f"of step {self._keep.step} in {self._where}", infos, wanted, partial=False)
        if any(part.leaves != infos for part in parts):
            raise CorruptionError("its parts are not of the same state")
        places: dict[str, list[tuple[int, Piece]]] = {path: [] for path in wanted}
        for rank, part in enumerate(parts):
            for piece in part.pieces:
                places[piece.leaf].append((rank, piece))
        stored = {path: _stored(leaf) for path, leaf in wanted.items()}
        needed: dict[tuple[str, Range], list[Piece]] = {}
        of: dict[Piece, int] = {}
        for path, x in stored.items():
            pieces = {piece: rank for rank, piece in places[path]}
            of |= pieces
            for index in x.sharding.addressable_devices_indices_map(x.shape).values() if x.size else ():
                wants = range_of(index or (), x.shape)
                if (path, wants) not in needed:
                    needed[path, wants] = sources(path, wants, pieces)
        data = self._read({piece: of[piece] for each in needed.values() for piece in each})

        def block(path: str, index: Any) -> np.ndarray:
            x = stored[path]
            wants = range_of(index or (), x.shape)
            return assembled(wants, needed.get((path, wants), ()), x.dtype, data.__getitem__)

        return {path: _made(path, stored[path], wanted[path], infos[path].key_impl, block) for path in wanted}

    def _read(self, of: Mapping[Piece, int]) -> dict[Piece, memoryview]:
        """Returns the bytes of pieces, each of a part, verified by their checksums."""
        groups = [(rank, run) for rank in sorted(set(of.values())) for run in runs(p for p in of if of[p] == rank)]

        def read(group: tuple[int, list[Piece]]) -> dict[Piece, memoryview]:
            rank, run = group
            return self._first_good(rank, lambda place: _checked(place, self._keep.data(rank), run))

        return {piece: data for found in _at_once(read, groups) for piece, data in found.items()}

    def _first_good(self, rank: int, read: Callable[[Place], _T]) -> _T:
        problems: list[str] = []
        for place in self._holders[rank]:
            try:
                found = read(place)
            except (BlobError, CorruptionError) as e:
                problems.append(f"host {place.host}: {e}")
                continue
            with self._lock:
                self.used.add(place.host)
                self.problems += problems
            return found
        raise CorruptionError(f"part {rank} cannot be had:{bullets(problems)}")


def verify(parts: Sequence[Part], leaves: Mapping[str, Array]) -> Callable[[], None]:
    """Starts to compare leaves with the fingerprints that were taken when they were kept; the result raises.

    To be called where `together` may be; so may what it returns, in each process.
    """
    prints = {path: fingerprint(leaf) for path, leaf in leaves.items()}
    totals = add_up(np.array([found.local() for found in prints.values()], np.uint32))

    def check() -> None:
        problems = list[str]()
        for path, found in zip(prints, totals, strict=True):
            shares = np.array([part.fingerprints.get(path, (0, 0)) for part in parts], np.uint32)
            expected = np.add.reduce(shares, dtype=np.uint32)
            if to_text(found) != to_text(expected):
                problems.append(f"{path!r} has fingerprint {to_text(found)}, {to_text(expected)} was kept.")
            elif not prints[path].replicas_agree():
                problems.append(f"{path!r} is not the same on all devices.")
        if problems:
            raise CorruptionError(f"what was kept has changed:{bullets(problems)}")

    return check


def _checked(place: Place, name: str, run: Sequence[Piece]) -> dict[Piece, memoryview]:
    begin = run[0].offset
    data = memoryview(place.client.get(name, begin, run[-1].offset + run[-1].size))
    found = {piece: data[piece.offset - begin : piece.offset - begin + piece.size] for piece in run}
    for piece, content in found.items():
        if zlib.crc32(content) != piece.crc:
            raise CorruptionError(f"{piece.leaf!r} has crc32 {zlib.crc32(content):08x}, {piece.crc:08x} was kept")
    return found


def _stored(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns what a leaf is where it is kept: PRNG keys are numbers there."""
    shape, dtype = leaf.shape, leaf.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        found = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, dtype))
        shape, dtype = found.shape, found.dtype
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding_of(leaf))


def _made(path: str, stored: Any, leaf: Any, key_impl: str | None, block: Callable[[str, Any], np.ndarray]) -> Array:
    shape, sharding, dtype = stored.shape, stored.sharding, stored.dtype
    x = jax.make_array_from_callback(shape, sharding, lambda index: block(path, index), dtype=dtype)
    return jax.device_put(jax.random.wrap_key_data(x, impl=key_impl), sharding_of(leaf)) if key_impl else x


def _at_once(work: Callable[[Any], _T], items: Iterable[Any]) -> list[_T]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(work, items))
