# SPDX-License-Identifier: Apache-2.0
"""Footprints: what is counted, what is not, and what a budget catches."""

import pytest

from dovetail.config import ConfigError
from dovetail.loc.description import load
from dovetail.loc.footprint import survey

DESCRIPTION = """\
name = "Mine"
source = ["src"]
skip = ["*_test.py"]
uses = ["src/recipes/*"]
[features.rope]
home = ["src/rope.py", "src/attention.py::Rotary*"]
mentions = ["RoPE|rotary"]
budget = 2
"""
FILES = {
    "src/rope.py": "class RoPE:\n    theta = 1\n",
    "src/attention.py": "import rope\n\n\n@final\nclass RotaryAttention:\n    kind = rope.RoPE\n\n\nx = rope.RoPE\n",
    "src/trainer.py": '"""Trains, also with RoPE."""\n\nstep = 1  # RoPE needs it.\nkey = "rotary"\n',
    "src/recipes/a.py": "cfg = RoPE\n",
    "src/trainer_test.py": "from rope import RoPE\n",
    "other/script.py": "from rope import RoPE\n",
}


@pytest.fixture
def repo(tmp_path):
    for path, text in {**FILES, "mine.toml": DESCRIPTION}.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def footprint(repo):
    return survey(repo, load(str(repo / "mine.toml"))).footprints[0]


def test_lines_of_code_outside_the_home_are_counted_by_file(repo):
    found = footprint(repo)
    assert [str(mention) for mention in found.mentions] == [
        "src/attention.py:9: x = rope.RoPE",
        "src/recipes/a.py:1: cfg = RoPE",
        'src/trainer.py:4: key = "rotary"',
    ]
    assert dict(found.per_file) == {"src/attention.py": 1, "src/recipes/a.py": 1, "src/trainer.py": 1}
    assert found.home_lines == 5
    assert len(found.counted) == 2
    assert not found.exceeds


def test_a_mention_planted_outside_the_home_exceeds_the_budget(repo):
    (repo / "src/checkpoint.py").write_text("def save(model):\n    return model.rotary\n")
    found = footprint(repo)
    assert found.exceeds
    assert "src/checkpoint.py:2: return model.rotary" in map(str, found.counted)


def test_another_recipe_does_not_count_against_the_budget(repo):
    (repo / "src/recipes/b.py").write_text("cfg = RoPE\n" * 9)
    assert not footprint(repo).exceeds


def test_a_home_that_has_moved_is_an_error_not_a_larger_number(repo):
    (repo / "src/rope.py").rename(repo / "src/positions.py")
    with pytest.raises(ConfigError, match=r"feature 'rope': its home 'src/rope.py' is not there"):
        footprint(repo)


def test_files_of_another_python_are_listed_as_not_read(repo):
    (repo / "src/old.py").write_text("print 'RoPE'\n")
    (repo / "src/bytes.py").write_bytes(b"x = '\xff'\n")
    found = survey(repo, load(str(repo / "mine.toml")))
    assert found.unread == ("src/bytes.py", "src/old.py")
    assert (found.files, found.lines) == (4, 10)


def test_a_repository_without_the_source_is_refused(tmp_path, repo):
    with pytest.raises(ConfigError, match="not a checkout of Mine: there is no directory 'src'"):
        survey(tmp_path / "other", load(str(repo / "mine.toml")))
    (repo / "empty" / "src").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no Python file in src"):
        survey(repo / "empty", load(str(repo / "mine.toml")))
