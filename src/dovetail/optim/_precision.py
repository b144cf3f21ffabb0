# SPDX-License-Identifier: Apache-2.0
"""Precision of the optimizer: it computes in float32 at least, and keeps its state in the dtypes asked for."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.tree_util import GetAttrKey
from jax.typing import DTypeLike

from dovetail.config import Component, ConfigError

from ._checks import expect, where


def widen(tree: Any) -> Any:
    """Returns the tree with floating-point arrays in float32, or float64 where they are that already."""

    return jax.tree.map(lambda x: as_wide(x) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def as_wide(x: Array) -> Array:
    """Returns `x` in float32, or in float64 if it is that already."""
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def kept_as(make: optax.GradientTransformation, **dtypes: DTypeLike) -> optax.GradientTransformation:
    """Returns the transformation, computing on widened arrays and keeping named fields of its state in these dtypes.

    `kept_as(optax.scale_by_adam(), mu=jnp.bfloat16)` keeps `ScaleByAdamState.mu` in bfloat16. The rest of the state
    stays as wide as it is computed.
    """

    def init(params: Any) -> Any:
        return _stored(make.init(widen(params)), dtypes)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"):  # optax relies on it, as in b1**count.
            updates, new = make.update(widen(updates), widen(state), widen(params))
        return updates, _stored(new, dtypes)

    return optax.GradientTransformation(init, update)


def _stored(state: Any, dtypes: Mapping[str, DTypeLike]) -> Any:
    def one(path: Any, x: Any) -> Any:
        named = [dtypes[key.name] for key in path if isinstance(key, GetAttrKey) and key.name in dtypes]
        return x.astype(named[0]) if named else x

    return jax.tree_util.tree_map_with_path(one, state)


def expect_dtype(component: Component, field: str) -> None:
    """Raises if a field does not hold a floating-point dtype."""
    value: Any = getattr(component.cfg, field)
    try:
        ok = jnp.issubdtype(jnp.dtype(value), jnp.floating)
    except TypeError:
        ok = False
    expect(component, field, ok, "a floating-point dtype such as jax.numpy.bfloat16")


def expect_decay(component: Component, field: str, kept_in: str) -> None:
    """Raises if a decay rate is out of range, or so near to 1 that the dtype of what decays cannot follow.

    Rounded to nearest, `decay * x` is `x` again where `1 - decay` is less than half the spacing of numbers around x.
    """
    decay: float = getattr(component.cfg, field)
    expect(component, field, 0 <= decay < 1, "at least 0 and less than 1")
    expect_dtype(component, kept_in)
    dtype = jnp.dtype(getattr(component.cfg, kept_in))
    least = float(jnp.finfo(dtype).eps) / 2
    if 1 - decay < least:
        raise ConfigError(
            f"{where(component)}: {field} is {decay}, too near to 1 for a mean kept in {dtype}: it would not decay.\n"
            f"  Use {field} <= {1 - least:.8g}, or {kept_in}=jax.numpy.float32."
        )
