# SPDX-License-Identifier: Apache-2.0
"""Operations of a program, against counts by hand."""

import jax
import jax.numpy as jnp

from dovetail.aot import count_flops, operations


def test_products_and_kernels_have_the_operations_of_the_program():
    def function(params, x):
        def body(x, w):
            return jnp.tanh(x @ w), jnp.einsum("btd,bsd->bts", x, x).sum()

        x, _ = jax.lax.scan(body, x, params)
        return x

    params, x = jnp.ones((3, 8, 8)), jnp.ones((2, 4, 8))
    found = operations(function, params, x)
    assert sum(each.flops for each in found.products) == count_flops(function, params, x)
    assert {each.times for each in found.products} == {3}
    assert [each.matrices for each in found.products] == [1, 2]


def test_a_chain_of_elementwise_operations_is_one_pass_over_memory():
    x, w = jnp.ones((16, 4)), jnp.ones((4, 4))
    short = operations(lambda w, x: jnp.tanh(x @ w) @ w, w, x)
    long = operations(lambda w, x: jnp.tanh(jnp.sin(jnp.exp(x @ w) * 2) + 1) @ w, w, x)
    assert sum(short.traffic.values()) == sum(long.traffic.values()) == 2 * x.nbytes


def test_parameters_are_no_traffic_and_a_value_is_stored_once():
    x, w = jnp.ones((16, 4)), jnp.ones((4, 4))
    found = operations(lambda w, x: (y := jnp.tanh(x)) @ jnp.tanh(w) + y @ w, w, x)
    assert sum(found.traffic.values()) == 2 * x.nbytes


def test_looked_up_rows_are_read_and_written():
    table, ids = jnp.ones((10, 4)), jnp.zeros(3, jnp.int32)
    found = operations(lambda table, ids: table[ids], table, ids)
    assert sum(found.moved.values()) == 2 * 3 * 4 * 4
