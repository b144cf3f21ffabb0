# SPDX-License-Identifier: Apache-2.0
"""Parts: from any sharding to any other, complete or not there, and never mixed."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.checkpoint import CorruptionError, LeafInfo
from dovetail.checkpoint._parts import (
    Keep,
    Part,
    Piece,
    Range,
    assembled,
    complete,
    keep_of,
    laid_out,
    range_of,
    runs,
    shared_out,
    sources,
)

OLD, NEW = Keep("ab12", 1, 20, 2), Keep("ab12", 2, 40, 2)


def blobs(*parts: tuple[Keep, int]) -> list[str]:
    return [name for keep, rank in parts for name in keep.blobs(rank)]


def test_a_keep_is_complete_when_every_part_is_somewhere():
    places = [blobs((OLD, 0), (OLD, 1), (NEW, 0)), blobs((OLD, 1), (OLD, 0)), []]
    assert complete(places) == {OLD: [[0, 1], [0, 1]]}
    assert complete([*places, blobs((NEW, 1))]) == {NEW: [[0], [3]], OLD: [[0, 1], [0, 1]]}
    assert complete([blobs((OLD, 0)), []]) == {}


def test_a_part_without_its_index_or_its_data_is_not_there():
    assert complete([[NEW.contents(0), NEW.contents(1), NEW.data(1)]]) == {}
    assert complete([[NEW.data(0), NEW.contents(1), NEW.data(1)]]) == {}
    assert complete([[NEW.contents(0), NEW.data(0)], [NEW.contents(1), NEW.data(1)]]) == {NEW: [[0], [1]]}


def test_parts_of_one_step_from_two_histories_are_never_mixed():
    other, again = NEW._replace(gang="cd34"), NEW._replace(number=3)
    for another in (other, again):
        assert complete([blobs((NEW, 0)), blobs((another, 1))]) == {}
        assert complete([blobs((NEW, 0), (another, 0)), blobs((another, 1))]) == {another: [[0], [1]]}
    assert next(iter(complete([blobs(*itertools.product([NEW, again], [0, 1]))]))) == again
    assert complete([blobs((NEW, 0), (NEW, 1)), blobs((NEW._replace(parts=4), 3))]) == {NEW: [[0], [0]]}


@pytest.mark.parametrize("name", ["", "x", "ab12.1.20/0.index", "zz.1.2.3/0.index", "ab12.1.20.2/x.index"])
def test_what_others_have_left_is_none_of_ours(name: str):
    assert complete([[name, name.replace("index", "data")]]) == {}
    assert keep_of(name) in (None, OLD)


@st.composite
def grids(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Range]:
    """Blocks that divide an array, of about the same size along each dimension or not at all."""
    bounds = []
    for size in shape:
        inner = draw(st.sets(st.integers(1, size - 1), max_size=3)) if size > 1 else set()
        bounds.append(list(itertools.pairwise([0, *sorted(inner), size])))
    return [Range(tuple(a for a, _ in part), tuple(b - a for a, b in part)) for part in itertools.product(*bounds)]


@given(st.data())
def test_any_sharding_comes_back_in_any_other(data: st.DataObject):
    shape = tuple(data.draw(st.lists(st.integers(1, 7), max_size=3), label="shape"))
    dtype = data.draw(st.sampled_from([np.float32, np.int8, np.bool_, np.complex64]), label="dtype")
    x = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    saved, wanted = data.draw(grids(shape), label="saved"), data.draw(grids(shape), label="wanted")
    ranks = data.draw(st.lists(st.integers(0, 2), min_size=len(saved), max_size=len(saved)), label="ranks")
    contents: dict[int, bytearray] = {}
    pieces: dict[Piece, int] = {}
    for rank in set(ranks):
        mine = [block for block, owner in zip(saved, ranks, strict=True) if owner == rank]
        laid, size = laid_out(("x", block.start, block.shape, x.itemsize) for block in mine)
        contents[rank] = bytearray(size)
        for piece in laid:
            part = x[tuple(slice(a, a + n) for a, n in zip(piece.start, piece.shape, strict=True))]
            contents[rank][piece.offset : piece.offset + piece.size] = part.tobytes()
            pieces[piece] = rank
        assert sorted(piece for run in runs(laid) for piece in run) == sorted(laid)
    for block in wanted:
        found = sources("x", block, pieces)
        read = assembled(block, found, x.dtype, lambda p: memoryview(contents[pieces[p]])[p.offset : p.offset + p.size])
        want = x[tuple(slice(a, a + n) for a, n in zip(block.start, block.shape, strict=True))]
        np.testing.assert_array_equal(read, want)
        if len(found) < len(pieces):
            assert math.prod(block.shape) < x.size
    lost = data.draw(st.sampled_from(saved), label="lost")
    with pytest.raises(CorruptionError, match=r"'x': \d+ of \d+ numbers are kept of the block at"):
        sources("x", Range((0,) * len(shape), shape), [p for p in pieces if p.start != lost.start])


@given(
    st.dictionaries(st.text("abc", min_size=1), st.tuples(st.integers(0, 99), st.sets(st.integers(0, 5), min_size=1)))
)
def test_every_block_is_kept_once_by_one_that_has_it_and_nobody_keeps_much_more_than_others(blocks):
    sizes = {(name, (0,)): size for name, (size, _) in blocks.items()}
    holders = {(name, (0,)): sorted(ranks) for name, (_, ranks) in blocks.items()}
    owners = shared_out(sizes, holders)
    assert owners.keys() == sizes.keys()
    assert all(owner in holders[block] for block, owner in owners.items())
    everywhere = shared_out(sizes, dict.fromkeys(sizes, (0, 1, 2)))
    load = [sum(sizes[block] for block, owner in everywhere.items() if owner == rank) for rank in range(3)]
    assert max(load) - min(load) <= max(sizes.values(), default=0)


def test_a_part_comes_back_from_its_bytes_and_any_change_is_seen():
    part = Part({"a": LeafInfo((4,), "float32")}, [Piece("a", (2,), (2,), 0, 8, 7)], {"a": [1, 2]}, {"step": 3}, "{}")
    data = part.to_bytes()
    assert Part.from_bytes(data, "part 0") == part
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(CorruptionError, match="part 0 is damaged"):
            Part.from_bytes(bytes(changed), "part 0")


def test_the_index_of_a_shard_is_its_range():
    assert range_of((slice(2, 4), slice(None)), (8, 3)) == Range((2, 0), (2, 3))
    assert range_of((), ()) == Range((), ())
