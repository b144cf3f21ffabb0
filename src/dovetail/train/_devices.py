# SPDX-License-Identifier: Apache-2.0
"""The devices of a run: where its state and its batches lie, and which rows this process reads."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.config import ConfigError
from dovetail.data import BatchIterator, BatchSpec, Input, merge_states, spec_of
from dovetail.module import Module, abstract, run_specs, specs
from dovetail.ops import target
from dovetail.optim import Learner
from dovetail.parallel import BatchShape, Mesh, all_values, check_fit, layout_of

from ._batch import batch_shape, placement
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

    def state_shardings(self, learner: Learner) -> Any:
        """Returns where each array of the training state lies; None on one device."""
        if self._mesh is None:
            return None
        mesh, layout, everywhere = self._mesh, self.layout, self.everywhere

        def place(spec: Any) -> Any:
            return NamedSharding(mesh, layout.partition(spec)) if layout else everywhere

        params = jax.tree.map(place, specs(self._model))
        slots = learner.like_params(abstract(self._model), params, everywhere)
        return TrainState(everywhere, params, slots, jax.tree.map(place, run_specs(self._model)))

    @property
    def row_parts(self) -> int:
        """How many parts the rows of a batch are split into."""
        return 1 if self.layout is None else self.layout.shards(self.layout.activation_axes("batch"))

    @property
    def everywhere(self) -> Any:
        """The sharding of what every device has all of; None on one device."""
        return None if self._mesh is None else NamedSharding(self._mesh, PartitionSpec())

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
            return GlobalBatches(source.iterator(), declared, self, 0, 1)
        axes = self.layout.activation_axes("batch")
        parts = self.layout.shards(axes)
        if any(spec.rows % parts for spec in declared):
            return GlobalBatches(source.iterator(), declared, self, 0, 1, parts)
        places = NamedSharding(self._mesh, PartitionSpec(axes or None)).addressable_devices_indices_map((parts,))
        held = [index[0].indices(parts) for index in places.values() if index is not None]
        first, last = min(start for start, _, _ in held), max(stop for _, stop, _ in held)
        # A process reads one run of rows; where its devices need several, all of the batch.
        shard, rest = divmod(first, last - first)
        if rest or parts % (last - first):
            first, last, shard = 0, parts, 0
        count = parts // (last - first)
        return GlobalBatches(source.iterator(shard_index=shard, shard_count=count), declared, self, shard, count)


class GlobalBatches:
    """Batches on the devices of a run. Its position in the data is that of all processes together."""

    def __init__(
        self,
        source: BatchIterator,
        declared: Sequence[BatchSpec],
        devices: Devices,
        shard: int,
        count: int,
        multiple: int = 1,
    ) -> None:
        """`source` gives part `shard` of `count` of each batch, which is filled up to a multiple of some rows."""
        self._source, self._declared, self._devices = source, declared, devices
        self._shard, self._count, self._multiple = shard, count, multiple
        self.spec = declared[0]  # Of the batch given last.

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return self

    def __next__(self) -> Mapping[str, Any]:
        batch = next(self._source)
        self.spec = spec_of(batch, self._declared, "the input", self._count)
        batch = self.spec.filled(batch, -self.spec.rows % self._multiple)
        if self._devices.layout is None:
            return batch
        shardings = self._devices.batch_shardings(self.spec)
        return {name: self._placed(values, shardings[name]) for name, values in batch.items()}

    def _placed(self, values: np.ndarray, sharding: NamedSharding) -> jax.Array:
        first, shape = self._shard * len(values), (self._count * len(values), *values.shape[1:])

        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(shape[0])
            return values[(slice(start - first, stop - first), *index[1:])]

        return jax.make_array_from_callback(shape, sharding, part)

    def get_state(self) -> Any:
        """Returns the position after the batch given last."""
        return merge_states(all_values(self._source.get_state()))

    def set_state(self, state: Any) -> None:
        """Goes to a position, made with any number of processes."""
        self._source.set_state(state)
