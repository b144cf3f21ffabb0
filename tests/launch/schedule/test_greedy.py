# SPDX-License-Identifier: Apache-2.0
"""Placing one job after the other."""

import numpy as np

from dovetail.launch.schedule import Cluster, Demand, Pool, Settings
from dovetail.launch.schedule._demand import options_of
from dovetail.launch.schedule._greedy import Room, greedy
from dovetail.launch.schedule._model import model_of


def model(jobs, count=16, block=8):
    cluster = Cluster((Pool(name="a", count=count, block=block),))
    return model_of(cluster, jobs, options_of(cluster, jobs, Settings()))


def job(name, chips, **fields):
    return Demand(name, {("a", chips): 1.0}, 1e4, **fields)


def test_small_jobs_share_blocks_and_large_ones_get_whole_ones():
    room = Room(model([job("x", 2), job("y", 8), job("z", 16)]))
    room.take(0)
    assert (room.free(0), room.fits(1), room.fits(2)) == (1, True, False)
    assert room.blocks_missing(2) == 1
    room.take(0, -1)
    assert room.fits(2)


def test_the_highest_score_comes_first_and_those_named_before_it():
    some = model([job("x", 16), job("y", 8), job("z", 8)])
    assert greedy(some, np.array([3.0, 2.0, 1.0])).tolist() == [0, -1, -1]
    assert greedy(some, np.array([3.0, 2.0, 1.0]), first=[2]).tolist() == [-1, 1, 2]
    assert greedy(some, np.array([-np.inf, 2.0, -np.inf])).tolist() == [-1, 1, -1]
    assert greedy(some, np.array([3.0, 2.0, 1.0]), start=np.array([-1, -1, 2])).tolist() == [-1, 1, 2]


def test_a_gang_that_does_not_fit_leaves_nothing_behind():
    some = model([job("x", 8, gang="g"), job("y", 16, gang="g"), job("z", 16)])
    assert greedy(some, np.array([9.0, 9.0, 1.0])).tolist() == [-1, -1, 2]
