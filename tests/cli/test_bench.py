# SPDX-License-Identifier: Apache-2.0
"""`dovetail bench`: benchmarks of the clone."""

import pytest

from dovetail.cli import _bench, main


@pytest.mark.parametrize("name, option", [("train", "--peers"), ("decode", "--batches"), ("serve", "--vllm-python")])
def test_a_benchmark_says_what_its_options_are(name, option, capfd):
    assert main(["bench", name, "--help"]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith(f"usage: dovetail bench {name}")
    assert option in shown


def test_without_a_clone_there_is_one_message_that_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_bench, "_DIRECTORY", tmp_path)
    assert main(["bench", "train"]) == 2
    assert capsys.readouterr().err == (
        f"dovetail bench: there is no {str(tmp_path / 'train.py')!r}: benchmarks need a clone of dovetail, "
        "and this one was installed without.\n  In a clone: make venv && .venv/bin/dovetail bench train\n"
    )
