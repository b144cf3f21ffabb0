# SPDX-License-Identifier: Apache-2.0
"""How far a command is, on a real terminal and without one: a line that goes away, lines now and then, or nothing."""

import json
import re
import subprocess
import sys

import pytest

from support.terminal import terminal

_PROGRAM = "import sys; from dovetail.cli import main; sys.exit(main())"
_COUNTS = """
import ctypes, logging
from dovetail.progress import phase
with phase("reading the weights of a model", 4e9, unit="bytes") as at:
    at.advance(1e9)
    logging.getLogger("dovetail").warning("a message")
    {then}
"""
# Waits where Python does not come by: for a mutex that is never released, as in a compiler.
_STUCK = "m = ctypes.create_string_buffer(64); c = ctypes.CDLL(None); c.pthread_mutex_lock(m); c.pthread_mutex_lock(m)"
# Until the line of progress has been drawn once more.
_DRAWN = "import threading; threading.Event().wait(1.2)"
_AND_ENDS = "\nraise SystemExit(0)"  # What a command does then takes longer.


def command(tmp_path, then, *options):
    (tmp_path / "mine.py").write_text(_COUNTS.format(then=then))
    return [sys.executable, "-c", _PROGRAM, "diff", "tiny-lm", "tiny-lm", "--code", str(tmp_path / "mine.py"), *options]


@pytest.mark.parametrize("columns", [80, 40])
def test_ctrl_c_takes_the_line_away_and_ends_the_command_by_its_signal_even_in_a_compiler(columns, tmp_path):
    with terminal(command(tmp_path, _STUCK), columns=columns) as shown:
        shown.wait_for("25 %")
        lines = shown.screen()
        assert lines[0] == "a message"
        assert lines[-1].startswith("reading the weights of a m")
        assert "... 25 %" in lines[-1]
        assert max(map(len, lines)) < columns - 2  # "^C" has room.
        shown.type("\x03")
        assert shown.end() == -2
        assert [line.replace("^C", "") for line in shown.screen()] == ["a message", ""]


def test_in_a_terminal_nothing_is_left_of_the_line_and_there_are_no_colours(tmp_path):
    with terminal(command(tmp_path, _DRAWN + _AND_ENDS), environment={"NO_COLOR": "1"}) as shown:
        assert shown.end() == 0
        assert "reading the weights of a model ... 25 %, 1.0 of 4.0 GB" in shown.written
        lines = [re.sub(r"took [\d.]+ s", "took 1 s", line) for line in shown.screen()]
        assert lines[:2] == ["a message", "reading the weights of a model took 1 s"]
        assert not [line for line in lines if "..." in line]
        assert not re.search(r"\x1b\[[\d;]*m", shown.written)


def test_quiet_says_nothing_before_and_after_the_command(tmp_path):
    base = command(tmp_path, _DRAWN + _AND_ENDS)
    place = base.index("diff")
    for chosen in ([*base[:place], "-q", *base[place:]], [*base, "--quiet"]):
        with terminal(chosen) as shown:
            assert shown.end() == 0
            assert "reading" not in shown.written
            assert "\x1b" not in shown.written


def test_without_a_terminal_lines_go_to_standard_error_and_only_json_to_standard_output(tmp_path):
    done = subprocess.run(command(tmp_path, _DRAWN, "--json"), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is not None
    message, first = done.stderr.splitlines()[:2]
    assert message == "a message"
    assert re.fullmatch(r"reading the weights of a model \.\.\. 25 %, 1\.0 of 4\.0 GB, [\d.]+ s", first)
    assert "\r" not in done.stderr


def test_a_dumb_terminal_gets_plain_lines(tmp_path):
    with terminal(command(tmp_path, _DRAWN + _AND_ENDS), environment={"TERM": "dumb"}) as shown:
        assert shown.end() == 0
        assert "\x1b" not in shown.written
        assert "reading the weights of a model ... 25 %" in shown.written


def test_every_command_takes_quiet_and_says_so(capsys):
    from dovetail.cli import main

    for words in (["--help"], ["train", "--help"], ["data", "check", "--help"], ["jobs", "list", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
        assert "-q, --quiet" in capsys.readouterr().out


def test_a_launch_that_is_quiet_starts_processes_that_are(capsys):
    from dovetail.cli import main

    words = ["launch", "llama3-tiny", "--via", "slurm", "--processes", "2", "--dry-run"]
    for more, is_there in ((["-q"], True), ([], False)):
        assert main([*words, *more]) == 0
        assert ('"llama3-tiny","--quiet"' in capsys.readouterr().out) == is_there
