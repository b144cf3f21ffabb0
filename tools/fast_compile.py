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
