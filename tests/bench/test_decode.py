# SPDX-License-Identifier: Apache-2.0
"""The benchmark of generation: a small problem through the real program."""

import pytest

from dovetail.bench import Problem, bench_decode

SMALL = Problem(vocab_size=64, dim=16, hidden_dim=32, num_layers=2, num_heads=2, seq_len=32, batch_size=2)


@pytest.mark.slow
def test_ours_is_timed_where_the_peer_is_not_there_and_the_report_says_so(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    report = bench_decode([2], rounds=2, new_tokens=3, torch_python=str(python), problem=SMALL, log=print)
    (row,) = report.rows
    assert row.ours_rate > 0
    assert 0 < row.bandwidth_share < 1
    assert (row.batch, row.peer_rate, row.agreement) == (2, None, None)
    assert report.missing == f"{python} has no transformers with PyTorch. Name one that has: --torch-python PATH."
