# SPDX-License-Identifier: Apache-2.0
"""Configs are read line by line, with those of earlier steps, and compared path by path."""

from pathlib import Path

from dovetail.board._config import config_of, difference, paths_in
from dovetail.board._root import Root


def test_a_line_is_a_path_and_a_value_which_may_have_lines_and_equals_signs() -> None:
    text = "(root) = a.Config\na.b = 'x = y'\nlong = first\n  second\n\nsteps = 3\n"
    assert paths_in(text) == [("(root)", "a.Config"), ("a.b", "'x = y'"), ("long", "first\n  second"), ("steps", "3")]
    assert paths_in("") == paths_in("\n no path \n") == []


def test_a_run_of_one_config_has_no_others(tmp_path: Path) -> None:
    (tmp_path / "config.txt").write_text("a = 1\n")
    assert config_of(Root(tmp_path), ".") == ([("a", "1")], [])


def test_configs_of_earlier_steps_are_in_order(tmp_path: Path) -> None:
    (tmp_path / "run/configs").mkdir(parents=True)
    (tmp_path / "run/config.txt").write_text("a = 3\n")
    (tmp_path / "run/configs/steps_11-20.txt").write_text("a = 2\n")
    (tmp_path / "run/configs/steps_1-10.txt").write_text("a = 1\n")
    (tmp_path / "run/configs/other.txt").write_text("a = 9\n")
    now, spans = config_of(Root(tmp_path), "run")
    assert now == [("a", "3")]
    assert [(each["step"], each["last"], each["config"]) for each in spans] == [
        (1, 10, [("a", "1")]),
        (11, 20, [("a", "2")]),
        (21, None, [("a", "3")]),
    ]


def test_a_difference_has_the_paths_that_are_not_the_same_in_all() -> None:
    found = difference(["x", "y"], [{"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "5", "d": "4"}])
    assert found == {
        "runs": ["x", "y"],
        "paths": [
            {"path": "b", "values": ["2", "5"]},
            {"path": "c", "values": ["3", None]},
            {"path": "d", "values": [None, "4"]},
        ],
        "same": 1,
    }
