# SPDX-License-Identifier: Apache-2.0
"""What a module may ask about the devices it runs on, in terms of logical axes alone.

`dovetail.parallel` fills the interface. A call without a layout runs as if there were one device, and costs nothing.
"""

import abc
from typing import Literal, NamedTuple

from jax import Array

from ._param import ParamSpec

Axes = tuple[str | None, ...]  # The logical name of each dimension; None: the same on all devices.


class Pipelining(NamedTuple):
    """How the layers of a loop are spread over stages, and a batch over microbatches."""

    stages: int
    microbatches: int
    rounds: int  # How often a microbatch goes through all stages: 1, or more where stages hold several short pieces.
    schedule: Literal["forward_first", "one_forward_one_backward"]
    axis: str  # The mesh axis of the stages, for `jax.vmap(..., spmd_axis_name=axis)`.


class Layout(abc.ABC):
    """The interface: how the logical axes of activations and parameters lie on the mesh in use."""

    @property
    @abc.abstractmethod
    def pipelining(self) -> Pipelining | None:
        """How loops over layers are pipelined; None: they are not."""

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
    def stored_axes(self, spec: ParamSpec) -> tuple[tuple[str, ...], ...]:
        """Returns, for each dimension of a parameter, the mesh axes, all larger than 1, over which it is stored."""

    @abc.abstractmethod
    def inside(self, axes: frozenset[str]) -> "Layout":
        """Returns the layout for code that runs on each device's part along some mesh axes, inside `jax.shard_map`."""
