# SPDX-License-Identifier: Apache-2.0
"""Whatever lies where on however many processes, each byte is written once, and read once where that is promised."""

import math
import random
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoint.helpers import mesh, sharded
from dovetail.checkpoint import _dealt, _layout, _pack
from dovetail.checkpoint._layout import Group, Layout, Place, Plan, layout_from_text, layout_to_text, place_of
from dovetail.checkpoint._step_files import LocalFiles


class CountedFiles(LocalFiles):
    """Counts how often bytes of data are read."""

    def __init__(self, path):
        super().__init__(path)
        self.read = Counter()

    def read_into(self, name, offset, out):
        count = super().read_into(name, offset, out)
        if not name.endswith(".json"):
            self.read.update((name, offset + i) for i in range(count))
        return count


def any_place(rng: random.Random, shape: tuple[int, ...], dtype: str, processes: int) -> Place:
    """Returns a grid that fits the shape, its cells on one process each, on all, or on any."""
    grid = tuple(rng.choice([n for n in range(1, size + 1) if size % n == 0]) for size in shape)
    cells, kind = math.prod(grid), rng.randrange(3)
    held: dict[tuple[int, ...], list[int]] = {}
    for cell in range(cells):
        one = (cell * processes // cells if cells >= processes else cell,)
        some = tuple(sorted(rng.sample(range(processes), rng.randint(1, processes))))
        held.setdefault((one, tuple(range(processes)), some)[kind], []).append(cell)
    return Place(shape, dtype, grid, Layout.of(tuple(Group(tuple(c), p) for p, c in held.items())))


def cell_of(x: np.ndarray, place: Place, cell: int) -> np.ndarray:
    parts = zip(place.start_of(cell), place.cell_shape, strict=True)
    return x[tuple(slice(start, start + size) for start, size in parts)]


@pytest.mark.parametrize("seed", range(60))
def test_arrays_move_from_any_layout_to_any_other(seed, tmp_path, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(_layout, "_LEAST", rng.choice([1, 8, 64]))
    monkeypatch.setattr(_pack, "_BLOCK", rng.choice([7, 64, 1000]))
    monkeypatch.setattr(_dealt, "_AT_ONCE", rng.choice([16, 100, 1 << 20]))
    shapes = {f"x{i}": tuple(rng.choices([1, 2, 3, 4, 6, 8], k=rng.randrange(4))) for i in range(rng.randint(1, 6))}
    dtypes = {name: rng.choice(["uint8", "float32", "int16"]) for name in shapes}
    data = {name: np.random.default_rng(seed).integers(0, 99, s).astype(dtypes[name]) for name, s in shapes.items()}
    (tmp_path / "arrays").mkdir()
    files = CountedFiles(tmp_path)
    writers, readers = rng.choice([1, 2, 3, 5]), rng.choice([1, 2, 3, 4])
    plan = Plan({name: any_place(rng, shape, dtypes[name], writers) for name, shape in shapes.items()})
    for process in range(writers):
        pieces = []
        for stream, begin, end in plan.written_by(process):
            for run in stream.runs(begin, end):
                rows = cell_of(data[run.path], plan.places[run.path], run.cell)
                pieces.append(memoryview((rows[run.first : run.first + run.rows] if rows.ndim else rows).tobytes()))
        assert sum(map(len, pieces)) == plan.size_of(process)
        if pieces:
            _pack.write_pack(files, process, pieces, compress=rng.random() < 0.5)
    assert sum(map(plan.size_of, range(writers))) == sum(x.nbytes for x in data.values())

    goal = Plan({name: any_place(rng, shape, dtypes[name], readers) for name, shape in shapes.items()})
    parts = [_dealt.read_parts(files, plan, goal, process, readers) for process in range(readers)]
    files.close()
    for process in range(readers):
        for stream, layout, found in parts[process]:
            if _dealt.is_shared(layout, readers):  # As `share` adds them up.
                theirs = [part.data for mine in parts for part in mine if part.stream is stream]
                found = np.sum(theirs, axis=0, dtype=np.uint8).reshape(-1)
            for run in stream.runs(0, stream.size):
                want = cell_of(data[run.path], goal.places[run.path], run.cell)
                got = found[run.offset : run.offset + run.size].view(want.dtype).reshape(want.shape)
                np.testing.assert_array_equal(got, want)


def test_what_all_want_is_read_once_in_all(tmp_path, monkeypatch):
    monkeypatch.setattr(_layout, "_LEAST", 8)
    monkeypatch.setattr(_pack, "_BLOCK", 8)
    (tmp_path / "arrays").mkdir()
    files = CountedFiles(tmp_path)
    everywhere = Layout.of((Group((0,), (0, 1, 2, 3)),))
    plan = Plan({"x": Place((64, 2), "float32", (1, 1), everywhere)})
    data = np.arange(512, dtype=np.uint16).view(np.uint8)[:512]
    for process in range(4):
        ((_, begin, end),) = plan.written_by(process)
        _pack.write_pack(files, process, [data[begin:end].data], compress=False)
    for process in range(4):
        _dealt.read_parts(files, plan, Plan(plan.places), process, 4)
    files.close()
    assert len(files.read) == 512
    assert set(files.read.values()) == {1}


def test_places_are_those_of_the_sharding():
    x = sharded(jnp.zeros((8, 6)), "a", on=mesh(4, 2))
    place = place_of(x.shape, x.dtype, x.sharding)
    assert (place.grid, place.cell_shape, place.row_bytes, place.rows) == ((4, 1), (2, 6), 24, 2)
    assert place.layout is Layout.of((Group((0, 1, 2, 3), (0,)),))
    assert [place.cell_at(shard.index) for shard in x.addressable_shards] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert place_of((), jnp.int8, jax.sharding.SingleDeviceSharding(jax.devices()[0])).row_bytes == 1


@pytest.mark.parametrize("text", ["0", "0:", ":0", "0:0 0:1", "1:0", "0-99999999999:0", "x:0", "0:1,1", "0-:0", "0:²"])
def test_texts_that_are_no_layouts_are_refused(text):
    with pytest.raises(ValueError, match=r"has not|has a cell|is no list|is too long"):
        layout_from_text(text)


def test_a_layout_of_many_processes_is_short():
    processes = 10_000
    spread = Layout.of(tuple(Group((n,), (n,)) for n in range(processes)))
    text = layout_to_text(spread)
    assert layout_from_text(text) is spread
    assert len(text) < 11 * processes
    assert layout_to_text(Layout.of((Group((0,), tuple(range(processes))),))) == "0:0-9999"
