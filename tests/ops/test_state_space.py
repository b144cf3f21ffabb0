# SPDX-License-Identifier: Apache-2.0
"""The chunked state-space recurrence is the recurrence, one position after the other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.ops import state_space
from support.compare import assert_same
from support.numeric import BFLOAT16, assert_close, cast, check, float64, normal
from support.programs import temporary_bytes

B, T, H, P, G, N = 2, 7, 4, 2, 2, 3
DOCUMENT = np.array([[0, 0, 0, 0, 1, 1, 2], [1, 1, 1, 2, 2, 2, 2]])  # The second row leaves the first state behind.


def inputs(length=T):
    value, key, query = (normal(i, (B, length, *shape)) for i, shape in enumerate([(H, P), (G, N), (G, N)]))
    step = jnp.abs(normal(3, (B, length, H), size=0.5)) + 0.1
    return value, step, -jnp.abs(normal(4, (H,))) - 0.1, key, query, normal(5, (B, H, P, N))


def one_at_a_time(value, step, rate, key, query, state, document=DOCUMENT):
    out, last = np.zeros(value.shape), np.array(state)
    for b in range(value.shape[0]):
        before = 0
        for t in range(value.shape[1]):
            for h in range(H):
                old = last[b, h] if document[b, t] == before else np.zeros((P, N))
                g = h // (H // G)
                last[b, h] = np.exp(step[b, t, h] * rate[h]) * old
                last[b, h] += step[b, t, h] * np.outer(value[b, t, h], key[b, t, g])
                out[b, t, h] = last[b, h] @ query[b, t, g]
            before = document[b, t]
    return out, last


def run(value, step, rate, key, query, state, *, chunk=3, document=DOCUMENT):
    return state_space(value, step, rate, key, query, document=jnp.asarray(document), state=state, chunk=chunk)


@pytest.mark.parametrize("chunk", [3, 16])  # With a chunk that is not full, and with a single one.
def test_chunks_are_the_recurrence_with_its_gradient(chunk):
    check(functools.partial(run, chunk=chunk), one_at_a_time, *inputs())


def test_the_state_goes_on_from_call_to_call_and_a_call_may_be_of_one_position():
    compiled, document = jax.jit(run), np.zeros((B, T), int)
    value, step, rate, key, query, state = inputs()
    want = compiled(*inputs(), document=document)
    parts = []
    for i, j in ((0, 4), (4, 5), (5, 7)):
        v, s, k, q = (x[:, i:j] for x in (value, step, key, query))
        out, state = compiled(v, s, rate, k, q, state, document=document[:, i:j])
        parts.append(out)
    assert_same((jnp.concatenate(parts, axis=1), state), want)


def test_in_bfloat16_products_are_rounded_but_the_state_is_not():
    value, step, rate, key, query, state = inputs()
    value, key, query = cast((value, key, query), jnp.bfloat16)
    out, last = jax.jit(run)(value, step, rate, key, query, state)
    assert (out.dtype, last.dtype) == (jnp.float32, jnp.float32)
    want = one_at_a_time(*float64((value, step, rate, key, query, state)))
    assert_close((out, last), want, 4 * BFLOAT16)  # Scores, values and the state are each rounded once.


def test_far_steps_forget_and_do_not_overflow():
    value, _, rate, key, query, state = inputs()
    step = jnp.full((B, T, H), 1e4)
    got = jax.jit(jax.grad(lambda step: jnp.sum(run(value, step, rate, key, query, state)[0])))(step)
    assert np.isfinite(got).all()


def test_memory_grows_with_the_length_and_not_with_its_square():
    def temporary(length):
        def loss(*args):
            return jnp.sum(jnp.sin(run(*args, chunk=16, document=np.zeros((B, length), int))[0]))

        return temporary_bytes(jax.grad(loss, tuple(range(6))), *inputs(length))

    assert temporary(512) < 4 * temporary(128)  # All scores at once would take sixteen times as much.
