# SPDX-License-Identifier: Apache-2.0
"""The chunked gated delta rule is the rule, one position after the other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.ops import gated_delta_rule
from support.compare import assert_same
from support.numeric import check, normal
from support.programs import temporary_bytes

B, T, H, K, V = 2, 7, 2, 3, 2
DOCUMENT = np.array([[0, 0, 0, 0, 1, 1, 2], [1, 1, 1, 2, 2, 2, 2]])  # The second row leaves the first state behind.


def inputs(length=T):
    query, key, value = (normal(i, (B, length, H, dim), size=0.6) for i, dim in enumerate([K, K, V]))
    log_decay = -jnp.abs(normal(3, (B, length, H), size=0.3))
    strength = jax.nn.sigmoid(normal(4, (B, length, H)))
    return query, key, value, log_decay, strength, normal(5, (B, H, K, V))


def one_at_a_time(query, key, value, log_decay, strength, state, document=DOCUMENT):
    out, last = np.zeros(value.shape), np.array(state)
    for b in range(value.shape[0]):
        before = 0
        for t in range(value.shape[1]):
            for h in range(H):
                s = last[b, h] if document[b, t] == before else np.zeros((K, V))
                s = np.exp(log_decay[b, t, h]) * s
                k = key[b, t, h]
                s = s + strength[b, t, h] * np.outer(k, value[b, t, h] - k @ s)
                last[b, h], out[b, t, h] = s, query[b, t, h] @ s
            before = document[b, t]
    return out, last


def run(query, key, value, log_decay, strength, state, *, chunk=3, document=DOCUMENT):
    where = {"document": jnp.asarray(document), "state": state, "chunk": chunk}
    return gated_delta_rule(query, key, value, log_decay, strength, **where)


@pytest.mark.parametrize("chunk", [3, 16])  # With a chunk that is not full, and with a single one.
def test_chunks_are_the_rule_with_its_gradient(chunk):
    check(functools.partial(run, chunk=chunk), one_at_a_time, *inputs())


def test_the_state_goes_on_from_call_to_call_and_a_call_may_be_of_one_position():
    compiled, document = jax.jit(run), np.zeros((B, T), int)
    query, key, value, log_decay, strength, state = inputs()
    want = compiled(*inputs(), document=document)
    parts = []
    for i, j in ((0, 4), (4, 5), (5, 7)):
        q, k, v, g, s = (x[:, i:j] for x in (query, key, value, log_decay, strength))
        out, state = compiled(q, k, v, g, s, state, document=document[:, i:j])
        parts.append(out)
    assert_same((jnp.concatenate(parts, axis=1), state), want)


def test_what_is_written_at_full_strength_is_read_back_whatever_was_there():
    key = jnp.eye(K)[None, [0, 1, 0], None]  # Twice at the first key.
    value = normal(0, (1, 3, 1, V))
    ones, state = jnp.ones((1, 3, 1)), normal(1, (1, 1, K, V))
    out, last = jax.jit(run)(key, key, value, 0 * ones, ones, state, document=np.zeros((1, 3), int))
    assert_same(out, value)
    assert_same(last[0, 0], jnp.stack([value[0, 2, 0], value[0, 1, 0], state[0, 0, 2]]))


def test_memory_grows_with_the_length_and_not_with_its_square():
    def temporary(length):
        def loss(*args):
            return jnp.sum(jnp.sin(run(*args, chunk=16, document=np.zeros((B, length), int))[0]))

        return temporary_bytes(jax.grad(loss, tuple(range(6))), *inputs(length))

    assert temporary(512) < 4 * temporary(128)  # All scores at once would take sixteen times as much.
