# SPDX-License-Identifier: Apache-2.0
"""Causal convolution sees a few positions of its own document, and goes on from its tail."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.ops import causal_convolution, convolution_tail
from support.compare import assert_same
from support.numeric import BFLOAT16, FLOAT32, cast, check, normal

DOCUMENT = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 2, 3]])


def definition(x, weight, tail, document=DOCUMENT):
    width, known, out = len(weight), np.concatenate([tail, x], axis=1), np.zeros(x.shape)
    owner = np.concatenate([np.zeros((2, width - 1), int), document], axis=1)
    for b, t in np.ndindex(*x.shape[:2]):
        now = t + width - 1
        for back in range(width):
            if owner[b, now - back] == document[b, t]:
                out[b, t] += weight[width - 1 - back] * known[b, now - back]
    return out


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 3 * BFLOAT16)])
def test_it_is_its_definition(dtype, tolerance):
    args = cast((normal(0, (2, 5, 2, 3)), normal(1, (3, 2, 3)), normal(2, (2, 2, 2, 3))), dtype)
    run = functools.partial(causal_convolution, document=jnp.asarray(DOCUMENT))
    assert check(run, definition, *args, tolerance=tolerance).dtype == dtype


def test_the_tail_is_what_the_next_call_needs_however_many_tokens_each_row_has():
    x, weight, tail = normal(0, (3, 5, 3)), normal(1, (4, 3)), normal(2, (3, 3, 3))
    document, count = jnp.array([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]), jnp.array([4, 1, 0])
    new = convolution_tail(x, tail, document=document, count=count)
    zero = np.zeros(3)
    want = [[zero, x[0, 2], x[0, 3]], [tail[1, 1], tail[1, 2], x[1, 0]], tail[2]]
    np.testing.assert_array_equal(new, np.asarray(want))
    after = causal_convolution(x[:, 4:], weight, new, document=jnp.zeros((1, 1), int))
    assert_same(after[0, 0], weight[3] * x[0, 4] + weight[2] * x[0, 3] + weight[1] * x[0, 2])
