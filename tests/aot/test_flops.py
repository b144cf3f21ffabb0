# SPDX-License-Identifier: Apache-2.0
"""FLOPs counted from the jaxpr against counts by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from dovetail.aot import count_flops, kernel_calls
from dovetail.models import CausalLM
from dovetail.module import Remat, abstract, call
from dovetail.nn import Attention, Block, GatedFeedForward, Repeat
from dovetail.ops import ReferenceAttention

A, B = jnp.ones((4, 8)), jnp.ones((8, 16))
PRODUCT = 2 * 4 * 8 * 16


def looped(a, b):
    return jax.lax.scan(lambda c, _: (c + jnp.sum(a @ b), None), 0.0, length=5)[0]


def branched(a, b):
    return jax.lax.cond(a[0, 0] > 0, lambda: a @ b, lambda: (a + a) @ b @ b.T @ b)


def checkpointed(a, b):
    return jax.checkpoint(jnp.dot)(a, b)


@pytest.mark.parametrize(
    "function, want",
    [
        (jnp.dot, PRODUCT),
        (jax.jit(jnp.dot), PRODUCT),
        (lambda a, b: jnp.einsum("ij,jk->ki", a, b), PRODUCT),
        (lambda a, b: a @ b + 1.0, PRODUCT),
        (looped, 5 * PRODUCT),
        (branched, 3 * PRODUCT),
        (checkpointed, PRODUCT),
        (jax.grad(lambda a, b: jnp.sum(a @ b), argnums=(0, 1)), 3 * PRODUCT),
        (lambda a, b: jax.vmap(jnp.dot, (0, None))(jnp.stack([a, a, a]), b), 3 * PRODUCT),
        (lambda a, b: a + 1.0, 0),
    ],
)
def test_matrix_products_are_counted_as_often_as_they_run(function, want):
    assert count_flops(function, A, B) == want


def test_convolution():
    x, kernel = jnp.ones((2, 10, 10, 3)), jnp.ones((3, 3, 3, 7))
    conv = lambda x, k: jax.lax.conv_general_dilated(  # noqa: E731
        x, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    assert count_flops(conv, x, kernel) == 2 * (2 * 8 * 8 * 7) * (3 * 3 * 3)


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_a_language_model_costs_two_operations_per_weight_and_token_plus_attention(loop):
    batch, time, dim, hidden, vocab, layers = 2, 16, 32, 48, 64, 3
    block = Block.Config(
        mixer=Attention.Config(num_heads=4, kernel=ReferenceAttention.Config()),
        ffn=GatedFeedForward.Config(hidden_dim=hidden),
    )
    stack = Repeat.Config(layer=block, num_layers=layers, loop=loop)
    model = CausalLM.Config(vocab_size=vocab, dim=dim, stack=stack).build()
    ids = jnp.zeros((batch, time), jnp.int32)
    got = count_flops(lambda p, ids: call(model, p, ids)[0], abstract(model), ids)
    weights = layers * (4 * dim * dim + 3 * dim * hidden) + dim * vocab
    attention = layers * 2 * (2 * batch * time * time * dim)
    assert got == 2 * batch * time * weights + attention


def test_remat_is_counted_where_it_is_in_the_program():
    attention = Attention.Config(num_heads=4, kernel=ReferenceAttention.Config())  # Blocks compute scores again too.
    block = Block.Config(dim=32, mixer=attention, ffn=GatedFeedForward.Config(hidden_dim=48), remat=Remat())
    stack = Repeat.Config(dim=32, layer=block, num_layers=2)
    model = CausalLM.Config(vocab_size=64, dim=32, stack=stack).build()
    plain = CausalLM.Config(vocab_size=64, dim=32, stack=stack.set_in("layer.remat", None)).build()
    ids = jnp.zeros((1, 8), jnp.int32)

    def training(model):
        return count_flops(jax.grad(lambda p: jnp.sum(call(model, p, ids)[0])), abstract(model))

    forward = count_flops(lambda p: call(plain, p, ids)[0], abstract(plain))
    assert training(plain) == 3 * forward
    assert training(model) > 3.5 * forward


def test_kernels_are_listed_wherever_they_are_called():
    def double(x, out):
        out[...] = x[...] + jnp.dot(x[...], x[...])

    def scanned(x):
        kernel = pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct((8, 8), x.dtype), interpret=True)
        return jax.lax.scan(lambda carry, _: (kernel(carry), None), x, length=3)[0]

    (found,) = kernel_calls(jax.make_jaxpr(scanned)(jnp.ones((8, 8))).jaxpr)
    assert found == (((8, 8),), 2 * 8**3)
