# SPDX-License-Identifier: Apache-2.0
"""The compilers of TPUs and GPUs, where they are installed, take the kernels chosen for packed documents and pages."""

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


PAGES = """
import json, sys
import jax, jax.numpy as jnp
from jax.experimental import topologies
from dovetail.aot import Hlo, copied_bytes
from dovetail.ops import (
    EMPTY, Causal, PagedAttention, PreferredAttention, RaggedPagedAttention, SlidingWindow, Tokens,
    TritonPagedAttention, Written, from_pairs, kernel_choices,
)
from dovetail.hardware import gpu_topology, hardware, tpu_topology
from dovetail.parallel import GatheredAttention, Mesh

def facts(name, mesh, rows, time, heads, dim, window, soft_cap, paired):
    topology = tpu_topology if name.startswith("tpu") else gpu_topology
    devices = topologies.get_topology_desc(**topology(hardware(name))).devices
    kernels = (RaggedPagedAttention.Config(), TritonPagedAttention.Config(), PagedAttention.Config())
    kernel = GatheredAttention.Config(inner=PreferredAttention.Config(kernels=kernels)).build(path="kernel")
    mask = Causal() & SlidingWindow(window) & Written() if window else Causal() & Written()
    size, width = 16, 16

    def attend(q, pages, table, start):  # Either in pairs, or keys alone, which are values, too.
        index = start[:, None] + jnp.arange(time)
        places = jnp.arange(size * width)
        known = jnp.where(places <= index[:, -1:], places, EMPTY)
        k, v = (x[..., :dim] for x in (from_pairs(pages) if paired else (pages, pages)))
        common = {"mask": mask, "scale": 0.1, "aligned": False, "soft_cap": soft_cap, "pages": table}
        pairs = pages if paired else None
        return kernel(q, k, v, pairs=pairs, q_tokens=Tokens(index), k_tokens=Tokens(known), **common)

    q = jax.ShapeDtypeStruct((rows, time, heads[0], dim), jnp.bfloat16)
    mesh = Mesh(**mesh).on(devices)
    with jax.set_mesh(mesh), kernel_choices() as choices:
        lies = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, None, "tensor"))
        shape = (512, size, 2 * heads[1], -(-dim // 128) * 128) if paired else (512, size, heads[1], dim)
        pages = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=lies)
        others = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((rows, width), (rows,))]
        text = jax.jit(attend).lower(q, pages, *others).compile().as_text()
    held = pages.size * 2 // mesh.shape["tensor"]
    calls = text.count('custom_call_target="tpu_custom_call"') + text.count('custom_call_target="__gpu$xla.gpu.triton"')
    return [choices[0].kernel, calls, copied_bytes(Hlo(text)) > held // 4]

print(json.dumps([facts(*case) for case in json.loads(sys.argv[1])]))
"""


def run_pages(platform, cases):
    return json.loads(compilers.run(platform, PAGES, json.dumps(cases)).splitlines()[-1])


def test_the_compiler_for_tpus_takes_the_ragged_kernel_which_copies_no_pages_that_lie_in_pairs():
    cases = [
        ("tpu-v5p-8", {"tensor": 4}, 16, 1, (32, 32), 128, 0, None, True),
        ("tpu-v5p-8", {"tensor": 4}, 1, 64, (32, 8), 128, 40, 30.0, True),
        ("tpu-v6e-8", {"data": 2, "tensor": 4}, 16, 1, (32, 4), 128, 0, None, True),
        ("tpu-v6e-4", {"tensor": 4}, 4, 1, (32, 8), 64, 0, None, True),
    ]
    assert run_pages("tpu", cases) == [["RaggedPagedAttention", 1, False]] * 4


def test_other_heads_are_read_without_it_and_no_pages_are_copied():
    cases = [("tpu-v5p-8", {"tensor": 4}, 16, 1, (32, 32), 256, 0, None, True)]
    assert run_pages("tpu", cases) == [["PagedAttention", 0, False]]


def test_the_compiler_for_gpus_takes_the_kernel_for_pages_which_copies_none():
    cases = [
        ("gpu-h100-2", {"tensor": 2}, 16, 1, (32, 8), 128, 0, None, False),
        ("gpu-h100-2", {"tensor": 2}, 4, 5, (8, 8), 64, 40, 30.0, False),
        ("gpu-b200-8", {"tensor": 8}, 4, 1, (32, 8), 128, 0, None, False),
    ]
    assert run_pages("cuda", cases) == [["TritonPagedAttention", 1, False]] * 3


def test_prompts_on_gpus_are_read_without_it_and_no_pages_are_copied():
    cases = [("gpu-h100-2", {"tensor": 2}, 1, 64, (8, 8), 128, 0, None, False)]
    assert run_pages("cuda", cases) == [["PagedAttention", 0, False]]
