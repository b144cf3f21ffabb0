# SPDX-License-Identifier: Apache-2.0
"""The rule by which training is counted, on programs small enough to count by hand."""

import jax
import jax.numpy as jnp
import pytest

from dovetail.aot import count_training_flops, training_flops_by_scope

X, W = jnp.ones((4, 8)), jnp.ones((8, 8))
ONE = 2 * 4 * 8 * 8  # A product of the two.


def loop(w, x):
    return jnp.sum(jax.lax.scan(lambda carry, _: (carry @ w, None), x, None, length=5)[0])


def repeated(w, x):
    return jnp.sum(jax.lax.while_loop(lambda carry: jnp.sum(carry) < 1, lambda carry: carry @ w, x))


CASES = {
    "the inputs need no gradient": (lambda w, x: jnp.sum(x @ w), 2),
    "a product of what depends on parameters counts three times": (lambda w, x: jnp.sum((x @ w) @ w), 2 + 3),
    "a loop carries the need from one run to the next": (loop, 5 * 3),
    "a loop of unknown length counts once": (repeated, 3),
    "remat computes again for nothing": (lambda w, x: jnp.sum(jax.checkpoint(lambda x: jnp.sin(x @ w))(x)), 2),
    "what gets no gradient passes none on": (lambda w, x: jnp.sum(jax.lax.stop_gradient(x @ w) @ w), 2 + 2),
    "of two branches the larger counts": (
        lambda w, x: jnp.sum(jax.lax.cond(x[0, 0] > 0, lambda x: x @ w, lambda x: x @ w @ w, x)),
        2 + 3,
    ),
    "a nested jit is seen through": (lambda w, x: jnp.sum(jax.jit(jnp.dot)(x, w)), 2),
    "each of a vmap counts": (lambda w, x: jnp.sum(jax.vmap(lambda row: row @ w)(x)), 2),
    "an index is no way for a gradient": (lambda w, x: jnp.sum(W[jnp.argmax(w, axis=0)] @ W) + 0 * jnp.sum(x), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_products_count_once_forward_and_once_for_each_side_that_needs_a_gradient(name):
    function, times = CASES[name]
    assert count_training_flops(function, W, True, X).flops == times * ONE


def test_without_anything_to_train_the_forward_pass_is_left():
    assert count_training_flops(loop, W, False, X).flops == 5 * ONE


def test_work_has_the_scopes_that_it_is_in_through_loops_and_calls():
    def step(carry, _):
        with jax.named_scope("layer"):
            return jax.jit(lambda x: jax.named_scope("up")(jnp.dot)(x, W))(carry), None

    def scoped(w, x):
        with jax.named_scope("model"):
            x = x @ w
            with jax.named_scope("stack"):
                return jnp.sum(jax.lax.scan(step, x, None, length=5)[0])

    found = training_flops_by_scope(scoped, W, True, X)
    assert {scope: work.flops for scope, work in found.items()} == {
        "model": 2 * ONE,
        "model/stack/layer/up": 5 * 2 * ONE,
    }
    assert sum(work.flops for work in found.values()) == count_training_flops(scoped, W, True, X).flops
