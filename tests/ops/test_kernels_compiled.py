# SPDX-License-Identifier: Apache-2.0
"""The compilers of TPUs and GPUs, where they are installed, take the kernels that are chosen for packed documents."""

import json

from support import compilers

# Run on its own: a compiler for other chips is told about them before JAX starts.
PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from jax.experimental import topologies
from dovetail.ops import (
    BlockwiseAttention, Causal, CudnnAttention, NeuronAttention, PreferredAttention, SameSegment, SlidingWindow,
    SplashAttention, Tokens, TritonAttention, kernel_choices,
)
from dovetail.hardware import gpu_topology, hardware, tpu_topology
from dovetail.parallel import GatheredAttention, Mesh

KERNELS = (SplashAttention, CudnnAttention, TritonAttention, NeuronAttention, BlockwiseAttention)

def facts(name, mesh, key_dim, value_dim, window):
    topology = tpu_topology if name.startswith("tpu") else gpu_topology
    devices = topologies.get_topology_desc(**topology(hardware(name))).devices
    kernel = PreferredAttention.Config(kernels=tuple(kernel.Config() for kernel in KERNELS))
    kernel = GatheredAttention.Config(inner=kernel).build(path="kernel")
    mask = Causal() & SameSegment() & SlidingWindow(window) if window else Causal() & SameSegment()

    def loss(q, k, v, segments):
        tokens = Tokens(jnp.arange(q.shape[1])[None], segments)
        out = kernel(q, k, v, mask=mask, q_tokens=tokens, k_tokens=tokens, scale=0.1, aligned=True)
        return jnp.sum(out.astype(jnp.float32))

    shapes = [(2, 512, 4, key_dim), (2, 512, 2, key_dim), (2, 512, 2, value_dim)]
    q, k, v = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    with jax.set_mesh(Mesh(**mesh).on(devices)), kernel_choices() as choices:
        segments = jax.ShapeDtypeStruct((2, 512), jnp.int32)
        text = jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, k, v, segments).compile().as_text()
    calls = text.count('custom_call_target="tpu_custom_call"') + text.count('custom_call_target="__gpu$xla.gpu.triton"')
    return [[choice.kernel for choice in choices], calls]

print(json.dumps([facts(*case) for case in json.loads(sys.argv[1])]))
"""


def run(platform, cases):
    return json.loads(compilers.run(platform, PROGRAM, json.dumps(cases)).splitlines()[-1])


def test_the_compiler_for_tpus_takes_splash_on_a_mesh_with_rows_heads_or_sequences_split():
    cases = [
        ("tpu-v5e-4", {"data": 2, "tensor": 2}, 192, 128, 0),
        ("tpu-v5e-4", {"data": 2, "seq": 2}, 64, 64, 200),
    ]
    assert run("tpu", cases) == [[["SplashAttention"], 2]] * 2  # Forwards, and backwards.


def test_the_compiler_for_gpus_takes_the_pallas_kernel_for_packed_documents():
    # Backwards in two steps.
    assert run("cuda", [("gpu-h100-2", {"fsdp": 2}, 80, 80, 0)]) == [[["TritonAttention"], 3]]
