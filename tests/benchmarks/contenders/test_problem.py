# SPDX-License-Identifier: Apache-2.0
"""The problem that all contenders solve."""

import runpy
from pathlib import Path

import numpy as np

Problem = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "contenders" / "_problem.py"))["Problem"]
SMALL = Problem(vocab_size=64, dim=16, hidden_dim=32, num_layers=2, num_heads=2, seq_len=32, batch_size=2)


def test_the_operations_are_those_of_the_forward_pass_three_times():
    per_token = 2 * 2 * (4 * 16 * 16 + 3 * 16 * 32) + 2 * 2 * (32 + 1) * 16 + 2 * 64 * 16
    assert SMALL.flops == 3 * 64 * per_token


def test_weights_and_data_are_the_same_each_time():
    first, again = SMALL.weights(), SMALL.weights()
    assert first.keys() == again.keys()
    assert all(np.array_equal(first[name], again[name]) for name in first)
    (tokens, targets), (same, _) = next(SMALL.batches()), next(SMALL.batches())
    np.testing.assert_array_equal(tokens, same)
    np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])
