# SPDX-License-Identifier: Apache-2.0
"""The devices of a run: where its state and its batches lie, and which rows this process reads."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.config import ConfigError
from dovetail.data import BatchIterator, Input, merge_states
from dovetail.module import Module, abstract, specs
from dovetail.ops import target
from dovetail.optim import Learner
from dovetail.parallel import Batch, Mesh, all_values, check_fit, layout_of

from ._step import TrainState


class Devices:
    """The mesh of a run, or the one device that it uses, in which case everything is left as it is."""

    def __init__(self, mesh: Mesh, model: Module, batch: Batch, devices: Sequence[Any] | None = None) -> None:
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
        return TrainState(everywhere, params, slots)

    @property
    def everywhere(self) -> Any:
        """The sharding of what every device has all of; None on one device."""
        return None if self._mesh is None else NamedSharding(self._mesh, PartitionSpec())

    @property
    def batch_sharding(self) -> NamedSharding | None:
        """The sharding of batches; None on one device."""
        if self.layout is None or self._mesh is None:
            return self.everywhere
        axes = (self.layout.activation_axes(name) or None for name in ("batch", "seq"))
        return NamedSharding(self._mesh, PartitionSpec(*axes))

    def check_length(self, path: str, tokens: int) -> None:
        """Raises if the mesh cannot split sequences of so many tokens."""
        parts = self.layout.shards(self.layout.activation_axes("seq")) if self.layout else 1
        if tokens % parts:
            low = tokens // parts * parts
            sizes = " or ".join(str(size) for size in (low, low + parts) if size)
            raise ConfigError(
                f"{path} is {tokens}, which the {parts} devices along the mesh axis 'seq' do not divide.\n"
                f"  Use {sizes}."
            )

    def batches(self, source: Input) -> "GlobalBatches":
        """Returns the batches of an input, of which this process reads the rows of its devices.

        Where these do not divide the rows, batches are filled up with rows of weight 0.
        """
        sharding = self.batch_sharding
        if self.layout is None or sharding is None:
            return GlobalBatches(source.iterator(), None, source.batch_shape, 0)
        self.check_length("seq_len", source.batch_shape[1])
        more = -source.batch_shape[0] % self.layout.shards(self.layout.activation_axes("batch"))
        if more:
            return GlobalBatches(source.iterator(), sharding, source.batch_shape, 0, more)
        rows, places = source.batch_shape[0], sharding.addressable_devices_indices_map(source.batch_shape)
        held = [index[0].indices(rows) for index in places.values() if index is not None]
        first, last = min(start for start, _, _ in held), max(stop for _, stop, _ in held)
        # A process reads one run of rows; where its devices need several, all of the batch.
        shard, rest = divmod(first, last - first)
        if rest or rows % (last - first):
            first, last, shard = 0, rows, 0
        iterator = source.iterator(shard_index=shard, shard_count=rows // (last - first))
        return GlobalBatches(iterator, sharding, source.batch_shape, first)


class GlobalBatches:
    """Batches on the devices of a run. Its position in the data is that of all processes together."""

    def __init__(
        self,
        source: BatchIterator,
        sharding: NamedSharding | None,
        shape: tuple[int, int],
        first_row: int,
        more_rows: int = 0,
    ) -> None:
        self._source, self._sharding, self._first, self._more = source, sharding, first_row, more_rows
        self._shape = (shape[0] + more_rows, shape[1])

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return self

    def __next__(self) -> Mapping[str, Any]:
        batch, sharding = _filled_up(next(self._source), self._more), self._sharding
        return batch if sharding is None else {name: self._placed(rows, sharding) for name, rows in batch.items()}

    def _placed(self, rows: np.ndarray, sharding: NamedSharding) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(self._shape[0])
            return rows[start - self._first : stop - self._first, index[1]]

        return jax.make_array_from_callback(self._shape, sharding, part)

    def get_state(self) -> Any:
        """Returns the position after the batch given last."""
        return merge_states(all_values(self._source.get_state()))

    def set_state(self, state: Any) -> None:
        """Goes to a position, made with any number of processes."""
        self._source.set_state(state)


def _filled_up(batch: Mapping[str, np.ndarray], more: int) -> Mapping[str, np.ndarray]:
    """Returns a batch with more rows at its end: the last one again, with weight 0."""
    if not more:
        return batch
    filled = {name: np.pad(rows, ((0, more), (0, 0)), "edge") for name, rows in batch.items()}
    filled["weights"][-more:] = 0
    return filled
