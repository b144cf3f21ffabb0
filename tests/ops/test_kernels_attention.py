# SPDX-License-Identifier: Apache-2.0
"""Attention kernels of TPUs, GPUs and Trainium: the definition where they run, a reason where they do not.

Here, Pallas kernels are interpreted. `test_kernels_compiled.py` compiles them.
"""

import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

import dovetail.ops
from dovetail.config import ConfigError, from_json, replace_all, to_json
from dovetail.module import abstract
from dovetail.nn import with_remat
from dovetail.ops import (
    AttentionInputs,
    AttentionKernel,
    Causal,
    CudnnAttention,
    Full,
    LinearBias,
    NativePagedAttention,
    NeuronAttention,
    Part,
    Parts,
    Prefix,
    RaggedPagedAttention,
    ReferenceAttention,
    SameSegment,
    Scoring,
    SlidingWindow,
    SplashAttention,
    Tokens,
    TritonAttention,
    TritonPagedAttention,
)
from dovetail.parallel import GatheredAttention
from dovetail.train import gradients_of
from support import reference
from support.models import lm
from support.numeric import FLOAT32, assert_close, check, normal
from support.programs import equations

T = 256
CAUSAL = Causal()
SPLASH = SplashAttention.Config(interpret=True, block_q=128, block_kv=128)
TRITON = TritonAttention.Config(interpret=True)
RAGGED = RaggedPagedAttention.Config(interpret=True)  # Its promises are in `test_paged.py`,
PAGED = TritonPagedAttention.Config(interpret=True)  # and so are those of this one,
NATIVE = NativePagedAttention.Config()  # and of this.
KERNELS = [SPLASH, TRITON, CudnnAttention.Config(), NeuronAttention.Config(), RAGGED, PAGED, NATIVE]
SEGMENTS = np.repeat([[1, 2, 3, 0], [4, 4, 5, 5]], [100, 60, 76, 20], axis=1)  # The first row ends with padding.
CASES = [
    # Kernel, mask, heads, key heads, key dim, value dim, soft cap, sinks.
    (SPLASH, Causal() & SameSegment(), 4, 2, 16, 16, None, False),
    (SPLASH, SameSegment() & SlidingWindow(70) & Causal(), 2, 1, 24, 16, 2.0, True),
    (SPLASH.set(max_copies=1), SlidingWindow(90) & SlidingWindow(150), 2, 2, 8, 8, None, False),
    (SPLASH.set(block_kv=256, block_kv_compute=128), SameSegment(), 2, 2, 8, 16, None, False),
    (TRITON, Causal() & SameSegment(), 4, 2, 16, 16, None, False),
    (TRITON, Full() & SameSegment(), 1, 1, 24, 16, None, False),
]


def tokens_of(length: int = T, segments: Any = SEGMENTS) -> Tokens:
    return Tokens(jnp.arange(length)[None], None if segments is None else jnp.asarray(segments))


def sees(mask):
    """Returns who sees whom, `[B, T, T]`, by the definition of each mask."""
    q, k = np.arange(T)[None, :, None], np.arange(T)[None, None, :]
    text, seen = str(mask), np.ones((2, T, T), bool)
    for size in re.findall(r"size=(\d+)", text):
        seen &= q - k < int(size)
    seen &= (k <= q) | ("Causal" not in text)
    return seen & ((SEGMENTS[:, :, None] == SEGMENTS[:, None, :]) | ("SameSegment" not in text))


def test_every_kernel_for_hardware_has_joined():
    there = {c for _, c in inspect.getmembers(dovetail.ops, inspect.isclass) if issubclass(c, AttentionKernel)}
    assert {type(cfg.build()) for cfg in KERNELS} == {c for c in there if "ops.kernels" in c.__module__}
    assert all(from_json(to_json(cfg)) == cfg for cfg in KERNELS)


@pytest.mark.parametrize("cfg, mask, heads, key_heads, key_dim, value_dim, soft_cap, sinks", CASES)
def test_a_kernel_is_the_definition(cfg, mask, heads, key_heads, key_dim, value_dim, soft_cap, sinks):
    kernel, tokens = cfg.build(), tokens_of()
    common = {"mask": mask, "q_tokens": tokens, "k_tokens": tokens, "scale": 0.3, "aligned": True}

    def run(q, k, v, sinks=None):
        assert kernel.supports(AttentionInputs(q, k, v, tokens, tokens, None, sinks), Scoring(mask, 0.3, None), True)
        return kernel(q, k, v, **common, soft_cap=soft_cap, sinks=sinks)

    def definition(q, k, v, sinks=None):
        return reference.attend(q, k, v, sees(mask), 0.3, soft_cap=soft_cap, sinks=sinks)

    shapes = [(2, T, heads, key_dim), (2, T, key_heads, key_dim), (2, T, key_heads, value_dim)]
    args = [normal(i, shape) for i, shape in enumerate(shapes)]
    check(run, definition, *args, *([normal(9, (heads,))] if sinks else []))


@pytest.mark.parametrize("mask", [SlidingWindow(90) & Causal() & SameSegment(), SameSegment()], ids=str)
def test_splash_attends_from_parts_of_a_sequence(mask):
    """Two devices, which have the first and last quarter of it, and the middle, if the mask makes a difference."""
    args = [normal(i, (1, 2 * T, heads, 8)) for i, heads in enumerate((2, 1, 1))]
    tokens = tokens_of(2 * T, SEGMENTS.reshape(1, -1))

    def gradients(cfg):
        def loss(q, k, v):
            common = {"mask": mask, "q_tokens": tokens, "k_tokens": tokens, "scale": 0.3, "aligned": True}
            return jnp.sum(jnp.sin(cfg.build()(q, k, v, **common)))

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*args)

    with jax.set_mesh(jax.make_mesh((2,), ("seq",), axis_types=(AxisType.Auto,))):
        got = gradients(GatheredAttention.Config(inner=SPLASH))
    assert_close(got, gradients(ReferenceAttention.Config()), FLOAT32)


@pytest.mark.parametrize(
    "policy, forward", [("save_all", 1), ("save_dots", 1), ("save_qkvo", 1), ("offload_qkvo", 1), ("full", 2)]
)
@pytest.mark.parametrize("cfg", [SPLASH, TRITON], ids=["splash", "triton"])
def test_the_forward_kernel_runs_once_for_each_layer_where_its_result_is_kept(cfg, policy, forward):
    model = with_remat(replace_all(AttentionKernel.Config, cfg)(lm(num_layers=3)), policy).build(path="model")
    step = gradients_of(model, num_microbatches=1, dtype=None)
    batch = {
        name: jax.ShapeDtypeStruct((2, 128), jnp.float32 if name == "weights" else jnp.int32)
        for name in ("tokens", "targets", "weights", "positions", "segments")
    }
    program = jax.make_jaxpr(step)(abstract(model), batch, None)
    calls = [(eqn, times) for eqn, times in equations(program.jaxpr) if eqn.primitive.name == "pallas_call"]
    names = [(eqn.params["name"], times) for eqn, times in calls]
    assert sum(times for name, times in names if "fwd" in name or "forward" in name) == 3 * forward
    assert sum(times for name, times in names if "dkv" in name or name == "mha_backward") == 3


@pytest.mark.parametrize("cfg", [SPLASH, TRITON], ids=["splash", "triton"])
def test_only_results_and_sums_are_kept_under_the_name_of_what_comes_out(cfg):
    """Not the keys that a kernel repeats or transposes: these are made again from those that a layer keeps."""
    tokens = tokens_of()

    def loss(q, k, v):
        common = {"mask": Causal() & SameSegment(), "q_tokens": tokens, "k_tokens": tokens, "scale": 0.3}
        return jnp.sum(cfg.build()(q, k, v, **common, aligned=True))

    args = [jnp.zeros((2, T, heads, 8)) for heads in (4, 2, 2)]
    program = jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*args)
    kept = [eqn.outvars[0].aval for eqn, _ in equations(program.jaxpr) if eqn.primitive.name == "name"]
    assert sorted(aval.size for aval in kept) == [2 * 4 * T, 2 * 4 * T * 8]


def on(platform, axes=1):
    """Makes programs be for another platform; nothing could run there."""
    device = AbstractDevice(device_kind=platform, num_cores=1, platform=platform)
    mesh = AbstractMesh((axes,), ("data",), axis_types=(AxisType.Auto,), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


def reason(cfg, mask=CAUSAL, length=T, dims=(8, 8), dtype=jnp.bfloat16, segments=None, aligned=True, **asked):
    key_dim, value_dim = dims
    q, k, v = (jnp.zeros((2, length, 2, dim), dtype) for dim in (key_dim, key_dim, value_dim))
    tokens = tokens_of(length, segments)
    inputs = AttentionInputs(q, k, v, tokens, tokens, asked.get("bias"), asked.get("sinks"))
    return cfg.build().supports(inputs, Scoring(mask, 1.0, asked.get("soft_cap")), aligned).reason


def test_a_kernel_refuses_platforms_that_it_is_not_for():
    for cfg, platform in zip(KERNELS[:-1], ("tpu", "cuda", "cuda", "neuron", "tpu", "cuda"), strict=True):
        cfg = cfg.set(interpret=False) if hasattr(cfg, "interpret") else cfg
        assert reason(cfg) == f"it runs on {platform}, this is cpu"
    with on("gpu"):
        assert reason(SPLASH.set(interpret=False)) == "it runs on tpu, this is cuda"
        assert reason(NATIVE) == "it runs on cpu, this is cuda"


def test_a_kernel_that_the_compiler_cannot_split_refuses_a_mesh_outside_of_a_shard_map():
    with on("tpu", axes=2):
        assert reason(SPLASH) == "the compiler cannot split it along the mesh axis data"


DIFFERENT = "queries and keys are different tokens"
PARTS = Parts((Part((0, 192), 64), Part((64, 128), 64)), jnp.array(0))
REFUSALS = [
    (SPLASH, {"aligned": False}, DIFFERENT),
    (SPLASH, {"aligned": PARTS}, "64 queries in a row are not a multiple of 128"),
    (SPLASH, {"length": 200}, "200 queries in a row are not a multiple of 128"),
    (SPLASH, {"mask": Causal() | Prefix()}, "splash does not offer the mask Or(a=Causal(), b=Prefix())"),
    (SPLASH, {"bias": LinearBias(jnp.ones(2))}, "splash does not offer a bias"),
    (TRITON, {"aligned": PARTS}, DIFFERENT),
    (TRITON, {"length": 64}, "64 tokens in a row are not a multiple of 128"),
    (TRITON, {"dims": (8, 16)}, "keys have dim 8, values 16: expected at most 256, and no more in values"),
    (TRITON, {"mask": Causal() & SlidingWindow(9)}, "the Pallas kernel for GPUs does not offer a window"),
    (TRITON, {"sinks": jnp.ones(2)}, "the Pallas kernel for GPUs does not offer sinks"),
    (CudnnAttention.Config(), {"aligned": False}, DIFFERENT),
    (CudnnAttention.Config(), {"dtype": jnp.float32}, "cuDNN does not offer float32"),
    (
        CudnnAttention.Config(),
        {"dims": (192, 128)},
        "keys have dim 192, values 128: expected one multiple of 8 up to 128",
    ),
    (CudnnAttention.Config(), {"mask": SlidingWindow(9)}, "cuDNN does not offer a window"),
    (CudnnAttention.Config(), {"soft_cap": 1.0}, "cuDNN does not offer soft_cap"),
    (
        CudnnAttention.Config(),
        {"mask": Causal() & SameSegment(), "segments": SEGMENTS},
        "cuDNN does not offer packed documents",
    ),
    (CudnnAttention.Config(), {"mask": Causal() & SlidingWindow(9) & SameSegment()}, "the library cuDNN is not found"),
    (NeuronAttention.Config(), {}, "the package neuronxcc is not installed"),
]


@pytest.mark.parametrize("cfg, asked, why", REFUSALS)
def test_a_kernel_refuses_what_it_does_not_offer_and_says_what(cfg, asked, why):
    platform = {SplashAttention.Config: "tpu", NeuronAttention.Config: "neuron"}.get(type(cfg), "gpu")
    with on(platform):
        assert reason(cfg, **asked) == why


def test_blocks_of_splash_are_multiples_of_what_a_register_holds():
    with pytest.raises(ConfigError, match=r"^mixer\.kernel: block_kv is 100, expected a multiple of 128\.$"):
        SplashAttention.Config(block_kv=100).build(path="mixer.kernel")
