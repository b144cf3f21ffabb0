# SPDX-License-Identifier: Apache-2.0
"""Finding runs."""

import pytest

from dovetail.config import ConfigError
from dovetail.runs import find_runs


def _make(directory):
    directory.mkdir(parents=True)
    (directory / "metrics.jsonl").touch()
    return directory


def test_runs_are_called_by_what_their_paths_do_not_share(tmp_path):
    one, other = _make(tmp_path / "runs" / "sweep" / "a"), _make(tmp_path / "runs" / "b")
    assert find_runs([one, other, one]) == {"sweep/a": one, "b": other}
    assert find_runs([str(one)]) == {"a": one}


def test_a_directory_of_runs_stands_for_those_in_it(tmp_path):
    _make(tmp_path / "runs" / "b")
    _make(tmp_path / "runs" / "a")
    assert list(find_runs([tmp_path / "runs"])) == ["a", "b"]


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no metrics.jsonl in it. Give the directory of a run"):
        find_runs([tmp_path])
    with pytest.raises(ConfigError, match="nowhere: there is no such directory"):
        find_runs(["nowhere"])
