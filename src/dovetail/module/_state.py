# SPDX-License-Identifier: Apache-2.0
"""Declared state: what a module keeps from one call to the next, known before the first call.

State has one of two lifetimes. That of a *sequence*, such as a cache of keys and values, belongs to a call: a module
that is called twice has two. That of a *run*, such as batch statistics or the bias of a router, belongs to the module,
as its parameters do, but no gradient reaches it.
"""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# What is private to a module is known in this package; the annotations of JAX are incomplete.

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from ._layout import Axes, Layout
from ._param import LAYERS_AXIS, ParamSpec, constant
from ._tree import join, map_specs

if TYPE_CHECKING:
    from ._module import Module

Lifetime = Literal["sequence", "run"]
Size = int | str  # A number, or the name of one that is known when state is made: "batch", "capacity", "pages".
Start = bool | int | float | Callable[[tuple[int, ...]], Array]  # The value everywhere, or a function of the shape.


@dataclasses.dataclass(frozen=True)
class StateSpec:
    """Shape, logical axes, dtype and first value of one piece of state of a sequence."""

    shape: tuple[Size, ...]
    axes: Axes
    dtype: DTypeLike | None  # None: that of the computation.
    init: Start
    stack: int = 0  # Leading dimensions, one for each loop over layers.

    def stacked(self, count: int) -> "StateSpec":
        """Returns the spec of `count` such pieces in one array."""
        return dataclasses.replace(
            self, shape=(count, *self.shape), axes=(LAYERS_AXIS, *self.axes), stack=self.stack + 1
        )

    def fits(self, value: Array) -> bool:
        """Whether an array can be such a piece of state, for whatever numbers its names of sizes stand for."""
        shape = len(value.shape) == len(self.shape)
        sizes = all(isinstance(want, str) or want == have for want, have in zip(self.shape, value.shape, strict=False))
        return shape and sizes and (self.dtype is None or value.dtype == self.dtype)

    def sized(self, path: str, sizes: Mapping[str, int], dtype: DTypeLike | None) -> "SizedState":
        """Returns the spec with numbers for all names of sizes, and a dtype."""
        missing = sorted({size for size in self.shape if isinstance(size, str) and size not in sizes})
        if missing:
            raise ValueError(f"{path} has the size {missing[0]!r}; the sizes given are {dict(sizes)}.")
        shape = tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)
        return SizedState(self, shape, jnp.dtype(self.dtype or dtype or jnp.float32))


@dataclasses.dataclass(frozen=True)
class SizedState:
    """A piece of state as it will be allocated."""

    spec: StateSpec
    shape: tuple[int, ...]
    dtype: DTypeLike

    @property
    def nbytes(self) -> int:
        """Bytes of all of it, on all devices together."""
        return math.prod(self.shape) * jnp.dtype(self.dtype).itemsize

    def dim(self, size: str) -> int | None:
        """Returns the dimension that has a size of this name, such as "batch"; None: it has none."""
        return next((i for i, each in enumerate(self.spec.shape) if each == size), None)

    def stacked(self, count: int) -> "SizedState":
        """Returns `count` such pieces in one array."""
        return dataclasses.replace(self, spec=self.spec.stacked(count), shape=(count, *self.shape))

    def resized(self, sizes: Mapping[str, int]) -> "SizedState":
        """Returns the same for other sizes."""
        return dataclasses.replace(self, shape=tuple(sizes[n] if isinstance(n, str) else n for n in self.spec.shape))

    def make(self, layout: Layout | None = None) -> Array:
        """Returns the first value, on the mesh in use if there is a layout."""
        inner, start = self.shape[self.spec.stack :], self.spec.init
        value = start(inner) if callable(start) else jnp.asarray(start)
        value = jnp.broadcast_to(value, self.shape).astype(self.dtype)
        return value if layout is None else layout.constrain(value, self.spec.axes)


StateSpecs = dict[str, SizedState]


def make_state(specs: StateSpecs, layout: Layout | None = None) -> dict[str, Array]:
    """Returns the state before the first call, as `state_specs` lists it."""
    return {path: spec.make(layout) for path, spec in specs.items()}


def run_specs(module: "Module") -> dict[str, Any]:
    """Returns the specs of all state that lives as long as the run, as a tree of dicts like that of parameters."""
    tree: dict[str, Any] = dict(module._run_state)
    for name, (child, stack) in module._children.items():
        below = map_specs(lambda spec, n=stack: spec.stacked(n) if n else spec, run_specs(child))
        if below:
            tree[name] = below
    return tree


def init_run_state(module: "Module") -> dict[str, Any]:
    """Returns the first values of all state that lives as long as the run."""
    return map_specs(lambda spec: spec.make(jax.random.key(0)), run_specs(module))


def abstract_run_state(module: "Module") -> dict[str, Any]:
    """Returns shapes and dtypes of all state that lives as long as the run, for tracing without making it."""
    return map_specs(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), run_specs(module))


def merged(params: Mapping[str, Any], run_state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parameters and state of a run as one tree, which is what `call` reads both from."""
    both = dict(params)
    for name, below in run_state.items():
        both[name] = merged(both.get(name, {}), below) if isinstance(below, Mapping) else below
    return both


def next_run_state(module: "Module", run_state: Mapping[str, Any], updates: Mapping[str, Array]) -> dict[str, Any]:
    """Returns the state of a run after a step in which modules handed in `updates`, by path."""

    def change(tree: Mapping[str, Any], below: Mapping[str, Any], path: str) -> dict[str, Any]:
        new: dict[str, Any] = {}
        for name, spec in tree.items():
            place, old = join(path, name), below[name]
            if not isinstance(spec, ParamSpec):
                new[name] = change(spec, old, place)
            else:
                new[name] = spec.changed(old, updates[place]).astype(old.dtype) if place in updates else old
        return new

    return change(run_specs(module), run_state, module.path)


def run_spec(shape: tuple[int, ...], axes: Axes, dtype: DTypeLike, init: Any, rule: Any) -> ParamSpec:
    """Returns the spec of a piece of state that lives as long as the run."""
    start: Any = init if callable(init) else constant(init)
    return ParamSpec(shape=shape, axes=axes, init=start, dtype=dtype, update_rule=rule or _replaced, cast=False)


def _replaced(old: Array, new: Array) -> Array:
    return new
