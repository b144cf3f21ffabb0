# SPDX-License-Identifier: Apache-2.0
"""Compiles a program for chips that need not be there, and keeps what the compiler says about it."""

import contextlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache

from dovetail.hardware import Hardware, gpu_topology, tpu_topology

from ._memory import Memory, compiled_text, read_memory

# So that libtpu looks for no chips, and several programs may load it. It reads these when it is loaded.
_LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}
# The compiler for GPUs writes its estimates into the program, on request; that for TPUs always does.
_COSTS: dict[str, str | bool] = {"xla_gpu_collect_cost_model_stats": True}
_NEEDED = {"tpu": ("libtpu", "dovetail[tpu]"), "cuda": ("jax_plugins.xla_cuda12", "dovetail[gpu]")}


class CompileError(RuntimeError):
    """There is no compiler for some hardware, or it fails; the message says what to do."""


class Compilation(NamedTuple):
    """What came out."""

    text: str  # The program for one device, after all optimisations, with the compiler's own costs if it has any.
    memory: Memory
    seconds: float
    refused: str  # Why the compiler gave up, after it had laid out memory; empty if it did not.


def check_compiler(hardware: Hardware) -> None:
    """Raises if there is no compiler for some hardware, or if it is not installed."""
    platform = hardware.chip.platform
    if platform == "cpu":
        return
    if platform not in _NEEDED:
        raise CompileError(
            f"no compiler for {hardware.chip.vendor} can be installed from the package index, so {hardware.name} can "
            f"be shown and planned for, but not compiled for. There are compilers for: {', '.join(_NEEDED)}, cpu."
        )
    module, extra = _NEEDED[platform]
    if not _installed(module):
        raise CompileError(f"compiling for {hardware.name} needs a package. Run: pip install '{extra}'")


def described_devices(hardware: Hardware) -> list[Any]:
    """Returns the devices of hardware that need not be there, for a mesh to compile for."""
    check_compiler(hardware)
    platform = hardware.chip.platform
    if platform == "cpu":
        return jax.devices("cpu")
    with quiet():
        if platform == "tpu":
            for name, value in _LIBTPU.items():
                os.environ.setdefault(name, value)
        describe = tpu_topology if platform == "tpu" else gpu_topology
        found = topologies.get_topology_desc(**describe(hardware))
    return list(found.devices)


def compile_for(lowered: Any) -> Compilation:
    """Compiles what `jax.jit(...).lower(...)` returned. A program that is too large is described all the same."""
    text = refused = ""
    with tempfile.TemporaryDirectory(prefix="dovetail-") as directory, quiet(), _never_kept():
        start = time.monotonic()
        try:
            text = lowered.compile(compiler_options={"xla_dump_to": directory, **_COSTS}).as_text()
        except jax.errors.JaxRuntimeError as e:
            refused = str(e)
            if "RESOURCE_EXHAUSTED" not in refused or not any(Path(directory).glob("*buffer-assignment.txt")):
                raise CompileError(f"the compiler fails:\n  {refused}") from e
        seconds = time.monotonic() - start
        memory = read_memory(Path(directory))
        return Compilation(text or compiled_text(Path(directory)), memory, seconds, refused)


def versions(hardware: Hardware) -> dict[str, str]:
    """Returns the versions of what a compilation depends on."""
    check_compiler(hardware)
    names = {"tpu": ["libtpu"], "cuda": ["jax-cuda12-pjrt"]}.get(hardware.chip.platform, [])
    return {name: version(name) for name in ("dovetail", "jax", "jaxlib", *names)}


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@contextlib.contextmanager
def _never_kept() -> Iterator[None]:
    """Turns off JAX's cache of compiled programs: what comes out of it was not compiled, and has nothing to tell."""
    config: Any = jax.config  # It does not declare its fields.
    before = config.jax_enable_compilation_cache
    config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX has decided before whether there is one.
    try:
        yield
    finally:
        config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences what compilers write to standard error by themselves; what matters comes as an exception."""
    saved = os.dup(2)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
