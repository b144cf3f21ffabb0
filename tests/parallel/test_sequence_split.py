# SPDX-License-Identifier: Apache-2.0
"""Parts are dealt out so that devices have equal work, and what is sent comes back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from dovetail.ops import Causal, Full, Prefix, SameSegment, SlidingWindow
from dovetail.parallel import Mesh
from dovetail.parallel._sequence_split import split_sequence


def starts(mask, length, devices, balanced=True):
    """Returns where the pieces of each device begin."""
    found = split_sequence(mask, length, "seq", devices, balanced=balanced, where="here")
    return [part.starts for part in found.parts]


def test_a_causal_mask_gives_each_device_an_early_and_a_late_piece():
    assert starts(Causal(), 24, 3) == [(0, 20), (4, 16), (8, 12)]
    assert starts(Causal() & SameSegment(), 8, 2) == [(0, 6), (2, 4)]


@pytest.mark.parametrize("mask", [Full(), Causal() | Prefix(), Causal() & SlidingWindow(3)], ids=str)
def test_where_all_see_as_much_the_order_stays(mask):
    assert starts(mask, 24, 4) == starts(mask, 24, 4, balanced=False) == [(0,), (6,), (12,), (18,)]
    assert starts(mask, 20, 4) == [(0,), (5,), (10,), (15,)], "so an odd length is none"


def test_a_length_that_cannot_be_cut_twice_for_each_device_stays_in_order():
    assert starts(Causal(), 20, 4) == [(0,), (5,), (10,), (15,)]


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_what_is_sent_arrives_where_its_part_says_and_comes_back(devices):
    length = 4 * devices
    found = split_sequence(Causal(), length, "seq", devices, balanced=True, where="here")
    mesh, spec = Mesh(seq=devices).on(), PartitionSpec(None, "seq")
    with jax.set_mesh(mesh):
        run = functools.partial(jax.shard_map, in_specs=spec, out_specs=spec)
        x = jnp.arange(length)[None]
        sent = jax.jit(run(found.send))(x)
        back = jax.jit(run(found.bring_back))(sent)
    expected = [at for part in found.parts for start in part.starts for at in range(start, start + part.size)]
    np.testing.assert_array_equal(sent[0], expected)
    np.testing.assert_array_equal(back, x)
