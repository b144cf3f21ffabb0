# SPDX-License-Identifier: Apache-2.0
"""Goodput: the formula against a simulation, and its limits."""

import math

import numpy as np
import pytest

from dovetail.plan._goodput import FAILURES, goodput


def simulated(chips, rate, checkpoint, recovery, every, rng, hours=4000.0):
    """Steps, checkpoints and stops in time, one after the other: shares no formula with what it tests."""
    clock = kept = 0.0
    stop = rng.exponential(3600 / (rate * chips))
    while clock < hours * 3600:
        end = clock + every + checkpoint
        if stop < end:
            clock = stop + recovery
            stop = clock + rng.exponential(3600 / (rate * chips))
        else:
            clock, kept = end, kept + every
    return kept / clock


@pytest.mark.parametrize(
    "chips, checkpoint, recovery", [(16_384, 5.0, 300.0), (1024, 60.0, 600.0), (100_000, 1.0, 60.0)]
)
def test_the_share_is_what_a_simulation_keeps(chips, checkpoint, recovery):
    found = goodput(chips, FAILURES, checkpoint, recovery)
    kept = simulated(chips, FAILURES, checkpoint, recovery, found.checkpoint_every, np.random.default_rng(0))
    assert abs(found.share - kept) < 0.02  # The formula is of first order.


def test_no_other_interval_between_checkpoints_is_better():
    rate = FAILURES * 4096 / 3600
    found = goodput(4096, FAILURES, 5.0, 300.0)

    def share(every):
        return 1 - 5.0 / every - rate * (every / 2 + 300.0)

    assert math.isclose(found.share, share(found.checkpoint_every))
    assert all(found.share >= share(found.checkpoint_every * factor) for factor in (0.5, 0.9, 1.1, 2.0))


def test_published_stops_of_a_large_run_are_three_hours_apart():
    assert 3.0 < 1 / (FAILURES * 16_384) < 3.2


def test_without_stops_all_of_the_time_counts_and_with_too_many_none():
    assert goodput(8, 0.0, 5.0, 300.0) == (1.0, math.inf)
    assert goodput(100_000, 1e-2, 5.0, 300.0).share == 0.0
