# SPDX-License-Identifier: Apache-2.0
"""A cache gives back every token that was put in, at its place, and says when one was lost."""

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.module import ModuleError, call
from dovetail.nn import DenseCache
from dovetail.ops import EMPTY, Tokens
from support.numeric import normal

CACHE = DenseCache.Config().build(path="cache")
X = normal(0, (2, 5, 3))


def put(values, tokens, state, capacity=6):
    kept, collected = call(CACHE, {}, values, tokens, state=state, capacity=capacity)
    return kept, collected.state


def test_tokens_of_several_calls_are_at_their_places():
    index = jnp.array([[0, 1, 2, 3, 4], [0, 1, EMPTY, 2, EMPTY]])
    segment = jnp.array([[1, 1, 2, 2, 2], [1, 1, 0, 1, 0]])
    tokens = Tokens(index, segment)
    _, state = put({"x": X[:, :3], "y": X[:, :3, 0]}, tokens.slice(0, 3), {})
    kept, _ = put({"x": X[:, 3:], "y": X[:, 3:, 0]}, tokens.slice(3, 5), state)
    np.testing.assert_array_equal(kept.values["x"][0, :5], X[0])
    np.testing.assert_array_equal(kept.values["x"][1, :3], X[1, jnp.array([0, 1, 3])])
    np.testing.assert_array_equal(kept.values["y"], kept.values["x"][..., 0])
    np.testing.assert_array_equal(kept.tokens.index, [[0, 1, 2, 3, 4, EMPTY], [0, 1, 2, EMPTY, EMPTY, EMPTY]])
    np.testing.assert_array_equal(kept.tokens.segment, [[1, 1, 2, 2, 2, 0], [1, 1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(kept.lost, False)


def test_a_row_without_room_is_marked_and_padding_needs_none():
    tokens = Tokens(jnp.array([[0, 1, 2, 3, EMPTY], [0, 1, 2, 3, 4]]))
    kept, state = put({"x": X[:, :4]}, tokens.slice(0, 4), {}, capacity=4)
    np.testing.assert_array_equal(kept.lost, False)
    kept, _ = put({"x": X[:, 4:]}, tokens.slice(4, 5), state)
    np.testing.assert_array_equal(kept.lost, [False, True])
    np.testing.assert_array_equal(np.isnan(kept.mark(X)).any(axis=(1, 2)), [False, True])
    assert kept.mark(X.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_too_many_tokens_at_once_are_refused():
    with pytest.raises(ModuleError) as e:
        put({"x": X}, Tokens(jnp.arange(5)[None]), {}, capacity=4)
    assert str(e.value) == "cache (DenseCache): 5 tokens do not fit into a capacity of 4."
