# SPDX-License-Identifier: Apache-2.0
"""The benchmark of generation: a small problem through the real program."""

import json

import pytest

from dovetail.cli import main


@pytest.mark.slow
def test_ours_is_timed_where_the_peer_is_not_there_and_the_report_says_so(tmp_path, capfd):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    options = ("--small", "--json", "--batches=2", "--rounds=2", "--new-tokens=3", f"--torch-python={python}")
    assert main(["bench", "decode", *options]) == 0
    report = json.loads(capfd.readouterr().out)
    (row,) = report["rows"]
    assert row["ours_rate"] > 0
    assert 0 < row["bandwidth_share"] < 1
    assert (row["batch"], row["peer_rate"], row["agreement"]) == (2, None, None)
    assert report["missing"] == f"{python} has no transformers with PyTorch. Name one that has: --torch-python PATH."
