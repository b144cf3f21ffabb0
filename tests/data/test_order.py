# SPDX-License-Identifier: Apache-2.0
"""The order of documents: a permutation in each epoch, the same in every process and version."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import _order as module
from dovetail.data._order import Order, derive_seed, permuted

sizes = st.lists(st.integers(1, 20), min_size=1, max_size=8)


def epoch_of(order: Order, epoch: int, count: int) -> list[int]:
    return [order(epoch, at) for at in range(count)]


@given(sizes, st.integers(0, 2**63), st.integers(0, 5), st.booleans())
def test_each_epoch_has_each_document_once(blocks, seed, epoch, in_blocks):
    count = sum(blocks)
    order = Order(count, blocks=np.array(blocks) if in_blocks else None, shuffle=True, seed=seed)
    assert sorted(epoch_of(order, epoch, count)) == list(range(count))


@given(sizes, st.integers(0, 2**63))
def test_documents_of_a_block_stay_together(blocks, seed):
    ends = np.cumsum(blocks)
    order = Order(sum(blocks), blocks=np.array(blocks), shuffle=True, seed=seed)
    visited = [int(np.searchsorted(ends, i, side="right")) for i in epoch_of(order, 1, sum(blocks))]
    changes = 1 + sum(a != b for a, b in pairwise(visited))
    assert changes == len(blocks)


def test_without_shuffle_the_order_is_that_of_the_source():
    order = Order(10, blocks=np.array([3, 7]), shuffle=False, seed=1)
    assert epoch_of(order, 0, 10) == epoch_of(order, 5, 10) == list(range(10))


def test_epochs_and_seeds_have_unrelated_orders():
    orders = [tuple(epoch_of(Order(50, shuffle=True, seed=s), epoch, 50)) for s in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9  # In particular, epoch 1 of seed 0 is not epoch 0 of seed 1.


def test_blocks_come_in_another_order_in_each_epoch():
    order = Order(40, blocks=np.full(20, 2), shuffle=True, seed=0)
    assert len({tuple(i // 2 for i in epoch_of(order, epoch, 40)) for epoch in range(5)}) == 5


def test_any_position_can_be_asked_for_at_any_time():
    expected = {epoch: epoch_of(Order(30, shuffle=True, seed=3), epoch, 30) for epoch in range(4)}
    order = Order(30, blocks=None, shuffle=True, seed=3)
    for epoch, at in [(3, 7), (0, 29), (2, 0), (3, 8), (1, 1), (0, 0)]:
        assert order(epoch, at) == expected[epoch][at]


def test_order_never_changes_from_version_to_version():
    """These values are part of every checkpoint: if they change, runs resume with other data."""
    assert derive_seed(1, "web") == 7811064300646977344
    assert epoch_of(Order(10, shuffle=True, seed=0), 0, 10) == [9, 8, 2, 0, 4, 1, 7, 6, 3, 5]
    assert epoch_of(Order(10, blocks=np.array([4, 6]), shuffle=True, seed=0), 1, 10) == [5, 8, 9, 6, 7, 4, 2, 3, 0, 1]
    assert permuted(12345, 2**20 + 1, seed=7) == 159098


def test_permutations_are_equally_likely():
    counts = Counter(tuple(permuted(i, 4, derive_seed(seed)) for i in range(4)) for seed in range(2400))
    assert len(counts) == 24
    assert all(60 < count < 145 for count in counts.values())  # 100 each, within 4.5 standard deviations.


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_both_ways_to_permute_give_permutations(monkeypatch, limit):
    monkeypatch.setattr(module, "_SORTED_UP_TO", limit)
    assert sorted(permuted(i, 100, seed=2**40 + 1) for i in range(100)) == list(range(100))
