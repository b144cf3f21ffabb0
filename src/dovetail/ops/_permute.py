# SPDX-License-Identifier: Apache-2.0
"""Moves rows from one order to another, with a gradient that moves them back."""

import jax
from jax import Array


@jax.custom_vjp
def permute_rows(x: Array, source: Array, target: Array) -> Array:
    """Returns the rows `x[source]`, zeros where `source` is no row of `x`.

    `target` says the same the other way round: row i of `x` is row `target[i]` of the result, or no row of it. The
    gradient is then a `permute_rows` as well, where that of an indexed array would be a sum over scattered rows.
    """
    return x.at[source].get(mode="fill", fill_value=0)


def _forward(x: Array, source: Array, target: Array) -> tuple[Array, tuple[Array, Array]]:
    return permute_rows(x, source, target), (source, target)


def _backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, None, None]:
    source, target = saved
    return permute_rows(gradient, target, source), None, None


permute_rows.defvjp(_forward, _backward)
