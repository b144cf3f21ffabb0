# SPDX-License-Identifier: Apache-2.0
"""Attention kernels are the definition, for every mask, and the blockwise one does less work in less memory.

Shape letters: B batch, T queries, S keys, H query heads, G key heads, K head dim.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.ops import (
    BlockwiseAttention,
    Causal,
    Full,
    Mask,
    Prefix,
    ReferenceAttention,
    SameSegment,
    SlidingWindow,
    Tokens,
)
from support import reference
from support.numeric import BFLOAT16, FLOAT32, check, normal
from support.programs import dot_flops, shapes

LENGTH = 5
SEGMENTS = np.array([[1, 1, 2, 2, 0], [1, 2, 2, 2, 3]])
PREFIX = np.array([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], bool)
TOKENS = Tokens(jnp.arange(LENGTH)[None], jnp.asarray(SEGMENTS), jnp.asarray(PREFIX))
SCALE = 0.7


def qkv(heads=4, kv_heads=2, length=LENGTH, keys=None, dtype=jnp.float32):
    keys = length if keys is None else keys
    return [
        normal(i, shape, dtype, size=2.0)
        for i, shape in enumerate([(2, length, heads, 4), (2, keys, kv_heads, 4), (2, keys, kv_heads, 4)])
    ]


def kernel_of(cfg, mask, q_tokens=TOKENS, k_tokens=TOKENS, aligned=True, scale=SCALE):
    kernel = cfg.build()

    def run(q, k, v):
        return kernel(q, k, v, mask=mask, q_tokens=q_tokens, k_tokens=k_tokens, scale=scale, aligned=aligned)

    return run


def definition_of(mask):
    rows = [list(zip(range(LENGTH), SEGMENTS[b].tolist(), PREFIX[b].tolist(), strict=True)) for b in range(2)]
    allowed = np.array([reference.seen(mask, row, row) for row in rows])
    return lambda q, k, v: reference.attend(q, k, v, allowed, SCALE)


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
    run = kernel_of(ReferenceAttention.Config(), Full(), tokens.slice(0, 1), tokens, aligned=False)
    np.testing.assert_array_equal(run(k[:, :1], k, k), jnp.ones((1, 1, 1, 4), jnp.bfloat16))


def test_large_scores_do_not_overflow():
    q, k, v = qkv()
    run = kernel_of(ReferenceAttention.Config(), Causal(), scale=1e6)
    out, gradient = jax.jit(jax.value_and_grad(lambda q: jnp.sum(jnp.square(run(q, k, v)))))(q)
    assert np.isfinite(out)
    assert np.isfinite(gradient).all()


def value_and_gradients(run, args):
    def loss(*args):
        out = run(*args)
        return jnp.sum(jnp.sin(out)), out

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*args)


@pytest.mark.parametrize(
    "mask",
    [
        Full(),
        Causal(),
        Causal() & SlidingWindow(2),
        Causal() & SameSegment(),
        Causal() | Prefix(),
        SameSegment() & (Causal() | Prefix()),
    ],
    ids=str,
)
def test_blockwise_is_the_definition_for_each_mask(mask):
    check(kernel_of(BlockwiseAttention.Config(block=3), mask), definition_of(mask), *qkv())  # 3 does not divide 5.


@pytest.mark.parametrize("block", [1, 4, 5, 9])
def test_blockwise_is_the_definition_for_each_block(block):
    mask = Causal() & SlidingWindow(2) & SameSegment()
    check(kernel_of(BlockwiseAttention.Config(block=block), mask), definition_of(mask), *qkv())


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
    (_, out), gradients = value_and_gradients(run, qkv(length=3, keys=4))
    np.testing.assert_array_equal(out[0, 1], 0)
    np.testing.assert_array_equal(out[1], 0)
    assert np.abs(out[0, 0]).min() > 0, "the others see something"
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_array_equal(gradients[0][1], 0)
    np.testing.assert_array_equal(gradients[2][1], 0)


@dataclass(frozen=True)
class Late(Mask):
    """Queries from the third on see the keys from the third on; the first two see nothing."""

    def allowed(self, q, k):
        return (q.index >= 2)[:, :, None] & (k.index >= 2)[:, None, :]

    def keys_for(self, start, stop, length):
        return (2, length) if stop > 2 else (length, 2)


def test_a_block_whose_bounds_leave_no_key_gets_zeros():
    allowed = np.zeros((2, LENGTH, LENGTH), bool)
    allowed[:, 2:, 2:] = True
    run = kernel_of(BlockwiseAttention.Config(block=2), Late())
    check(run, lambda q, k, v: reference.attend(q, k, v, allowed, SCALE), *qkv())


# The programs at a length where they matter.


def gradient_program(cfg, mask, length=1024):
    kernel = cfg.build()

    def loss(q, k, v):
        tokens = Tokens(jnp.arange(length)[None])
        out = kernel(q, k, v, mask=mask, q_tokens=tokens, k_tokens=tokens, scale=SCALE, aligned=True)
        return jnp.sum(jnp.square(out))

    q = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
    return jax.jit(jax.grad(loss, (0, 1, 2))), jax.jit(loss), [q] * 3


def temporary_bytes(cfg, mask):
    gradient, _, args = gradient_program(cfg, mask)
    memory = gradient.lower(*args).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


@pytest.mark.parametrize("mask", [Full(), Causal()], ids=str)
def test_no_program_of_the_blockwise_kernel_has_all_scores(mask):
    def all_scores(cfg):
        gradient, _, args = gradient_program(cfg, mask)
        return [shape for shape in shapes(jax.make_jaxpr(gradient)(*args)) if shape.count(1024) > 1]

    assert all_scores(ReferenceAttention.Config())
    assert all_scores(BlockwiseAttention.Config(block=128)) == []


def test_the_blockwise_kernel_skips_what_the_mask_rules_out():
    def flops(cfg, mask):
        _, forward, args = gradient_program(cfg, mask)
        return dot_flops(jax.make_jaxpr(forward)(*args))

    full, blocks = flops(ReferenceAttention.Config(), Causal()), BlockwiseAttention.Config(block=64)
    assert full == 2 * 2 * 1024 * 1024 * 8, "scores and values, a multiplication and an addition each"
    assert flops(blocks, Full()) == full
    # Of 16 rows of blocks, row i has i + 1 blocks to do: (16 + 1) / 2 of 16.
    assert flops(blocks, Causal()) == full * 17 // 32
    # A window of 65 is the block of the query and the one before it; the first row has none before it.
    assert flops(blocks, Causal() & SlidingWindow(65)) == full * 31 // 256


@pytest.mark.slow
def test_the_blockwise_kernel_needs_less_memory_for_a_causal_mask():
    reference_bytes = temporary_bytes(ReferenceAttention.Config(), Causal())
    assert reference_bytes > 3 * 4 * 1024 * 1024, "several arrays of all scores, 4 MiB each"
    assert temporary_bytes(BlockwiseAttention.Config(block=256), Causal()) < 0.7 * reference_bytes


@pytest.mark.slow
@pytest.mark.xfail(reason="blocks do not depend on each other, and XLA for CPU keeps the scores of all of them at once")
def test_the_blockwise_kernel_holds_one_block_of_scores_at_a_time():
    # With one of four blocks at a time and a few arrays of [T, K], a quarter and a bit; a half is generous.
    want = temporary_bytes(ReferenceAttention.Config(), Full()) / 2
    assert temporary_bytes(BlockwiseAttention.Config(block=256), Full()) < want


def test_a_block_of_nothing_is_refused():
    with pytest.raises(ConfigError) as e:
        BlockwiseAttention.Config(block=0).build(path="stack.layer.mixer.kernel")
    assert str(e.value) == "stack.layer.mixer.kernel: block is 0, expected at least 1."
    with pytest.raises(ConfigError) as e:
        BlockwiseAttention.Config(block=-3).build()
    assert str(e.value) == "BlockwiseAttention: block is -3, expected at least 1."


def test_tolerance_would_notice_a_wrong_scale():
    """The check itself can fail: a scale that is off by a thousandth, which float32 tells apart, is found."""
    run = kernel_of(ReferenceAttention.Config(), Causal(), scale=SCALE * 1.001)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(run, definition_of(Causal()), *qkv(), tolerance=FLOAT32)
