# SPDX-License-Identifier: Apache-2.0
"""Attention kernels are the definition, for every mask and every change of the scores.

Shape letters: B batch, T queries, S keys, H query heads, G key heads, K head dim.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.ops import (
    BlockwiseAttention,
    Causal,
    Full,
    LinearBias,
    Prefix,
    ReferenceAttention,
    SameSegment,
    Tokens,
)
from support import reference
from support.attention import LENGTH, SCALE, TOKENS, definition_of, kernel_of, qkv
from support.numeric import BFLOAT16, FLOAT32, check, normal


@pytest.mark.parametrize("mask", [Full(), Causal(), SameSegment() & (Causal() | Prefix())], ids=str)
def test_reference_attention_is_the_definition(mask):
    check(kernel_of(ReferenceAttention.Config(), mask), definition_of(mask), *qkv())


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 1), (6, 3)])
def test_attention_is_the_definition_for_any_groups_of_heads(heads, kv_heads):
    check(kernel_of(ReferenceAttention.Config(), Causal()), definition_of(Causal()), *qkv(heads, kv_heads))


def test_attention_in_bfloat16_keeps_the_dtype_and_rounds_little():
    # Weights, their gradients, values and results are rounded: four roundings in a row, some of differences.
    run = kernel_of(ReferenceAttention.Config(), Causal())
    got = check(run, definition_of(Causal()), *qkv(dtype=jnp.bfloat16), tolerance=8 * BFLOAT16)
    assert got.dtype == jnp.bfloat16


def test_sums_over_many_keys_of_bfloat16_are_in_float32():
    # The mean of 4096 ones: summed in bfloat16, it would stop far below one.
    k = jnp.ones((1, 4096, 1, 4), jnp.bfloat16)
    tokens = Tokens(jnp.arange(4096)[None])
    for cfg in (ReferenceAttention.Config(), BlockwiseAttention.Config(block=64)):
        run = kernel_of(cfg, Full(), tokens.slice(0, 1), tokens, aligned=False)
        np.testing.assert_array_equal(run(k[:, :1], k, k), jnp.ones((1, 1, 1, 4), jnp.bfloat16))


def test_large_scores_do_not_overflow():
    q, k, v = qkv()
    for cfg in (ReferenceAttention.Config(), BlockwiseAttention.Config(block=2)):
        run = kernel_of(cfg, Causal(), scale=1e6)
        out, gradient = jax.jit(jax.value_and_grad(lambda q, run=run: jnp.sum(jnp.square(run(q, k, v)))))(q)
        assert np.isfinite(out)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("cfg", [ReferenceAttention.Config(), BlockwiseAttention.Config(block=2)], ids=str)
def test_queries_and_keys_may_be_different_tokens(cfg):
    """As when decoding: queries 3, 4, 5 against a cache with room for nine, in any order, most of it not written."""
    cached = [4, 0, 5, 2, 1, 3, 99, 99, 99]
    args = qkv(length=3, keys=9)
    run = kernel_of(cfg, Causal(), Tokens(jnp.array([[3, 4, 5]])), Tokens(jnp.array([cached])), aligned=False)
    allowed = np.array([[[place <= query for place in cached] for query in (3, 4, 5)]] * 2)
    check(run, lambda q, k, v: reference.attend(q, k, v, allowed, SCALE), *args)


@pytest.mark.parametrize("cfg", [ReferenceAttention.Config(), BlockwiseAttention.Config(block=1)], ids=str)
def test_a_query_that_sees_no_key_gets_zeros_and_finite_gradients(cfg):
    q_tokens = Tokens(jnp.arange(3)[None], jnp.array([[1, 7, 2], [7, 7, 7]]))
    k_tokens = Tokens(jnp.arange(4)[None], jnp.array([[1, 1, 2, 2], [1, 2, 3, 4]]))
    run = kernel_of(cfg, SameSegment(), q_tokens, k_tokens, aligned=False)

    def loss(*args):
        out = run(*args)
        return jnp.sum(jnp.sin(out)), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*qkv(length=3, keys=4))
    np.testing.assert_array_equal(out[0, 1], 0)
    np.testing.assert_array_equal(out[1], 0)
    assert np.abs(out[0, 0]).min() > 0, "the others see something"
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_array_equal(gradients[0][1], 0)
    np.testing.assert_array_equal(gradients[2][1], 0)


def test_a_sink_leaves_a_query_that_sees_no_key_at_zero():
    tokens = Tokens(jnp.arange(LENGTH)[None], jnp.arange(LENGTH)[None])
    nobody = Tokens(tokens.index, tokens.index + 100)
    for cfg in (ReferenceAttention.Config(), BlockwiseAttention.Config(block=2)):
        run = kernel_of(cfg, SameSegment(), tokens, nobody, aligned=False, sinks=jnp.array([-50.0, 0.0, 1.0, 50.0]))
        np.testing.assert_array_equal(run(*qkv()), jnp.zeros((2, LENGTH, 4, 4)))


def test_a_low_sink_changes_nothing_and_a_high_one_takes_everything():
    run = kernel_of(ReferenceAttention.Config(), Causal(), sinks=jnp.array([-1e4, -1e4, 1e4, 1e4]))
    plain, got = kernel_of(ReferenceAttention.Config(), Causal())(*qkv()), run(*qkv())
    np.testing.assert_array_equal(got[:, :, :2], plain[:, :, :2])
    np.testing.assert_array_equal(got[:, :, 2:], 0)


def test_a_soft_cap_bounds_scores_and_leaves_small_ones():
    q, k, v = qkv()
    plain = kernel_of(ReferenceAttention.Config(), Causal())(q, k, v)
    loose = kernel_of(ReferenceAttention.Config(), Causal(), soft_cap=1e5)(q, k, v)
    np.testing.assert_allclose(loose, plain, atol=1e-4)  # tanh(x) is x - x**3 / 3, x about 1e-4; divided in float32.
    # Scores of at most 0.01 of size leave the weights all but equal.
    tight = kernel_of(ReferenceAttention.Config(), Full(), soft_cap=0.01)(q, k, v)
    mean = jnp.broadcast_to(jnp.mean(v, axis=1, keepdims=True), v.shape)
    np.testing.assert_allclose(tight, jnp.repeat(mean, 2, axis=2), atol=0.05)


def test_tolerance_would_notice_a_wrong_scale():
    """The check itself can fail: a scale that is off by a thousandth, which float32 tells apart, is found."""
    run = kernel_of(ReferenceAttention.Config(), Causal(), scale=SCALE * 1.001)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(run, definition_of(Causal()), *qkv(), tolerance=FLOAT32)


def test_a_bias_goes_by_the_places_of_queries_and_keys_not_by_their_order():
    order = np.array([3, 0, 4, 1, 2])
    q, k, v = qkv()
    bias = LinearBias(normal(9, (4,)))
    plain = kernel_of(ReferenceAttention.Config(), Causal(), Tokens(TOKENS.index), Tokens(TOKENS.index), bias=bias)
    mixed = kernel_of(
        ReferenceAttention.Config(),
        Causal(),
        Tokens(TOKENS.index),
        Tokens(jnp.array([order])),
        aligned=False,
        bias=bias,
    )
    np.testing.assert_allclose(mixed(q, k[:, order], v[:, order]), plain(q, k, v), atol=1e-6)  # Sums in another order.
