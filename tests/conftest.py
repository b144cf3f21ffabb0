# SPDX-License-Identifier: Apache-2.0
"""Settings for every test: hypothesis, and JAX on eight virtual CPU devices.

JAX is set through the environment, not through `jax.config`, because this file must not import it: the
tests of `dovetail.config` and of the tools run without JAX, and the processes that tests start inherit these.
"""

import functools
import gc
import os
import sys

import pytest
from hypothesis import settings

import fast_compile

settings.register_profile("dovetail", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("dovetail")

assert "jax" not in sys.modules, "a pytest plugin imported JAX before its settings were made"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["PJRT_NPROC"] = "32"  # Threads: with 8, devices have waited for each other for ever (launch/_devices.py).
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ.update(fast_compile.VARIABLES)

# Tracing makes many objects, and so does collecting tests; to look at them as often as Python does takes a tenth more.
gc.set_threshold(50_000, 20, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts tests that use the compilers of other hardware first, so that one process for each platform serves them all.

    Of two workers, the first begins with them, and the second takes its work from the end.
    """
    items.sort(key=lambda item: not hasattr(getattr(item, "module", None), "compilers"))


def pytest_collectstart() -> None:
    """Shares what programs need from the first module that has JAX on: modules make arrays when they are imported."""
    if "jax" in sys.modules:
        share()


@functools.cache
def share() -> None:
    """Shares equal programs, and what programs are lowered in."""
    fast_compile.share_context()
    fast_compile.share_programs()


def pytest_collection_finish() -> None:
    """Shares programs also of a single module, and spares the garbage collector what lives on."""
    pytest_collectstart()
    gc.freeze()
