# SPDX-License-Identifier: Apache-2.0
"""The benchmark against peers: a small problem through the real programs."""

import json

import pytest

from dovetail.cli import main


@pytest.mark.slow
def test_ours_and_hand_written_jax_are_the_same_maths_and_both_are_timed(capfd):
    peers = ["hand-written-jax", "ours-scanned"]
    assert main(["bench", "train", "--small", "--json", "--rounds=2", f"--peers={','.join(peers)}"]) == 0
    captured = capfd.readouterr()
    report = json.loads(captured.out)
    assert [row["peer"] for row in report["rows"]] == peers
    for row in report["rows"]:
        assert row["loss_difference"] <= 1e-4
        assert min(row["ours_seconds"], row["peer_seconds"], row["ours_memory_gib"], row["temporary_ratio"]) > 0
    assert captured.err.count("round ") == 4
    assert 0 < report["mfu"] < 1


def test_a_peer_that_is_not_there_is_left_out_with_the_reason(tmp_path, capfd):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    assert main(["bench", "train", "--small", "--json", "--peers=torch-compile", f"--torch-python={python}"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["rows"] == []
    assert report["missing"] == {"torch-compile": f"{python} has no PyTorch. Name one that has: --torch-python PATH."}


def test_an_unknown_peer_is_refused(capfd):
    assert main(["bench", "train", "--peers=keras"]) == 2
    peers = "hand-written-jax, torch-eager, torch-compile, ours-scanned"
    assert capfd.readouterr().err == f"dovetail bench train: no peer is called 'keras'. There are: {peers}.\n"
