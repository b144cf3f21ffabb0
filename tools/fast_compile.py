# SPDX-License-Identifier: Apache-2.0
"""Settings with which programs compile fast and run slowly: for tests and pages, which run each program once or twice.

What they compute is what users compute, but for rounding: tests/contracts/test_optimized.py.
"""

import collections
import io
from typing import Any

_PROGRAMS = 256  # That are kept, with what they need. Most that come again come soon.

VARIABLES = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # Programs do not say which lines of Python they come from.
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE"
    " --xla_cpu_parallel_codegen_split_count=1",
}


def share_context() -> None:
    """Lowers all programs in one MLIR context: JAX makes one for each, which takes longer than to lower a small one."""
    from jax._src.interpreters import mlir  # JAX has no public way to do so.

    context = mlir.make_ir_context()
    mlir.make_ir_context = lambda: context


def share_programs() -> None:
    """Compiles programs that are equal to the letter once in a process: tests build the same model again and again."""
    from jax._src import compiler  # JAX keeps programs by the function that they are from, or writes files.

    compile_and_load = compiler.backend_compile_and_load
    known: collections.OrderedDict[Any, Any] = collections.OrderedDict()

    def compile_once(backend: Any, module: Any, executable_devices: Any, options: Any, host_callbacks: Any) -> Any:
        if host_callbacks:  # They belong to one program.
            return compile_and_load(backend, module, executable_devices, options, host_callbacks)
        text = io.BytesIO()
        module.operation.write_bytecode(text)
        key = (id(backend), text.getvalue(), tuple(d.id for d in executable_devices), options.SerializeAsString())
        if key not in known:
            known[key] = compile_and_load(backend, module, executable_devices, options, host_callbacks)
        known.move_to_end(key)
        if len(known) > _PROGRAMS:
            known.popitem(last=False)
        return known[key]

    compiler.backend_compile_and_load = compile_once
