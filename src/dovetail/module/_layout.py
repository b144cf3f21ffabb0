# SPDX-License-Identifier: Apache-2.0
"""What a module may ask about the devices it runs on, in terms of logical axes alone.

`dovetail.parallel` fills the interface. A call without a layout runs as if there were one device, and costs nothing.
"""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from jax import Array

from ._param import ParamSpec

if TYPE_CHECKING:
    from ._context import Collected
    from ._lift import Key

Axes = tuple[str | None, ...]  # The logical name of each dimension; None: the same on all devices.


class Layers(Protocol):
    """Some of the layers of a loop as a pure function, for a layout that runs loops in a way of its own."""

    def __call__(
        self, length: int, carry: Any, each: Any, inputs: Any, key: "Key", layout: "Layout | None"
    ) -> "tuple[Any, Collected]":
        """Takes `carry` through `length` layers, each of which has a part `[length, ...]` of `each`."""
        ...


class Exchange(Protocol):
    """Who sends how many rows to whom, agreed on by the devices that hold the parts of a logical axis."""

    @property
    def rounds(self) -> Array:
        """How often rows travel, until all have."""
        ...

    def __call__(self, function: Callable[[Array, Array], Array], rows: Array) -> Array:
        """Returns what `function`, of rows and of how many each index there has, makes of the rows where they belong.

        Args:
            rows: `[M, D]`, sorted by the index on the axis that they go to; the result is as these.
        """
        ...

    def sent_rows(self) -> Array:
        """Returns how many rows leave this device, and come back."""
        ...

    def padded_rows(self) -> Array:
        """Returns how many places for rows leave this device in all rounds, empty ones included, and come back."""
        ...


class Layout(abc.ABC):
    """The interface: how the logical axes of activations and parameters lie on the mesh in use."""

    @property
    @abc.abstractmethod
    def stage_axis(self) -> str | None:
        """The mesh axis of the stages of a pipeline, in code that `jax.vmap` runs for all of them; None elsewhere."""

    @abc.abstractmethod
    def loop(
        self, layers: Layers, path: str, count: int, carry: Any, each: Any, inputs: Any, key: "Key"
    ) -> "tuple[Any, Collected] | None":
        """Runs a loop over `count` layers in a way of its own, as a pipeline; None: it has none for this loop.

        Args:
            path: of the module whose loop it is.
        """

    @property
    @abc.abstractmethod
    def gathers(self) -> bool:
        """Whether `gather` makes parameters larger than what is stored of them."""

    @abc.abstractmethod
    def constrain(self, x: Array, axes: Axes) -> Array:
        """Returns an activation laid out as its logical axes say."""

    @abc.abstractmethod
    def gather(self, value: Array, spec: ParamSpec) -> Array:
        """Returns a parameter, as stored, as a layer uses it: whole along what only storage is split over, as in FSDP.

        Its gradient comes back laid out as the parameter is stored.
        """

    @abc.abstractmethod
    def activation_axes(self, name: str) -> tuple[str, ...]:
        """Returns the mesh axes, all larger than 1, over which an axis of activations is split."""

    @abc.abstractmethod
    def parameter_axes(self, name: str, size: int | None = None) -> tuple[str, ...]:
        """Returns the mesh axes, all larger than 1, over which an axis of parameters, of some size, is split."""

    @abc.abstractmethod
    def exchange(self, axis: str, sizes: Array, num_rows: int, *, room: float) -> Exchange | None:
        """Returns an exchange of rows with the devices that hold the parts of an axis of parameters, inside shards.

        None: the axis is not split, and all rows stay here.

        Args:
            sizes: how many of the rows here go to each index on the axis.
            num_rows: how many rows there are here.
            room: rows between two devices in one round, divided by what it takes if all get the same.
        """

    @abc.abstractmethod
    def stored_axes(self, spec: ParamSpec) -> tuple[tuple[str, ...], ...]:
        """Returns, for each dimension of a parameter, the mesh axes, all larger than 1, over which it is stored."""

    @abc.abstractmethod
    def inside(self, axes: frozenset[str]) -> "Layout":
        """Returns the layout for code that runs on each device's part along some mesh axes, inside `jax.shard_map`."""
