# SPDX-License-Identifier: Apache-2.0
"""Moved rows are indexed rows, and so are their gradients."""

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.ops import permute_rows
from support.numeric import check, normal
from support.programs import equations

# Rows 0, 2, 3 go to 3, 0, 1 of the result; row 1 goes nowhere, and row 2 of the result is empty.
SOURCE, TARGET = np.array([2, 3, 4, 0]), np.array([3, 4, 0, 1])


def definition(x):
    y = np.zeros_like(x)
    y[[3, 0, 1]] = x[[0, 2, 3]]
    return y


def test_moved_rows_are_indexed_rows_and_their_gradient_is_moved_back():
    check(lambda x: permute_rows(x, jnp.array(SOURCE), jnp.array(TARGET)), definition, normal(0, (4, 3)))


def test_the_gradient_scatters_nothing():
    def loss(x):
        return jnp.sum(jnp.square(permute_rows(x, jnp.array(SOURCE), jnp.array(TARGET))))

    names = {eqn.primitive.name for eqn, _ in equations(jax.make_jaxpr(jax.grad(loss))(normal(0, (4, 3))).jaxpr)}
    assert "gather" in names
    assert not any("scatter" in name for name in names)
