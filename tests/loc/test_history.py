# SPDX-License-Identifier: Apache-2.0
"""History: what commits needed at the home of a feature and elsewhere."""

import shutil
import subprocess

import pytest

from dovetail.config import ConfigError
from dovetail.loc.description import load
from dovetail.loc.history import history

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
DESCRIPTION = """\
name = "Mine"
source = ["src"]
skip = ["*_test.py"]
[features.rope]
home = ["src/rope/*"]
mentions = ["RoPE"]
"""


@pytest.fixture
def repo(tmp_path):
    (tmp_path / "mine.toml").write_text(DESCRIPTION)
    return tmp_path


def git(repo, *args):
    command = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b", *args]
    subprocess.run(command, check=True, capture_output=True)


def commit(repo, subject, **files):
    for path, text in files.items():
        file = repo / "src" / f"{path.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(repo, "add", "src")
    git(repo, "commit", "-m", subject)


def found(repo, *revisions):
    description = load(str(repo / "mine.toml"))
    return history(repo, description, description.features["rope"], revisions)


def test_commits_to_the_home_are_counted_by_side_and_others_left_out(repo):
    git(repo, "init", "-q")
    commit(repo, "Trainer", trainer="a = 1\nb = 2\n")
    commit(
        repo,
        "Rotary",
        rope__kinds="class RoPE:\n    pass\n",
        trainer="a = 1\nb = 3\nc = RoPE\n# RoPE\n",
        trainer_test="RoPE\n",
    )
    commit(repo, "More", trainer="a = 1\n")
    commit(repo, "Home alone", rope__kinds="class RoPE:\n    x = 1\n")
    newest, first = found(repo)
    assert (newest.subject, first.subject) == ("Home alone", "Rotary")
    assert newest.count(home=True) == (1, 1, 1)
    assert newest.count(home=False) == (0, 0, 0)
    assert first.count(home=True) == (1, 2, 0)
    assert first.count(home=False) == (1, 3, 1)
    assert first.mentions == 1  # Neither the comment nor the test.
    assert [each.subject for each in found(repo, "HEAD~1")] == ["More"]


def test_without_history_there_is_one_message(repo):
    with pytest.raises(ConfigError, match="not in a git repository, so there is no history"):
        found(repo)
    git(repo, "init", "-q")
    commit(repo, "Trainer", trainer="a = 1\n")
    with pytest.raises(ConfigError, match="no commit has changed the home of 'rope': src/rope/\\*"):
        found(repo)
    with pytest.raises(ConfigError, match="git rev-parse failed"):
        found(repo, "nothing")
