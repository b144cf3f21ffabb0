# SPDX-License-Identifier: Apache-2.0
"""Settings with which programs compile fast and run slowly: for tests and pages, which run each program once or twice.

What they compute is what users compute, but for rounding: tests/contracts/test_optimized.py.
"""

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
