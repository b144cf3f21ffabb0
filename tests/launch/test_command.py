# SPDX-License-Identifier: Apache-2.0
"""`Command`: what a program says is returned as it is; what goes wrong is one error, with what it said."""

import os
import sys
import time
from collections.abc import Generator

import pytest

from dovetail.config import ConfigError
from dovetail.launch._command import Command, quoted


def said(what: str, text: str) -> ConfigError:
    return ConfigError(f"{what} refuses: {text}")


def program(tmp_path, text: str, *, seconds: float = 60.0) -> Command:
    """Returns a program of some lines of Python; it has an argument of its own."""
    file = tmp_path / "engine"
    file.write_text(f"#!{sys.executable} -S\nimport os, sys, time, signal\n{text}\n")
    file.chmod(0o755)
    return Command([str(file), "--always"], install="Install it.", error=said, seconds=seconds)


def test_what_it_prints_is_returned_and_what_it_warns_of_is_not(tmp_path):
    command = program(tmp_path, "print(sys.argv[1:]); print('careful', file=sys.stderr)")
    assert command.run("get", "a b", "$(c)") == "['--always', 'get', 'a b', '$(c)']\n"


def test_it_is_given_text_variables_and_a_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("KEPT", "kept")
    names = "os.environ['KEPT'], os.environ['TOKEN']"
    command = program(tmp_path, f"print([sys.stdin.read(), {names}, os.listdir('.')])")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("")
    found = command.run("apply", given="é\n", variables={"TOKEN": "t"}, directory=tmp_path / "there")
    assert found == "['é\\n', 'kept', 't', ['file']]\n"


def test_without_text_it_reads_nothing_of_ours(tmp_path):
    assert program(tmp_path, "print(repr(sys.stdin.read()))").run("get") == "''\n"


@pytest.mark.parametrize(
    "text, words",
    [
        ("print('out'); print(' no such thing\\n', file=sys.stderr); sys.exit(3)", "no such thing"),
        ("print('only here'); sys.exit(1)", "only here"),
        ("sys.exit(1)", ""),
        ("os.kill(os.getpid(), 9)", ""),
        ("sys.stderr.buffer.write(b'\\xff denied'); sys.exit(1)", "\ufffd denied"),
    ],
)
def test_what_it_says_when_it_fails_is_the_error(tmp_path, text, words):
    with pytest.raises(ConfigError) as raised:
        program(tmp_path, text).run("get", "jobs")
    assert str(raised.value) == f"{tmp_path / 'engine'} get refuses: {words}"


def test_what_is_no_utf8_is_returned_as_far_as_it_can_be(tmp_path):
    command = program(tmp_path, "sys.stdout.buffer.write(b'a\\xff\\nb\\n')")
    assert command.run("get") == "a\ufffd\nb\n"
    assert list(command.lines("logs")) == ["a\ufffd", "b"]


@pytest.mark.parametrize("way", ["run", "lines"])
def test_a_program_that_is_not_there_is_an_error_that_says_what_to_do(way):
    command = Command(["no-such-engine"], install="Install it.", error=said)
    with pytest.raises(ConfigError) as raised:
        list(getattr(command, way)("get"))
    assert str(raised.value) == "there is no no-such-engine on the PATH.\n  Install it."


@pytest.mark.parametrize("way", ["run", "lines"])
@pytest.mark.parametrize("mode, why", [(0o644, "Permission denied"), (0o755, "Exec format error")])
def test_a_program_that_cannot_be_run_is_an_error(tmp_path, way, mode, why):
    (tmp_path / "engine").write_bytes(b"\0\0\0\0")
    (tmp_path / "engine").chmod(mode)
    command = Command([str(tmp_path / "engine")], install="Install it.", error=said)
    with pytest.raises(ConfigError, match=f"engine cannot be run: {why}"):
        list(getattr(command, way)("get"))


def test_a_program_that_does_not_answer_is_ended_and_an_error(tmp_path):
    file = tmp_path / "ended"
    command = program(tmp_path, f"time.sleep(60); open({str(file)!r}, 'w')", seconds=0.5)
    begun = time.monotonic()
    with pytest.raises(ConfigError, match=r"engine get: no answer for 0 s\.\n  Check the network, and try again\."):
        command.run("get")
    assert time.monotonic() - begun < 30
    assert not file.exists()


def test_lines_come_while_it_runs_of_both_kinds_of_output(tmp_path):
    text = f"""
print("one", flush=True)
print("two", file=sys.stderr, flush=True)
while not os.path.exists({str(tmp_path / "go")!r}):
    time.sleep(0.01)
sys.stdout.write("three\\n\\nthe end")
"""
    found = program(tmp_path, text).lines("logs")
    assert [next(found), next(found)] == ["one", "two"]
    (tmp_path / "go").write_text("")
    assert list(found) == ["three", "", "the end"]


def test_a_program_that_fails_after_some_lines_is_an_error_with_the_last(tmp_path):
    found = program(tmp_path, "print('one'); print('gone away'); sys.exit(1)").lines("logs")
    assert [next(found), next(found)] == ["one", "gone away"]
    with pytest.raises(ConfigError, match="engine logs refuses: gone away"):
        next(found)


def test_how_it_ends_is_known_also_if_its_output_ends_before(tmp_path):
    text = "print('one', flush=True); os.close(1); os.close(2); time.sleep(0.3); os._exit(4)"
    with pytest.raises(ConfigError, match="engine logs refuses: one"):
        list(program(tmp_path, text).lines("logs"))


def test_a_program_that_nobody_reads_any_more_is_ended(tmp_path):
    file = tmp_path / "pid"
    text = f"open({str(file)!r}, 'w').write(str(os.getpid()))\nprint('one', flush=True)\ntime.sleep(60)"
    found = program(tmp_path, text).lines("logs")
    assert next(found) == "one"
    begun = time.monotonic()
    assert isinstance(found, Generator)
    found.close()
    assert time.monotonic() - begun < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


def test_only_the_end_of_what_was_said_is_quoted():
    lines = [f"line {n}" for n in range(9)]
    assert quoted("\n".join(lines)).splitlines() == ["  It says:", *(f"    {line}" for line in lines[-6:])]
    assert quoted(" \n") == "  It says:\n    (nothing)"


def test_json_is_read_and_what_is_none_is_one_error(tmp_path):
    assert program(tmp_path, "print('[1]')").json("get") == [1]
    assert program(tmp_path, "print()").json("get") is None
    with pytest.raises(ConfigError, match=r"engine get: it printed what is no JSON: '<html>"):
        program(tmp_path, "print('<html>')").json("get")
