# SPDX-License-Identifier: Apache-2.0
"""What the compilers of TPUs and GPUs, where they are installed, make of products in 8 bits."""

import json

import pytest

from support import compilers

# Run on its own: a compiler for other chips is told about them before JAX starts.
PROGRAM = """
import json, re, sys
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from dovetail.module import call
from dovetail.nn import Float8Linear, Int8Linear
from dovetail.hardware import gpu_topology, hardware, tpu_topology

name, kind = sys.argv[1:]
topology = (tpu_topology if name.startswith("tpu") else gpu_topology)(hardware(name))
device = SingleDeviceSharding(topologies.get_topology_desc(**topology).devices[0])
ends = {"in_shape": (512,), "out_shape": (256,), "in_axes": (None,), "out_axes": (None,)}
linear = {"int8": Int8Linear, "float8": Float8Linear}[kind].Config(gradients="all", **ends).build()

def gradients(weight, x, slope):
    y, pull = jax.vjp(lambda weight, x: call(linear, {"weight": weight}, x)[0], weight, x)
    return y, pull(slope)

args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=device) for shape in ((512, 256), (1024, 512), (1024, 256))]
options = {} if name.startswith("tpu") else {"xla_gpu_enable_triton_gemm": False}  # Else Triton's, which XLA may tune.
text = jax.jit(gradients).lower(*args).compile(compiler_options=options).as_text()
patterns = {"cublas": r'"__cublas\\$lt\\$matmul\\$f8"', "int32": r" = s32\\[[0-9,]+\\]\\S* (?:dot|convolution)\\("}
print(json.dumps({name: len(re.findall(pattern, text)) for name, pattern in patterns.items()}))
"""


@pytest.mark.parametrize(
    "platform, name, kind, product",
    [
        ("tpu", "tpu-v5e-4", "int8", "int32"),
        ("tpu", "tpu-v6e-4", "int8", "int32"),
        ("cuda", "gpu-h100-1", "float8", "cublas"),
        ("cuda", "gpu-b200-1", "float8", "cublas"),
    ],
)
def test_all_three_products_are_of_8_bits(platform, name, kind, product):
    printed = compilers.run(platform, PROGRAM, name, kind)
    assert json.loads(printed.splitlines()[-1])[product] == 3
