# SPDX-License-Identifier: Apache-2.0
"""Statements of what operations take, in place of the operations."""

import jax
import jax.numpy as jnp

from dovetail.ops import Work, by_definition, is_counted, stated


def statement(x):
    return stated(Work(3, 5), {"y": jax.ShapeDtypeStruct((2,), "bfloat16")}, x) if is_counted() else {"y": x}


def test_a_function_that_jit_has_traced_is_traced_again_to_be_counted():
    function = jax.jit(statement)
    x = jnp.ones((7,))
    assert jax.eval_shape(function, x)["y"].shape == (7,)
    with by_definition():
        found = jax.eval_shape(function, x)["y"]
    assert (found.shape, found.dtype) == ((2,), jnp.bfloat16)
    assert jax.eval_shape(function, x)["y"].shape == (7,)


def test_a_vmap_states_the_work_of_all():
    with by_definition():
        text = str(jax.make_jaxpr(jax.vmap(statement))(jnp.ones((4, 7))))
        assert jax.eval_shape(jax.vmap(statement), jnp.ones((4, 7)))["y"].shape == (4, 2)
    assert "Work(flops=12, full=20)" in text


def test_a_model_that_takes_gradients_itself_can_be_counted():
    with by_definition():
        slope = jax.eval_shape(jax.grad(lambda x: jnp.sum(statement(x)["y"])), jnp.ones((7,)))
    assert slope.shape == (7,)
