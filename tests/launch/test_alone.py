# SPDX-License-Identifier: Apache-2.0
"""Two launches in one directory: the second is refused before it writes anything; one that was killed is waited for."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from dovetail.cli import main
from dovetail.config import ConfigError
from dovetail.launch._alone import alone


def test_a_second_launch_is_refused_at_once_and_leaves_what_is_of_the_first(tmp_path, capsys):
    logs = tmp_path / "launch"
    logs.mkdir()
    (tmp_path / "status.json").write_text("of the first")
    with alone(logs, patience=0.0):
        before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}
        assert main(["launch", "tiny-lm", f"directory={tmp_path}"]) == 2
        assert {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")} == before
    said = capsys.readouterr().err
    assert f"{tmp_path}: another launch is running there: process {os.getpid()} on {socket.gethostname()}," in said
    with alone(logs, patience=0.0):
        pass


def test_the_supervisor_of_a_launch_that_was_killed_is_waited_for(tmp_path, capsys):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps({"pid": ended.pid, "host": socket.gethostname(), "since": "then"}))
        file.flush()
        before = time.monotonic()
        with pytest.raises(ConfigError, match="another launch is running there"), alone(tmp_path, patience=0.2):
            pass
        assert time.monotonic() - before >= 0.2
        threading.Timer(0.3, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        with alone(tmp_path, patience=60.0):
            assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert "its processes save: waiting for them" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1, "host": "elsewhere"}'])
def test_of_a_launch_that_cannot_be_looked_at_it_is_taken_that_it_is_there(text, tmp_path):
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(text)
        file.flush()
        with pytest.raises(ConfigError, match="another launch"), alone(tmp_path, patience=60.0):
            pass
