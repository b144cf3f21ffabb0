# SPDX-License-Identifier: Apache-2.0
"""On CPUs, every process of a run keeps its compiled programs.

JAX lets the first process alone write to its cache of programs, since all find them by the same key. On CPUs they do
not: the description of the devices, which is part of the key, is another one in each process. So the others compiled
anew at each start, which after a failure is most of the time until the next step.

This replaces a function of JAX that is not public: there is no option for it. A test sees that all processes find
their programs.
"""

import functools
import logging
from typing import Any

import jax
from jax._src import compilation_cache, compiler
from jax._src import config as jax_config

_log = logging.getLogger(__name__)


@functools.cache  # Once for a process.
def keep_programs_of_this_process() -> None:
    """Has this process write to JAX's cache of programs what it compiles, if it is not the first, which does."""
    if jax.process_index() > 0:
        compiler._cache_write = _write


def _write(
    key: str, seconds: float, name: str, backend: Any, executable: Any, host_callbacks: Any, *rest: Any, **more: Any
) -> None:
    if host_callbacks or seconds < jax_config.persistent_cache_min_compile_time_secs.value:
        return
    try:
        compilation_cache.put_executable_and_time(key, name, executable, backend, int(seconds))
    except Exception as e:  # Whatever it is, the program is there: only the next start takes longer.
        _log.warning("the compiled %s is not kept: %s", name, e)
