# SPDX-License-Identifier: Apache-2.0
"""Hardware as compilers want it described, to compile for chips that are not there.

Both functions return keyword arguments of `jax.experimental.topologies.get_topology_desc`.
"""

import math
from typing import Any

from dovetail.config import ConfigError

from ._catalogue import CHIPS, Hardware

# The matrix rates that a description lists, by the number that XLA gives a dtype (xla_data.proto).
_DTYPES = {"bfloat16": (10, 16), "int8": (2,), "float8": (19, 20)}  # float16 too; float8 is e5m2 and e4m3fn.


def tpu_topology(hw: Hardware) -> dict[str, Any]:
    """Returns the topology of TPUs.

    With the links that close the rings of a torus: without them, the compiler plans collectives for another machine.
    Arrange the devices with `jax.experimental.mesh_utils`, as `Mesh.on` does, for the same reason.
    """
    torus = hw.chip.torus
    if torus is None:
        raise ConfigError(_no_compiler(hw, "TPU", [chip.name for chip in CHIPS.values() if chip.torus]))
    return {
        "platform": "tpu",
        "topology_name": f"{torus.compiler_name}:{'x'.join(map(str, hw.shape))}",
        "chip_config_name": torus.chip_config,
        "chips_per_host_bounds": (*hw.host_shape, 1)[:3],
        "num_slices": hw.slices,
        "wrap": (*hw.wrap, False)[:3],
    }


def gpu_topology(hw: Hardware) -> dict[str, Any]:
    """Returns the topology of NVIDIA GPUs: a description of one, and how many are in how many hosts."""
    gpus = math.prod(hw.host_shape)
    return {"platform": "cuda", "target_config": gpu_target(hw), "topology": f"1x{hw.num_hosts}x{gpus}"}


def gpu_target(hw: Hardware) -> str:
    """Returns the description of an NVIDIA GPU: a text of XLA's GpuTargetConfigProto."""
    chip, target = hw.chip, hw.chip.target
    if target is None:
        raise ConfigError(_no_compiler(hw, "NVIDIA GPU", [chip.name for chip in CHIPS.values() if chip.target]))
    major, minor = target.capability
    # From Hopper on, compilers use instructions that only this very chip has: sm_90a, not sm_90.
    features = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
    rates = "".join(
        f"    rate_infos {{ key: {key} value {{ clock_rate_ghz: {target.matrix_clock_ghz} units_per_core: 4 "
        f"ops_per_clock: {ops} }} }}\n"
        for dtype, ops in target.matrix_ops.items()
        for key in _DTYPES[dtype]
    )
    # Without a version of CUDA, the compiler takes it for one that cannot multiply 8-bit floating point.
    return f"""\
platform_name: "CUDA"
runtime_version {{ major: 12 minor: 9 patch: 0 }}
device_description_str: "{target.description}"
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  core_count: {chip.cores}
  fpus_per_core: {target.fpus_per_core}
  clock_rate_ghz: {target.clock_ghz}
  memory_bandwidth: {chip.hbm_bandwidth:.0f}
  device_memory_size: {chip.hbm_bytes}
  l2_cache_size: {target.l2_bytes}
  shared_memory_per_core: {target.shared_bytes_per_core}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {target.shared_bytes_per_block}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  matrix_unit_description {{
{rates}  }}
}}
"""


def _no_compiler(hw: Hardware, kind: str, known: list[str]) -> str:
    return (
        f"{hw.name}: {hw.chip.vendor} is no {kind} that can be compiled for without it. Those are: {', '.join(known)}."
    )
