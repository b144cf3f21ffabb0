# SPDX-License-Identifier: Apache-2.0
"""Parts of a sequence know where they are, and no pair of blocks that the mask allows is left out."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.ops import (
    BlockwiseAttention,
    Causal,
    Full,
    Part,
    Parts,
    Prefix,
    QueryBlockAttention,
    ReferenceAttention,
    SlidingWindow,
    Tokens,
    bounds_of,
)
from support.numeric import FLOAT32, assert_close, normal

LENGTH = 24
LATE_FIRST, IN_ORDER = Part((18, 6), 6), Part((6, 12), 6)
MASKS = [Full(), Causal(), Causal() & SlidingWindow(5), Causal() | Prefix()]


def places(part):
    """Returns the place in the sequence of each token of a part."""
    return np.concatenate([np.arange(start, start + part.size) for start in part.starts])


def test_spans_and_places_are_there_and_back():
    found = places(LATE_FIRST)
    for start, stop in itertools.combinations(range(13), 2):
        spans = list(LATE_FIRST.spans(start, stop))
        assert [at for span in spans for at in range(*span)] == found[start:stop].tolist()
    for start, stop in itertools.combinations(range(LENGTH + 1), 2):
        inside = [at for span in LATE_FIRST.places(start, stop) for at in range(*span)]
        assert inside == [i for i, at in enumerate(found) if start <= at < stop]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 2), (4, 5)])
def test_bounds_hold_all_that_a_mask_allows_and_no_more_blocks_than_that_takes(mask, rows, columns):
    for q, k in itertools.product([LATE_FIRST, IN_ORDER], repeat=2):
        found = bounds_of(mask, q, k, LENGTH, rows, columns)
        seen = [{at for low, high in [mask.keys_for(i, i + 1, LENGTH)] for at in range(low, high)} for i in places(q)]
        for row, (start, stop) in enumerate(found):
            blocks = {
                i // columns
                for i, at in enumerate(places(k))
                if any(at in each for each in seen[row * rows : (row + 1) * rows])
            }
            assert (start, stop) == ((min(blocks), max(blocks) + 1) if blocks else (0, 0))


@pytest.mark.parametrize("kernel", [BlockwiseAttention, QueryBlockAttention])
def test_queries_may_be_one_of_several_parts(kernel):
    """As on a mesh, where the program is the same on all devices and the part is not."""
    k, v = normal(1, (2, LENGTH, 2, 4)), normal(2, (2, LENGTH, 2, 3))
    tokens = Tokens(jnp.arange(LENGTH)[None])

    def gradients(cfg):
        def loss(q, k, v, choice, places):
            aligned = False if choice is None else Parts((LATE_FIRST, IN_ORDER), choice)
            common = {"mask": Causal(), "q_tokens": Tokens(places[None]), "k_tokens": tokens, "scale": 0.5}
            return jnp.sum(jnp.sin(cfg.build()(q, k, v, **common, aligned=aligned)))

        return jax.jit(jax.grad(loss, (0, 1, 2)))

    got, want = gradients(kernel.Config(block=4)), gradients(ReferenceAttention.Config())
    for choice, part in enumerate([LATE_FIRST, IN_ORDER]):
        q, where = normal(3 + choice, (2, 12, 4, 4)), jnp.asarray(places(part))
        assert_close(got(q, k, v, jnp.int32(choice), where), want(q, k, v, None, where), FLOAT32)
