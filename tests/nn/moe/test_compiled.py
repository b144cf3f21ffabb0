# SPDX-License-Identifier: Apache-2.0
"""What the compilers of TPUs and GPUs, where they are installed, make of experts on a mesh."""

import json

import pytest

from support import compilers

# Run on its own: a compiler for other chips is told about them before JAX starts.
PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec as P
from dovetail.config import modify
from dovetail.module import ParamSpec, call, specs
from dovetail.nn import MoEFeedForward
from dovetail.ops import (
    BlockedGroupedMatmul, GroupedMatmul, MegabloxGroupedMatmul, PreferredGroupedMatmul, TritonGroupedMatmul,
    kernel_choices,
)
from dovetail.hardware import gpu_topology, hardware, tpu_topology
from dovetail.parallel import Mesh, layout_of

name = sys.argv[1]
topology = (tpu_topology if name.startswith("tpu") else gpu_topology)(hardware(name))
mesh = Mesh(fsdp=2, expert=2)
layout, devices = layout_of(mesh), mesh.on(topologies.get_topology_desc(**topology).devices)
kernels = (MegabloxGroupedMatmul.Config(), TritonGroupedMatmul.Config(), BlockedGroupedMatmul.Config())
cfg = MoEFeedForward.Config(dim=256, hidden_dim=128, num_experts=4)
model = modify(GroupedMatmul.Config, lambda _: PreferredGroupedMatmul.Config(kernels=kernels))(cfg).build()

def like(shape, where):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(devices, where))

is_spec = lambda x: isinstance(x, ParamSpec)
params = jax.tree.map(lambda spec: like(spec.shape, layout.partition(spec)), specs(model), is_leaf=is_spec)
loss = lambda params, x: call(model, params, x, layout=layout)[0].astype(jnp.float32).sum()
with jax.set_mesh(devices), kernel_choices() as choices:
    x = like((8, 64, 256), P(("fsdp", "expert")))
    text = jax.jit(jax.grad(loss, (0, 1))).lower(params, x).compile().as_text()
called = [line for line in text.splitlines() if "tpu_custom_call" in line or "__gpu$xla.gpu.triton" in line]
print(json.dumps([sorted({choice.kernel for choice in choices}), len(called)]))
"""


@pytest.mark.parametrize(
    "platform, name, kernel",
    [
        ("tpu", "tpu-v5e-4", "MegabloxGroupedMatmul"),
        pytest.param("tpu", "tpu-v6e-4", "MegabloxGroupedMatmul", marks=pytest.mark.slow),
        ("cuda", "gpu-h100-4", "TritonGroupedMatmul"),
        pytest.param("cuda", "gpu-b200-4", "TritonGroupedMatmul", marks=pytest.mark.slow),
    ],
)
def test_experts_on_a_mesh_multiply_by_the_kernel_of_the_hardware(platform, name, kernel):
    printed = compilers.run(platform, PROGRAM, name)
    chosen, calls = json.loads(printed.splitlines()[-1])
    assert chosen == [kernel]
    # Gate, up and down, each forward and two gradients; further rounds, in a loop, compute gate and up once more.
    assert calls == 9 + 11
