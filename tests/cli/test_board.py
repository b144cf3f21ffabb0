# SPDX-License-Identifier: Apache-2.0
"""`dovetail board`: the list, an export, and a server that starts, answers and ends."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from dovetail.cli import main
from support.boards import write_run


def test_json_prints_the_list_and_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "x/a", 7)
    assert main(["board", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(run["id"], run["step"], run["steps"]) for run in found["runs"]] == [("x/a", 7, 100)]


def test_without_a_directory_it_is_runs_or_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", 1)
    for expected in (["a"], ["b"]):
        assert main(["board", "--json"]) == 0
        assert [run["id"] for run in json.loads(capsys.readouterr().out)["runs"]] == expected
        write_run(tmp_path / "runs/b", 1)


def test_an_export_is_one_file_of_the_runs_that_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x/a", "x/b", "c"):
        write_run(tmp_path / "runs" / name, 3)
    file = tmp_path / "out.html"
    assert main(["board", str(tmp_path / "runs"), "b", "c", "--export", str(file)]) == 0
    assert "It opens in a browser, without a server." in capsys.readouterr().out
    text = file.read_text("utf-8")
    assert "/api/run?run=x%2Fb" in text
    assert "/api/run?run=x%2Fa" not in text
    assert main(["board", str(tmp_path / "runs"), "--export", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(file), "bytes": file.stat().st_size}
    assert "/api/run?run=x%2Fa" in file.read_text("utf-8")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "board: there is no directory 'nowhere'. Name one with runs in it."),
        ([".", "a"], "board: 'a' is one too many. RUN is for --export; the page ticks runs itself."),
        ([".", "z", "--export", "x.html"], "board: 'z' is none of the runs here: a."),
        ([".", "--export", "no/x.html"], "board: 'no/x.html' cannot be written: No such file or directory."),
        ([".", "--host", "0.0.0.0"], "board: --host 0.0.0.0 can be reached from other machines, so it needs a token."),
        ([".", "--token", "short"], "board: the token has 5 characters, expected at least 16 letters and digits."),
        ([".", "--port", "-1"], "board: --port is -1, expected 0 (any that is free) to 65535."),
        (["http://x/y"], "board: expected a path, s3://BUCKET/NAME or gs://BUCKET/NAME, found 'http://x/y'."),
    ],
)
def test_what_the_user_can_fix_is_said_in_a_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOVETAIL_BOARD_TOKEN", raising=False)
    write_run(tmp_path / "a", 1)
    assert main(["board", *arguments]) == 2
    assert capsys.readouterr().err.splitlines()[0].removeprefix("dovetail board: ") == message


def test_a_port_that_is_taken_ends_it_with_the_next_free_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["board", str(tmp_path), "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"port {port} of 127.0.0.1 is taken" in error
    assert "Use --port " in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_answers_and_ends_at_once_with_0(tmp_path: Path, number: signal.Signals) -> None:
    write_run(tmp_path / "a", 3)
    # Ctrl-C is ignored in what a shell starts in the background, and inherited: here it is not.
    code = (
        "import signal, runpy; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('dovetail.cli', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", code, "board", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        url = line.split()[-1]
        with urllib.request.urlopen(f"{url}api/runs", timeout=30) as answer:
            assert json.load(answer)["runs"][0]["id"] == "a"
        with urllib.request.urlopen(f"{url}api/changes", timeout=30):  # A page that waits keeps nobody.
            process.send_signal(number)
            assert process.wait(30) == 0
        assert process.stdout.read() == ""
        assert process.stderr.read() == ""  # Quiet.
