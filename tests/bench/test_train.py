# SPDX-License-Identifier: Apache-2.0
"""The benchmark against peers: a small problem through the real programs."""

import numpy as np
import pytest

from dovetail.bench import PEERS, Problem, bench_train, machine
from dovetail.config import ConfigError

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


@pytest.mark.slow
def test_ours_and_hand_written_jax_are_the_same_maths_and_both_are_timed():
    lines: list[str] = []
    peers = ["hand-written-jax", "ours-scanned"]
    report = bench_train(peers, rounds=2, torch_python=None, problem=SMALL, log=lines.append)
    assert [row.peer for row in report.rows] == peers
    for row in report.rows:
        assert row.loss_difference <= 1e-4
        assert min(row.ours_seconds, row.peer_seconds, row.ours_memory_gib, row.temporary_ratio or 0) > 0
    assert len(lines) == 4
    assert 0 < report.mfu < 1


def test_a_peer_that_is_not_there_is_left_out_with_the_reason(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    report = bench_train(["torch-compile"], rounds=1, torch_python=str(python), problem=SMALL, log=print)
    assert report.rows == []
    assert report.missing == {"torch-compile": f"{python} has no PyTorch. Name one that has: --torch-python PATH."}


def test_an_unknown_peer_is_refused():
    with pytest.raises(ConfigError) as e:
        bench_train(["keras"], rounds=1, torch_python=None, problem=SMALL, log=print)
    assert str(e.value) == f"no peer is called 'keras'. There are: {', '.join(PEERS)}."


def test_the_machine_is_described():
    assert {"processor", "cores", "memory_gib", "python", "jax"} <= machine().keys()
