# SPDX-License-Identifier: Apache-2.0
"""The devices of a run: where its state and its batches lie, and which rows this process reads."""

import contextlib
import functools
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.config import ConfigError
from dovetail.data import (
    BatchIterator,
    BatchSpec,
    ChangedDataError,
    DataChange,
    DataError,
    Input,
    Pace,
    merge_states,
    spec_of,
)
from dovetail.module import Module, abstract, run_specs, specs
from dovetail.ops import target
from dovetail.optim import Learner
from dovetail.parallel import BatchShape, Mesh, all_values, check_fit, layout_of
from dovetail.progress import phase

from ._batch import batch_shape, placement
from ._left_out import LEFT_OUT, LeftOut, from_json, to_json
from ._spikes import Spikes
from ._step import TrainState


class Devices:
    """The mesh of a run, or the one device that it uses, in which case everything is left as it is."""

    def __init__(self, mesh: Mesh, model: Module, batch: BatchShape, devices: Sequence[Any] | None = None) -> None:
        self.layout = layout_of(mesh)
        if self.layout is not None:
            check_fit(mesh, specs(model), batch)
        self._mesh = mesh.on(devices) if devices or self.layout or jax.process_count() > 1 else None
        self._model = model

    @property
    def all(self) -> list[Any]:
        """The devices, those of other processes included."""
        return jax.devices()[:1] if self._mesh is None else list(self._mesh.devices.flat)

    @property
    def mesh(self) -> jax.sharding.Mesh | None:
        """The mesh; None where there is one device."""
        return self._mesh

    @property
    def platform(self) -> str:
        """What the devices are: "tpu", "cuda", "cpu", ..."""
        with self.ambient():
            return target()

    def ambient(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the context in which programs for these devices are traced."""
        return contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh)

    def jit(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Returns a function compiled for these devices."""
        compiled = jax.jit(function, **options)
        if self._mesh is None:
            return compiled

        def run(*args: Any) -> Any:
            with self.ambient():
                return compiled(*args)

        return run

    def state_shardings(self, learner: Learner, spikes: Spikes | None = None) -> Any:
        """Returns where each array of the training state lies; None on one device."""
        if self._mesh is None:
            return None
        mesh, layout, everywhere = self._mesh, self.layout, self.everywhere

        def place(spec: Any) -> Any:
            return NamedSharding(mesh, layout.partition(spec)) if layout else everywhere

        params = jax.tree.map(place, specs(self._model))
        slots = learner.like_params(abstract(self._model), params, everywhere)
        record = jax.tree.map(lambda _: everywhere, jax.eval_shape(spikes.init)) if spikes else ()
        return TrainState(everywhere, params, slots, jax.tree.map(place, run_specs(self._model)), record)

    @property
    def row_parts(self) -> int:
        """How many parts the rows of a batch are split into."""
        return 1 if self.layout is None else self.layout.shards(self.layout.activation_axes("batch"))

    @property
    def everywhere(self) -> Any:
        """The sharding of what every device has all of; None on one device."""
        return None if self._mesh is None else NamedSharding(self._mesh, PartitionSpec())

    @property
    def each_its_own(self) -> Any:
        """The sharding of an array with a row for each device; None on one device."""
        return None if self._mesh is None else NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names))

    def batch_shardings(self, spec: BatchSpec) -> dict[str, Any]:
        """Returns where each field of a batch lies; None on one device."""
        mesh, layout = self._mesh, self.layout
        if layout is None or mesh is None:
            return dict.fromkeys(spec.fields, self.everywhere)
        return {name: placement(field, layout, mesh) for name, field in spec.fields.items()}

    def check_lengths(self, path: str, specs: Sequence[BatchSpec]) -> None:
        """Raises if the mesh cannot split the rows of such batches; that there are enough rows does not matter here."""
        for name, size in batch_shape(specs).lengths.items():
            parts = self.layout.shards(self.layout.activation_axes(name)) if self.layout else 1
            if size % parts:
                low = size // parts * parts
                sizes = " or ".join(str(size) for size in (low, low + parts) if size)
                raise ConfigError(
                    f"{path}: rows have size {size} along {name!r}, which {parts} devices of the mesh do not divide.\n"
                    f"  Use {sizes}."
                )

    def batches(self, source: Input) -> "GlobalBatches":
        """Returns the batches of an input, of which this process reads the rows of its devices.

        Where these do not divide the rows, batches are filled up with padding, as the input declares it.
        """
        declared = source.cfg.batch_specs()
        if self.layout is None or self._mesh is None:
            return GlobalBatches(source, source.iterator, declared, self, 0, 1)
        axes = self.layout.activation_axes("batch")
        parts = self.layout.shards(axes)
        if any(spec.rows % parts for spec in declared):
            return GlobalBatches(source, source.iterator, declared, self, 0, 1, parts)
        places = NamedSharding(self._mesh, PartitionSpec(axes or None)).addressable_devices_indices_map((parts,))
        held = [index[0].indices(parts) for index in places.values() if index is not None]
        first, last = min(start for start, _, _ in held), max(stop for _, stop, _ in held)
        # A process reads one run of rows; where its devices need several, all of the batch.
        shard, rest = divmod(first, last - first)
        if rest or parts % (last - first):
            first, last, shard = 0, parts, 0
        count = parts // (last - first)
        rows = functools.partial(source.iterator, shard_index=shard, shard_count=count)
        return GlobalBatches(source, rows, declared, self, shard, count)


class Twice(NamedTuple):
    """A batch that was read twice."""

    batch: Mapping[str, Any] | None  # None at the end of the data.
    wrong: list[list[str]]  # Field, device and host where it is not what was read again.
    again: bool  # Whether the input gave the same when it was read once more.


class GlobalBatches:
    """Batches on the devices of a run. Its position in the data is that of all processes together."""

    def __init__(
        self,
        data: Input,
        opened: Callable[[], BatchIterator],
        declared: Sequence[BatchSpec],
        devices: Devices,
        shard: int,
        count: int,
        multiple: int = 1,
    ) -> None:
        """`opened` gives part `shard` of `count` of each batch, which is filled up to a multiple of some rows."""
        self._data, self._open, self._source, self._declared, self._devices = data, opened, opened(), declared, devices
        self._shard, self._count, self._multiple = shard, count, multiple
        self.spec = declared[0]  # Of the batch given last.
        self.number = 0  # Of the batch given last, in the order of the data, counted from 1.
        self.left_out: tuple[LeftOut, ...] = ()  # What rollbacks have left out so far.
        self.on_change: DataChange | None = None  # What is done about a position in other data.
        self.said = ""  # What that means.

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return self

    def __next__(self) -> Mapping[str, Any]:
        batch = self._filled(next(self._source))
        self.number += 1
        if self._devices.layout is None:
            return batch
        shardings = self._devices.batch_shardings(self.spec)
        return {name: self._placed(values, shardings[name]) for name, values in batch.items()}

    def left(self, most: int) -> int:
        """Returns how many batches are still to come in this process, up to `most`, which are made now."""
        return self._source.left(most)

    @property
    def pace(self) -> Pace:
        """How fast this process makes its part of each batch."""
        return self._source.pace

    def raise_error(self) -> None:
        """Raises what makes the batch after the last one impossible in this process, unless the data just ends."""
        error = self._source.next_error
        if error is not None and not isinstance(error, StopIteration):
            raise error

    def _filled(self, batch: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        self.spec = spec_of(batch, self._declared, "the input", self._count)
        return self.spec.filled(batch, -self.spec.rows % self._multiple)

    def _placed(self, values: np.ndarray, sharding: NamedSharding) -> jax.Array:
        shape = (self._count * len(values), *values.shape[1:])
        return jax.make_array_from_callback(shape, sharding, functools.partial(self._part, values))

    def _part(self, values: np.ndarray, index: Any) -> np.ndarray:
        """Returns what is at an index of the global array, of the rows that this process has."""
        start, stop, _ = index[0].indices(self._count * len(values))
        first = self._shard * len(values)
        return values[(slice(start - first, stop - first), *index[1:])]

    def read_twice(self) -> "Twice":
        """Returns the next batch, and how it differs from what is read once more from the same position."""
        position = self._source.get_state()
        batch = next(self, None)
        if batch is None:
            return Twice(None, [], True)
        again = self._read_again(position)
        wrong = self._different(batch, again)
        return Twice(batch, wrong, not wrong or _equal(again, self._read_again(position)))

    def _read_again(self, position: Any) -> Mapping[str, np.ndarray]:
        with self._open() as source:
            source.set_state(position)
            return self._filled(next(source))

    def _different(self, batch: Mapping[str, Any], again: Mapping[str, np.ndarray]) -> list[list[str]]:
        """Returns fields that are not the same bit for bit, on which devices, and the name of this host."""
        host, found = socket.gethostname(), list[list[str]]()
        for field, right in again.items():
            values = batch[field]
            if isinstance(values, jax.Array):
                held = [(str(one.device), one.data, self._part(right, one.index)) for one in values.addressable_shards]
            else:
                held = [(str(self._devices.all[0]), values, right)]
            here = [(device, np.asarray(data).tobytes(), part.tobytes()) for device, data, part in held]
            found += [[field, device, host] for device, data, part in here if data != part]
        return found

    def get_state(self) -> Any:
        """Returns the position after the batch given last, and what has been left out."""
        return merge_states(all_values(self.own_state()))

    def joined(self, own: Any) -> Any:
        """Returns the position of all processes from what `own_state` was in each; where it is all, none is asked."""
        return own if self._source.is_whole else merge_states(all_values(own))

    def own_state(self) -> Any:
        """Returns the position of this process, and what has been left out; no other process is asked."""
        position = self._source.get_state()
        return {**position, LEFT_OUT: to_json(self.left_out)} if self.left_out else position

    def set_state(self, state: Any, *others: Any) -> None:
        """Goes to a position, made with any number of processes: that of the run, or those of each of them."""
        state = merge_states([state, *others]) if others else state
        position = {name: value for name, value in state.items() if name != LEFT_OUT}
        if position["step"] and self._data.follow(position):
            self._source.close()
            self._source = self._open()
        try:
            self._source.set_state(position)
        except ChangedDataError as e:
            position = self._change(position, e)
        self.number = position["step"]
        self.left_out = from_json(state.get(LEFT_OUT, []))

    def _change(self, position: Any, error: ChangedDataError) -> Any:
        """Does about a position in other data what was decided; returns where that is."""
        if self.on_change is None:
            raise error
        start = {"step": 0, "streams": {}, "about": self._source.get_state()["about"]}
        if self.on_change == "keep":
            start, notes = self._data.carry(position)
        elif self.on_change == "restart":
            notes = ["it is read from its start"]
        else:
            notes = [f"it is read from where it would be after step {position['step']}"]
            known = self._data.seek(position["step"]) if position["step"] else start
            start = self._read_up_to(position["step"], start) if known is None else known
        self._source.set_state(start)
        lines = [*error.changes, f"{self.on_change}:", *(f"  {note}." for note in notes)]
        self.said = "\n".join(f"  {line}" for line in lines)
        return start

    def _read_up_to(self, step: int, start: Any) -> Any:
        """Returns the position after so many steps, where only reading tells."""
        self._source.set_state(start)
        with phase(f"reading up to step {step}"):
            for made in range(step):
                if next(self._source, None) is None:
                    raise DataError(f"the data is for {made} steps, and the run goes on after {step}.")
        return self._source.get_state()

    def leave_out(self, what: "LeftOut") -> None:
        """Goes on after the last batch of what a rollback leaves out, and keeps the record of it.

        The position is before that: the batches between are read, and not used.
        """
        while self.number < what.last:
            self.number += 1
            if next(self._source, None) is None:
                break
        self.left_out = (*self.left_out, what)


def _equal(some: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> bool:
    return all(values.tobytes() == others[name].tobytes() for name, values in some.items())
