# SPDX-License-Identifier: Apache-2.0
"""Arrays as they are dealt to processes: out of the shards of a state into files, and from there onto any mesh.

Each process writes its part of what it holds. To restore, those who want the same cells each read a part of them, and
give it to the others over the network: storage is asked for each byte once.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from dovetail.progress import Count, counting

from ._layout import Layout, Place, Plan, Run, Stream, place_of
from ._pack import Damaged, Pack
from ._step_files import StepFiles

_THREADS = 8  # That read at a time.
_AT_ONCE = 1 << 26  # Bytes that processes give to each other at a time, and that a thread reads at most.


def places_of(stored: Mapping[str, Array]) -> dict[str, Place]:
    """Returns how arrays lie on processes."""
    return {path: place_of(x.shape, x.dtype, x.sharding) for path, x in stored.items()}


def copied(plan: Plan, stored: Mapping[str, Array]) -> list[memoryview]:
    """Returns the bytes that this process writes, on the host: the arrays may be donated or deleted.

    On a CPU they are there already, and are not copied: JAX gives a donated array another place while they are in use.
    """
    parts: list[Array | np.ndarray] = []
    shards: dict[str, dict[int, Array]] = {}
    for stream, begin, end in plan.written_by(jax.process_index()):
        for run in stream.runs(begin, end):
            place = plan.places[run.path]
            if run.path not in shards:
                here = stored[run.path].addressable_shards
                shards[run.path] = {place.cell_at(shard.index): shard.data for shard in here}
            parts.append(_rows(shards[run.path][run.cell], place, run))
    for part in parts:
        if isinstance(part, Array):
            part.copy_to_host_async()
    return [_bytes_of(np.asarray(part)) for part in parts]


def _rows(shard: Array, place: Place, run: Run) -> Array | np.ndarray:
    if run.rows == place.rows:
        return shard
    if next(iter(shard.devices())).platform == "cpu":
        return np.asarray(shard)[run.first : run.first + run.rows]
    return _sliced(shard, run.first, run.rows)  # Few of them: the first and the last of a part.


@functools.partial(jax.jit, static_argnums=2)
def _sliced(x: Array, first: int, rows: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(x, first, rows)


def _bytes_of(x: np.ndarray) -> memoryview:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8).data


class Part(NamedTuple):
    """What this process has of a stream: all of it, when it has been shared."""

    stream: Stream
    layout: Layout
    data: np.ndarray  # All bytes; those that others read are zero.


def read_parts(files: StepFiles, plan: Plan, goal: Plan, process: int, processes: int) -> list[Part]:
    """Reads what a process has to read for `goal`, of arrays that lie as `plan` says; `Damaged` if it cannot."""
    parts, tasks = [], list[_Task]()
    for layout in goal.layouts:
        for group in layout.groups:
            if process not in group.processes:
                continue
            stream, begin, end = goal.stream(layout, group), 0, None
            if is_shared(layout, processes):
                number = group.processes.index(process)
                begin, end = stream.begin_of(number), stream.begin_of(number + 1)
            data = np.zeros(-(-stream.size // 4) * 4, np.uint8)
            for run in stream.runs(begin, stream.size if end is None else end):
                out = data[run.offset : run.offset + run.size]
                tasks += _tasks(plan, goal.places[run.path], run, out)
            parts.append(Part(stream, layout, data))
    _read(files, plan, tasks)
    return parts


def is_shared(layout: Layout, processes: int) -> bool:
    """Whether processes that want the same read each a part of it, which takes all processes."""
    holders = sum(len(group.processes) for group in layout.groups)
    return layout.is_even and holders == processes > len(layout.groups)


class _Task(NamedTuple):
    process: int  # Whose file it is in.
    begin: int  # In that file.
    shape: tuple[int, ...]  # Of the rows there.
    source: tuple[slice, ...]  # What of them is wanted,
    out: np.ndarray  # and where it goes.

    @property
    def size(self) -> int:
        return int(np.prod(self.shape)) * self.out.itemsize


def _tasks(plan: Plan, target: Place, run: Run, out: np.ndarray) -> Iterator[_Task]:
    """Yields what to read for some rows of a cell of the goal."""
    saved = plan.places[run.path]
    typed = out.view(np.dtype(f"V{jnp.dtype(saved.dtype).itemsize}"))
    if not saved.shape:
        yield from _rows_of(plan, run.path, 0, 0, 1, (), (), typed)
        return
    begin = list(target.start_of(run.cell))
    begin[0] += run.first
    sizes = (run.rows, *target.cell_shape[1:])
    typed = typed.reshape(sizes)
    ends = [b + size for b, size in zip(begin, sizes, strict=True)]
    cell = saved.cell_shape
    over = [range(b // c, -(-e // c)) for b, e, c in zip(begin, ends, cell, strict=True)]
    for where in itertools.product(*over):
        start = [i * c for i, c in zip(where, cell, strict=True)]
        low = [max(b, s) for b, s in zip(begin, start, strict=True)]
        high = [min(e, s + c) for e, s, c in zip(ends, start, cell, strict=True)]
        source = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True))
        here = typed[tuple(slice(a - b, c - b) for a, c, b in zip(low, high, begin, strict=True))]
        number = int(np.ravel_multi_index(where, saved.grid))
        first, last = source[0].start, source[0].stop
        yield from _rows_of(plan, run.path, number, first, last, cell[1:], source[1:], here)


def _rows_of(
    plan: Plan,
    path: str,
    cell: int,
    first: int,
    last: int,
    rest: tuple[int, ...],
    source: tuple[slice, ...],
    out: np.ndarray,
) -> Iterator[_Task]:
    """Yields what to read for the rows `first` to `last` of a cell, from the files of those who wrote them."""
    stream, base = plan.stream_of(path, cell)
    row = plan.places[path].row_bytes
    most = max(1, _AT_ONCE // row)
    at = first
    while at < last:
        begin = base + at * row
        part = stream.part_at(begin)
        rows = min(last - at, (stream.begin_of(part + 1) - begin) // row, most)
        process = stream.group.processes[part]
        where = plan.position(process, stream) + begin - stream.begin_of(part)
        yield _Task(process, where, (rows, *rest), (slice(None), *source), out[at - first : at - first + rows])
        at += rows


def _read(files: StepFiles, plan: Plan, tasks: Sequence[_Task]) -> None:
    by_process: dict[int, list[_Task]] = {}
    for task in sorted(tasks, key=lambda task: (task.process, task.begin)):
        by_process.setdefault(task.process, []).append(task)
    packs: dict[int, Pack] = {}

    def opened(process: int) -> None:
        packs[process] = Pack(files, process, plan.size_of(process))

    jobs: list[list[_Task]] = []
    for mine in by_process.values():
        size = _AT_ONCE
        for task in mine:  # Neighbours in one job: blocks that they share are read once.
            if size >= _AT_ONCE:
                jobs.append([])
                size = 0
            jobs[-1].append(task)
            size += task.size
    for process in by_process:
        plan.size_of(process)  # The plan remembers streams: not in several threads at a time.
    count = counting(sum(task.size for task in tasks), "bytes")
    with ThreadPoolExecutor(_THREADS) as pool:
        _all(pool, opened, by_process)
        _all(pool, lambda job: [_do(packs[task.process], task, count) for task in job], jobs)


def _all(pool: ThreadPoolExecutor, work: Callable[[Any], Any], items: Any) -> None:
    """Does all, and raises one error with what is wrong with any."""
    errors: list[str] = []
    for future in [pool.submit(work, item) for item in items]:
        try:
            future.result()
        except Damaged as e:
            errors += [text for text in e.args if text not in errors]
    if errors:
        raise Damaged(*errors)


def _do(pack: Pack, task: _Task, count: Count) -> None:
    whole = all(part == slice(0, size) for part, size in zip(task.source[1:], task.shape[1:], strict=True))
    if whole and task.out.flags.c_contiguous:
        pack.read(task.begin, task.out.reshape(-1).view(np.uint8).data)
        count.advance(task.size)
        return
    found = np.empty(task.size, np.uint8)
    pack.read(task.begin, found.data)
    task.out[...] = found.view(task.out.dtype).reshape(task.shape)[task.source]
    count.advance(task.size)


def share(parts: Sequence[Part]) -> None:
    """Gives each process what others have read for it. All processes come here, with the same layouts."""
    for part in parts:
        if is_shared(part.layout, jax.process_count()):
            mesh = _mesh(part.layout)
            words = part.data.view(np.uint32)
            for begin in range(0, len(words), _AT_ONCE // 4):
                piece = words[begin : begin + _AT_ONCE // 4]
                piece[:] = _summed(mesh, piece)


def _summed(mesh: Mesh, mine: np.ndarray) -> np.ndarray:
    """Returns the sum over the processes of a group: each has zeros where the others have something."""
    size = 1 << (len(mine) - 1).bit_length()  # Few sizes: each is a program to compile.
    padded = np.zeros((1, 1, size), np.uint32)
    padded[0, 0, : len(mine)] = mine
    spread = NamedSharding(mesh, P("groups", "processes"))
    shape = (*mesh.devices.shape, size)
    with jax.set_mesh(mesh):
        summed = _sum_over_processes(mesh)(jax.make_array_from_process_local_data(spread, padded, shape))
    return np.asarray(summed.addressable_shards[0].data)[0, : len(mine)]


@functools.cache
def _sum_over_processes(mesh: Mesh) -> Any:
    def summed(x: Array) -> Array:
        return jnp.sum(x, axis=1, dtype=x.dtype)

    return jax.jit(summed, out_shardings=NamedSharding(mesh, P("groups")))


@functools.cache
def _mesh(layout: Layout) -> Mesh:
    """Returns a mesh of one device of each process: groups, and the processes in each."""
    first: dict[int, Any] = {}
    for device in jax.devices():
        first.setdefault(device.process_index, device)
    devices = [[first[process] for process in group.processes] for group in layout.groups]
    return Mesh(np.array(devices), ("groups", "processes"))


def placed(parts: Sequence[Part], wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
    """Returns the arrays, laid out as wanted, of the bytes that are there."""
    cells: dict[str, dict[int, np.ndarray]] = {}
    for stream, _, data in parts:
        for run in stream.runs(0, stream.size):
            place = stream.places[run.path]
            found = data[run.offset : run.offset + run.size].view(jnp.dtype(place.dtype))
            cells.setdefault(run.path, {})[run.cell] = found.reshape(place.cell_shape)
    return {path: _placed(cells[path], x) for path, x in wanted.items()}


def _placed(cells: Mapping[int, np.ndarray], x: jax.ShapeDtypeStruct) -> Array:
    sharding: Any = x.sharding
    place = place_of(x.shape, x.dtype, sharding)
    there = sharding.addressable_devices_indices_map(x.shape)
    kind = sharding.memory_kind
    shards = jax.device_put(
        [cells[place.cell_at(index)] for index in there.values()],
        [SingleDeviceSharding(device, memory_kind=kind) for device in there],
        may_alias=False,
    )
    return jax.make_array_from_single_device_arrays(x.shape, sharding, shards)
