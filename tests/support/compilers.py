# SPDX-License-Identifier: Apache-2.0
"""The compilers for TPUs and GPUs, in a process of their own: `make compilers` installs them beside the environment.

Loading them changes what a process prints and which platforms JAX sees, so no test loads them into its own.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

_BESIDE = Path(__file__).parents[2] / ".venv" / "compilers"
_PACKAGES = {"tpu": "libtpu", "cuda": "jax_plugins/xla_cuda12"}


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
    """Runs Python code that compiles for a platform; returns what it prints, and fails with what it complains of."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment(platform), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
