# SPDX-License-Identifier: Apache-2.0
"""Compiled programs that are kept: where, for whom, and what happens if that goes wrong."""

import json
import os
import subprocess
import sys

import pytest

from dovetail.hardware import KeptPrograms, kept_programs

DIRECTORY = "JAX_COMPILATION_CACHE_DIR"


def test_each_user_and_kind_of_machine_has_a_directory_that_nobody_else_can_read(tmp_path):
    kept = kept_programs({"XDG_CACHE_HOME": str(tmp_path)})
    directory = tmp_path / "dovetail" / "programs"
    (machine,) = directory.iterdir()
    assert kept.variables[DIRECTORY] == str(machine)
    assert int(kept.variables["JAX_COMPILATION_CACHE_MAX_SIZE"]) == 4 * 2**30
    assert machine.stat().st_mode & 0o777 == 0o700


def test_other_cpus_have_other_directories(tmp_path, monkeypatch):
    found = set()
    for flags in ("sse avx", "sse"):
        text = f"model name : A CPU\nflags : {flags}\n\nmodel name : another core"
        monkeypatch.setattr("dovetail.hardware._programs.Path.read_text", lambda *_, text=text: text)
        found.add(kept_programs({"XDG_CACHE_HOME": str(tmp_path)}).variables[DIRECTORY])
    assert len(found) == 2


@pytest.mark.parametrize("name, value", [(DIRECTORY, "/elsewhere"), ("JAX_ENABLE_COMPILATION_CACHE", "false")])
def test_what_the_environment_says_wins(tmp_path, name, value):
    assert kept_programs({"XDG_CACHE_HOME": str(tmp_path), name: value}) == KeptPrograms({})
    assert not any(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made_is_said_and_no_more(tmp_path):
    (tmp_path / "dovetail").write_text("a file")
    kept = kept_programs({"XDG_CACHE_HOME": str(tmp_path)})
    assert kept.variables == {}
    assert kept.problem.startswith("compiled programs are not kept: ")
    assert "Not a directory" in kept.problem


def test_what_a_killed_process_left_behind_is_removed(tmp_path):
    directory = kept_programs({"XDG_CACHE_HOME": str(tmp_path)}).variables[DIRECTORY]
    for name in ("whole-cache", "whole-atime", "half-cache"):
        (tmp_path / directory / name).write_bytes(b"12345678")
    kept_programs({"XDG_CACHE_HOME": str(tmp_path)})
    assert {path.name for path in (tmp_path / directory).glob("*-*")} == {"whole-cache", "whole-atime"}


@pytest.mark.long
def test_a_run_that_starts_again_does_not_compile_again(tmp_path):
    kept = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "DOVETAIL_HOST": "plain"}
    kept["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # However fast this machine is.
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"):
        kept.pop(name, None)
    size = ["model.stack.num_layers=1", "model.dim=32", "input.batch_size=1"]

    def train(name: str) -> tuple[str, list[float]]:
        argv = ["train", "tiny-lm", "steps=2", f"directory={tmp_path / name}", "evaluators={}", "log_every=1", *size]
        done = subprocess.run(
            [sys.executable, "-m", "dovetail.cli", *argv], env=kept, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        losses = [json.loads(line)["loss"] for line in lines if '"loss"' in line]
        return done.stdout + done.stderr, losses

    first, second = train("first"), train("second")
    assert "the step was compiled before" not in first[0]
    assert "the step was compiled before" in second[0]
    assert len(first[1]) == 2
    assert first[1] == second[1]


_DAMAGED = """
import warnings
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

double = jax.jit(lambda x: 2 * x)
assert double(1.0) == 2.0
(kept,) = Path({directory!r}).glob("jit__lambda*-cache")
kept.write_bytes(kept.read_bytes()[:-10])
jax.clear_caches()
compilation_cache.reset_cache()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert double(1.0) == 2.0
assert any("Error reading persistent compilation cache entry" in str(each.message) for each in said)
"""


def test_a_damaged_program_is_said_and_compiled_again(tmp_path):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    variables = kept_programs({"XDG_CACHE_HOME": str(tmp_path)}).variables
    variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    code = _DAMAGED.format(directory=variables[DIRECTORY])
    subprocess.run([sys.executable, "-c", code], env={**environ, **variables}, check=True)
