# SPDX-License-Identifier: Apache-2.0
"""The commands that pages show: those in `console` blocks are run, those in `bash` blocks are checked."""

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

_JAX = {
    "JAX_NUM_CPU_DEVICES": "1",  # JAX starts once, so no command may ask for another number.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
_STAND_IN = "tiny-lm"  # The recipe of runs that a page names and that are not there.


@contextlib.contextmanager
def caches_in(directory: str) -> Iterator[None]:
    """Lets commands keep in a directory what they unpack and compile: several of a page compile the same program."""
    cache = f"{directory}/.cache"
    made = {"XDG_CACHE_HOME": cache, "JAX_COMPILATION_CACHE_DIR": f"{cache}/jax", **_JAX}
    before = {name: os.environ.get(name) for name in made}
    os.environ.update(made)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


def run_console(lines: Sequence[str]) -> list[str]:
    """Runs the commands of a block, `$ command` each, in this directory; returns what is wrong.

    What is shown after a command is its output, and what it said if it failed; `...` stands for anything. Where
    nothing is shown, anything may be printed, and the command must not fail.
    """
    problems: list[str] = []
    for command, shown in _commands(lines):
        code, output, error = _run(command)
        got = output + (error if code else "")
        if code and not shown:
            problems.append(f"`{command}` failed with {code}:\n{got}")
        elif shown and not _matches(shown, got):
            problems.append(f"`{command}` did not print what is shown, but:\n{got}")
    return problems


def _commands(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each command of a block, and what is shown after it."""
    command, shown = "", list[str]()
    for line in [*lines, "$ "]:
        if command.endswith("\\"):
            command = command[:-1] + line.strip()
        elif line.startswith("$ "):
            if command:
                yield command, "\n".join(shown)
            command, shown = line[2:], []
        else:
            shown.append(line)


def _run(command: str) -> tuple[int, str, str]:
    """Returns exit code, output and errors. Ours runs in this process, so that JAX is imported once for a page."""
    argv = shlex.split(command)
    if argv[0] != "dovetail":
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr
    from dovetail.cli import main

    output, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
        try:
            code = main(argv[1:])
        except SystemExit as e:
            code = int(e.code or 0)
    return code, output.getvalue(), error.getvalue()


def _matches(shown: str, got: str) -> bool:
    clean = re.sub(r" +$", "", got, flags=re.MULTILINE)
    return doctest.OutputChecker().check_output(f"{shown}\n", clean, doctest.ELLIPSIS)


def check_bash(lines: Sequence[str]) -> list[str]:
    """Returns what is wrong with the `dovetail` commands of a block: arguments, recipes, hardware, paths of overrides.

    Nothing is run. `path=...` stands for a value of the reader's.
    """
    problems: list[str] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        argv = shlex.split(line, comments=True)
        if argv and os.path.basename(argv[0]) == "dovetail" and (problem := _problem(argv[1:])):
            problems.append(f"`{' '.join(argv)}`: {problem}")
    return problems


def _problem(argv: Sequence[str]) -> str | None:
    from dovetail.cli import parsed
    from dovetail.config import ConfigError

    error = io.StringIO()
    try:
        with contextlib.redirect_stderr(error):
            _resolve(parsed(argv))
    except SystemExit:
        return error.getvalue().strip().splitlines()[-1]
    except ConfigError as e:
        return str(e)
    return None


def _resolve(args: Any) -> None:
    """Raises if what the arguments name is not there, but for files and runs of the reader's."""
    from dovetail.cli import resolve
    from dovetail.cli._generate import split_writing
    from dovetail.cli._job import LAUNCHERS
    from dovetail.cli._launch import split_launching
    from dovetail.cli._serve import split_serving
    from dovetail.config import REQUIRED, override
    from dovetail.hardware import hardware
    from dovetail.serve import Sampler
    from dovetail.serve.http import Serve

    names = [getattr(args, field, None) for field in ("recipe", "run_directory", "directory", "a", "b")]
    overrides = getattr(args, "overrides", [])
    if hasattr(args, "prompt"):
        written, overrides = split_writing(overrides)
        override(Sampler.Config(), written)
    if args.command == "launch" or (args.command == "diff" and args.via):
        launched, overrides = split_launching(overrides)
        override(LAUNCHERS[args.via](), launched)
    if args.command == "serve" or getattr(args, "serve", False):
        served, overrides = split_serving(overrides)
        override(Serve(), served)
    given = [text for text in overrides if not text.endswith("...")]
    for name in filter(None, names):
        name, _, on = name.partition("@")
        on = on or getattr(args, "on", None)
        for each in on.split(",") if on else []:  # Several are for `plan`.
            hardware(each)
        if name.endswith(".py") or ":" in name:
            continue
        change = _on_text if getattr(args, "text", ()) else None
        name = _STAND_IN if name.startswith("runs/") else name
        cfg = resolve(name, given, getattr(args, "mesh", None), change=change).cfg
        for text in (each for each in overrides if each not in given):
            cfg.set_in(text.partition("=")[0], REQUIRED)  # Raises if there is no such path; any may be open.


def _on_text(cfg: Any) -> Any:
    """Returns a run with what text of the reader's would bring that overrides reach: a place for a tokenizer."""
    from dovetail.config import REQUIRED
    from dovetail.data import HuggingFaceTokenizer

    if cfg.input.tokenizer is not None:
        return cfg
    return cfg.set(input=cfg.input.set(tokenizer=HuggingFaceTokenizer.Config(eos_token=REQUIRED)))
