# SPDX-License-Identifier: Apache-2.0
"""Parameter specs: everything the system knows about a parameter before it exists, and how it is filled."""
# pyright: reportUnknownMemberType=false
# JAX's own annotations are incomplete.

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

LAYERS_AXIS = "layers"


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """Shape, logical axes, initial value and fans of one parameter.

    `in_dims` and `out_dims` are negative dimension numbers, so that they stay right when `Repeat` stacks the
    parameter of many layers along new leading dimensions, `stack` of them.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: "Init"
    dtype: DTypeLike = jnp.float32
    in_dims: tuple[int, ...] = ()
    out_dims: tuple[int, ...] = ()
    stack: int = 0
    update_rule: "UpdateRule | None" = None  # Of state of a run: how a step changes it.
    cast: bool = True  # To the compute dtype, when it is read.
    frozen: bool = False  # Never trained: no gradient reaches it.

    @property
    def size(self) -> int:
        """Number of elements, all layers included."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole parameter, on all devices together."""
        return self.size * jnp.dtype(self.dtype).itemsize

    @property
    def fan_in(self) -> int:
        """Number of inputs that one output sums over."""
        return math.prod(self.shape[dim] for dim in self.in_dims)

    @property
    def fan_out(self) -> int:
        """Number of outputs that one input goes to."""
        return math.prod(self.shape[dim] for dim in self.out_dims)

    def stacked(self, count: int) -> "ParamSpec":
        """Returns the spec of `count` such parameters in one array."""
        return dataclasses.replace(
            self, shape=(count, *self.shape), axes=(LAYERS_AXIS, *self.axes), stack=self.stack + 1
        )

    def make(self, key: Array) -> Array:
        """Returns the initial value; each layer of a stack has its own key and is filled on its own."""
        if not self.stack:
            return self.init(key, self)
        one = dataclasses.replace(self, shape=self.shape[1:], axes=self.axes[1:], stack=self.stack - 1)
        keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(self.shape[0]))
        return jax.vmap(one.make)(keys)

    def as_read(self, value: Array, dtype: DTypeLike | None) -> Array:
        """Returns a value in the dtype to compute with, where there is one."""
        if dtype is None or not self.cast or not jnp.issubdtype(value.dtype, jnp.floating):
            return value
        return value.astype(dtype)

    def changed(self, value: Array, update: Array) -> Array:
        """Returns what its rule makes of a value and what was handed in; each layer of a stack on its own."""
        rule = self.update_rule
        assert rule is not None, "only the optimizer changes a parameter"
        for _ in range(self.stack):
            rule = jax.vmap(rule)
        return rule(value, update)


Init = Callable[[Array, ParamSpec], Array]
UpdateRule = Callable[[Array, Array], Array]  # From the value, and the mean of what was handed in, to the next value.


def fold_path(key: Array, path: str) -> Array:
    """Returns a key that depends on `path` alone, so that adding a layer does not reshuffle the others."""
    return fold_paths(key, [path])[0]


def fold_paths(key: Array, paths: Sequence[str]) -> Array:
    """Returns a key for each path. All together they are as much to compile as one."""
    digests = [hashlib.blake2b(path.encode(), digest_size=8).digest() for path in paths]
    words = np.frombuffer(b"".join(digests), "<u4").reshape(-1, 2).astype(np.uint32)

    def fold(first: ArrayLike, second: ArrayLike) -> Array:
        return jax.random.fold_in(jax.random.fold_in(key, first), second)

    return jax.vmap(fold)(*words.T)


def constant(value: float) -> Init:
    """Fills a parameter with one value."""
    return _Constant(value)


def normal(stddev: float) -> Init:
    """Fills a parameter from a normal distribution around zero."""
    return _Normal(stddev)


def variance_scaling(
    scale: float = 1.0,
    mode: Literal["fan_in", "fan_out", "fan_avg"] = "fan_in",
    distribution: Literal["normal", "truncated_normal", "uniform"] = "truncated_normal",
) -> Init:
    """Fills a parameter with variance `scale / fan`, the fans being those of its spec."""
    return _VarianceScaling(scale, mode, distribution)


# Classes rather than closures: those with the same numbers are equal, so that parameters can be seen to be alike.
@dataclasses.dataclass(frozen=True)
class _Constant:
    value: float

    def __call__(self, key: Array, spec: ParamSpec) -> Array:
        return jnp.full(spec.shape, self.value, spec.dtype)


@dataclasses.dataclass(frozen=True)
class _Normal:
    stddev: float

    def __call__(self, key: Array, spec: ParamSpec) -> Array:
        return jax.nn.initializers.normal(self.stddev)(key, spec.shape, spec.dtype)


@dataclasses.dataclass(frozen=True)
class _VarianceScaling:
    scale: float
    mode: Literal["fan_in", "fan_out", "fan_avg"]
    distribution: Literal["normal", "truncated_normal", "uniform"]

    def __call__(self, key: Array, spec: ParamSpec) -> Array:
        rest = set(range(-len(spec.shape), 0)) - {*spec.in_dims, *spec.out_dims}
        axes = {"in_axis": spec.in_dims, "out_axis": spec.out_dims, "batch_axis": tuple(sorted(rest))}
        make: Any = jax.nn.initializers.variance_scaling(self.scale, self.mode, self.distribution, **axes)
        return make(key, spec.shape, spec.dtype)
