# SPDX-License-Identifier: Apache-2.0
"""What is handed to Neuron's kernels, and what is made of their results.

The packages are not here, so that a stand-in takes their place: it checks layouts as their documentation gives them,
and computes in JAX. It shows nothing about the kernels themselves.
"""

import dataclasses
import importlib.machinery
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from dovetail.ops import (
    AttentionInputs,
    BlockwiseAttention,
    Causal,
    Full,
    NeuronAttention,
    PreferredAttention,
    SameSegment,
    Scoring,
    SlidingWindow,
    Tokens,
    kernel_choices,
)
from support import reference
from support.numeric import check, normal

T = 512
TOKENS = Tokens(jnp.arange(T)[None])


class Kernel:
    """A kernel that is called as `kernel[grid](...)`."""

    def __init__(self, function):
        self.function, self.grids = function, []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return self.function


@dataclasses.dataclass(frozen=True)
class Cores:
    """Physical cores of a logical one, as one side of a grid."""

    number: int
    heads: int = 1

    def __mul__(self, heads):
        return Cores(self.number, heads)


@dataclasses.dataclass
class FlashConfig:
    seq_tile_size: int
    training: bool


def attend(q, k, v, scale, causal):
    """Takes `[B, H, K, T]` for queries and keys, `[B, H, T, K]` for values; key heads are shared."""
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = jnp.einsum("bhkt,bhks->bhts", q, k) * scale
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool)) if causal else True
    scores = jnp.where(seen, scores, -1e30)
    return jax.nn.softmax(scores) @ v, jax.nn.logsumexp(scores, axis=-1)


def flash_fwd(q, k, v, seed, *, softmax_scale, use_causal_mask, mixed_precision, dropout_p, config):
    batch, heads, dim, length = q.shape
    assert v.shape == (batch, k.shape[1], length, dim)
    assert (seed.shape, mixed_precision, dropout_p, config.training) == ((1,), True, 0.0, True)
    assert length % config.seq_tile_size == 0
    out, sums = attend(q, k, v, softmax_scale, use_causal_mask)
    return out, sums.reshape(batch, heads, length // 128, 128).swapaxes(2, 3)


def flash_attn_bwd(q, k, v, out, dy, sums, seed, *, softmax_scale, use_causal_mask, mixed_precision, dropout_p):
    batch, heads, _, length = q.shape
    assert k.shape == v.shape == out.shape == dy.shape == q.shape
    assert sums.shape == (batch, heads, 128, length // 128)
    assert (seed.shape, mixed_precision, dropout_p) == ((1,), True, 0.0)
    want, pull = jax.vjp(lambda q, k, v: attend(q, k, v.swapaxes(2, 3), softmax_scale, use_causal_mask)[0], q, k, v)
    # That these are the results of the forward kernel shows in the gradients, as in those of the real one.
    return jax.tree.map(lambda x: x + 0 * jnp.sum(out.swapaxes(2, 3) - want), pull(dy.swapaxes(2, 3)))


def on(kind):
    device = AbstractDevice(device_kind=kind, num_cores=None, platform="neuron")
    mesh = AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


@pytest.fixture
def stand_in(monkeypatch):
    """Installs the stand-in, and makes programs be for Trainium; returns its kernels."""
    kernels = types.SimpleNamespace(flash_fwd=Kernel(flash_fwd), flash_attn_bwd=Kernel(flash_attn_bwd))
    packages = ("neuronxcc", "neuronxcc.nki", "neuronxcc.nki.kernels", "neuronxcc.nki.kernels.attention")
    for name in (*packages, "neuronxcc.nki.language", "jax_neuronx"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    attention = sys.modules["neuronxcc.nki.kernels.attention"]
    vars(attention).update(vars(kernels), FlashConfig=FlashConfig)
    vars(sys.modules["neuronxcc.nki.language"])["nc"] = lambda cores: Cores(cores)
    with on("NC_v2"):
        yield kernels


def attended(cfg, mask, tokens=TOKENS):
    common = {"mask": mask, "q_tokens": tokens, "k_tokens": tokens, "scale": 0.3, "aligned": True}
    return lambda q, k, v: cfg.build(path="kernel")(q, k, v, **common)


@pytest.mark.parametrize("mask", [Causal(), Full() & SameSegment()], ids=str)
def test_shapes_and_layouts_are_those_of_the_kernels(stand_in, mask):
    seen = np.tril(np.ones((1, T, T), bool)) if mask == Causal() else np.ones((1, T, T), bool)
    args = [normal(i, (1, T, heads, 8)) for i, heads in enumerate((4, 2, 2))]
    run = attended(NeuronAttention.Config(), mask)
    check(run, lambda q, k, v: reference.attend(q, k, v, seen, 0.3), *args)
    assert stand_in.flash_fwd.grids == [(1, 2)]  # Key heads are shared forwards, not backwards.
    assert stand_in.flash_attn_bwd.grids == [(1, 4)]


def test_heads_are_dealt_out_to_the_cores_of_trainium_2(stand_in):
    args = [normal(i, (1, T, heads, 8)) for i, heads in enumerate((6, 3, 3))]
    with on("NC_v3d"):
        jax.eval_shape(jax.grad(lambda *args: jnp.sum(attended(NeuronAttention.Config(), Causal())(*args))), *args)
    assert stand_in.flash_fwd.grids == [(1, 3)]  # An odd number is left to one core.
    assert stand_in.flash_attn_bwd.grids == [(1, Cores(2, 3))]


@pytest.mark.usefixtures("stand_in")
def test_on_trainium_it_is_chosen_for_rows_of_one_document():
    cfg = PreferredAttention.Config(kernels=(NeuronAttention.Config(), BlockwiseAttention.Config()))
    args = [normal(i, (1, T, 2, 8)) for i in range(3)]
    packed = Tokens(TOKENS.index, jnp.ones((1, T), jnp.int32))
    with kernel_choices() as choices:
        jax.eval_shape(attended(cfg, Causal() & SameSegment()), *args)
        jax.eval_shape(attended(cfg, Causal() & SameSegment(), packed), *args)
    assert [str(choice) for choice in choices] == [
        "kernel: NeuronAttention",
        "kernel: BlockwiseAttention; not NeuronAttention: Neuron's kernel does not offer packed documents",
    ]


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    "mask, length, dim, why",
    [
        (Causal(), 640, 8, "640 tokens in a row are not a multiple of 512"),
        (Causal(), 512, 192, "keys have dim 192, values 192: expected one dim up to 128"),
        (Causal() & SlidingWindow(9), 512, 8, "Neuron's kernel does not offer a window"),
    ],
)
def test_it_refuses_what_the_kernels_do_not_offer(mask, length, dim, why):
    x, tokens = jnp.zeros((1, length, 1, dim)), Tokens(jnp.arange(length)[None])
    inputs = AttentionInputs(x, x, x, tokens, tokens, None, None)
    assert NeuronAttention.Config().build().supports(inputs, Scoring(mask, 1.0, None), True).reason == why
