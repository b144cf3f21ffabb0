# SPDX-License-Identifier: Apache-2.0
"""The compilers for TPUs and GPUs, in a process of their own: `make compilers` installs them beside the environment.

Loading them changes what a process prints and which platforms JAX sees, so no test loads them into its own. Starting
takes longer than most programs: one process for each platform serves all tests.
"""

import atexit
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_BESIDE = Path(__file__).parents[2] / ".venv" / "compilers"
_PACKAGES = {"tpu": "libtpu", "cuda": "jax_plugins/xla_cuda12"}

# Takes programs as lines of JSON. Compilers write to standard output themselves, so answers have a pipe of their own.
_SERVER = """
import contextlib, io, json, os, sys, traceback

answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
for line in sys.stdin:
    code, sys.argv = json.loads(line)
    printed, error = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), file=answers, flush=True)
"""


def environment(platform: str) -> dict[str, str]:
    """Returns the variables of a process that can compile for a platform; skips the test if none could."""
    package = _PACKAGES[platform]
    if not (_BESIDE / package).is_dir() and not _importable(package.replace("/", ".")):
        pytest.skip(f"no compiler for {platform} is installed: run `make compilers`")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_", "PYTEST_"))}
    paths = [str(_BESIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
    for_tpus = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    return {**environ, **for_tpus, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}


def run(platform: str, code: str, *arguments: str) -> str:
    """Runs Python code that compiles for a platform; returns what it prints, and fails with what it complains of.

    Programs share a process, so they share what JAX keeps: each sets its mesh for itself, and leaves no settings.
    """
    environment(platform)  # Skips here: what is cached must not be a skip.
    printed, error = _process(platform).answer(code, arguments)
    assert not error, error[-4000:]
    return printed


class _Process:
    """A process that runs programs one after the other."""

    def __init__(self, platform: str) -> None:
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            env=environment(platform),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )
        atexit.register(self._close)

    def answer(self, code: str, arguments: tuple[str, ...]) -> tuple[str, str]:
        assert self._process.stdin
        assert self._process.stdout
        try:
            print(json.dumps([code, ["-c", *arguments]]), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:  # A compiler can abort; later programs get a new process.
            _process.cache_clear()
            self._complaints.seek(0)
            return "", f"the process ended with code {self._process.wait()}:\n{self._complaints.read()}"
        printed, error = json.loads(line)
        return printed, error

    def _close(self) -> None:
        with self._process, self._complaints:
            assert self._process.stdin
            self._process.stdin.close()


@functools.cache
def _process(platform: str) -> _Process:
    return _Process(platform)


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
