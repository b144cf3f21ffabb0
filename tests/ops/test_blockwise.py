# SPDX-License-Identifier: Apache-2.0
"""Blockwise attention is the definition, does less work where a mask allows it, and needs memory for a few blocks."""

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
    LinearBias,
    Mask,
    Prefix,
    ReferenceAttention,
    SameSegment,
    SlidingWindow,
    Tokens,
)
from support import reference
from support.attention import LENGTH, SCALE, TOKENS, allowed_of, definition_of, kernel_of, qkv
from support.numeric import BFLOAT16, check, normal
from support.programs import dot_flops, shapes

SINKS, SLOPES = normal(7, (4,)), normal(8, (4,))


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


def changed(cfg):
    """Everything that changes scores, as a function of all that has a gradient."""
    kernel = cfg.build()

    def run(q, k, v, slopes, sinks):
        common = {"mask": Causal(), "q_tokens": TOKENS, "k_tokens": TOKENS, "scale": SCALE, "aligned": True}
        return kernel(q, k, v, **common, soft_cap=1.5, bias=LinearBias(slopes), sinks=sinks)

    return run


def changed_definition(q, k, v, slopes, sinks):
    return reference.attend(q, k, v, allowed_of(Causal()), SCALE, soft_cap=1.5, slopes=slopes, sinks=sinks)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-5), (jnp.bfloat16, 8 * BFLOAT16)])
def test_gradients_reach_slopes_and_sinks_and_values_have_a_size_of_their_own(dtype, tolerance):
    args = [*qkv(value_dim=3, dtype=dtype), SLOPES.astype(dtype), SINKS.astype(dtype)]
    got = check(changed(BlockwiseAttention.Config(block=2)), changed_definition, *args, tolerance=tolerance)
    assert (got.shape, got.dtype) == ((2, LENGTH, 4, 3), dtype)


def test_few_queries_see_many_keys_at_once():
    """A token that is decoded does not loop over the cache."""
    run = kernel_of(BlockwiseAttention.Config(block=4), Full(), TOKENS.slice(0, 1), Tokens(jnp.arange(16)[None]), False)
    args = qkv(length=1, keys=16)
    assert (2, 2, 2, 1, 16) in shapes(jax.make_jaxpr(run)(*args)), "all scores, because they are no more than a block"


@dataclass(frozen=True)
class Late(Mask):
    """Queries from the third on see the keys from the third on; the first two see nothing."""

    def allowed(self, q, k):
        return (q.index >= 2)[:, :, None] & (k.index >= 2)[:, None, :]

    def keys_for(self, start, stop, length):
        return (2, length) if stop > 2 else (length, 2)


@dataclass(frozen=True)
class Never(Mask):
    """Nobody sees anything."""

    def allowed(self, q, k):
        return ~Full().allowed(q, k)

    def keys_for(self, start, stop, length):
        return 0, 0


def test_blocks_whose_bounds_leave_no_key_get_zeros():
    allowed = np.zeros((2, LENGTH, LENGTH), bool)
    allowed[:, 2:, 2:] = True
    run = kernel_of(BlockwiseAttention.Config(block=2), Late())
    check(run, lambda q, k, v: reference.attend(q, k, v, allowed, SCALE), *qkv())
    nothing = kernel_of(BlockwiseAttention.Config(block=2), Never())(*qkv(value_dim=3))
    np.testing.assert_array_equal(nothing, jnp.zeros((2, LENGTH, 4, 3)))


def test_a_block_of_nothing_is_refused():
    with pytest.raises(ConfigError) as e:
        BlockwiseAttention.Config(block=0).build(path="stack.layer.mixer.kernel")
    assert str(e.value) == "stack.layer.mixer.kernel: block is 0, expected at least 1."
    with pytest.raises(ConfigError) as e:
        BlockwiseAttention.Config(block=-3).build()
    assert str(e.value) == "BlockwiseAttention: block is -3, expected at least 1."


# The programs at a length where they matter.


def gradient_program(cfg, mask, length, aligned=True):
    kernel = cfg.build()

    def loss(q, k, v, segments):
        tokens = Tokens(jnp.arange(length)[None], segments)
        out = kernel(q, k, v, mask=mask, q_tokens=tokens, k_tokens=tokens, scale=SCALE, aligned=aligned)
        return jnp.sum(jnp.square(out))

    q = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
    args = [q, q, q, jax.ShapeDtypeStruct((1, length), jnp.int32)]
    return jax.jit(jax.grad(loss, (0, 1, 2))), jax.jit(loss), args


@pytest.mark.parametrize("mask", [Full(), Causal()], ids=str)
def test_no_program_has_all_scores(mask):
    def all_scores(cfg):
        gradient, _, args = gradient_program(cfg, mask, 1024)
        return [shape for shape in shapes(jax.make_jaxpr(gradient)(*args)) if shape.count(1024) > 1]

    assert all_scores(ReferenceAttention.Config())
    assert all_scores(BlockwiseAttention.Config(block=128)) == []


def test_what_the_mask_rules_out_is_skipped():
    def flops(cfg, mask):
        _, forward, args = gradient_program(cfg, mask, 1024)
        return dot_flops(jax.make_jaxpr(forward)(*args))

    full, blocks = flops(ReferenceAttention.Config(), Causal()), BlockwiseAttention.Config(block=64)
    assert full == 2 * 2 * 1024 * 1024 * 8, "scores and values, a multiplication and an addition each"
    assert flops(blocks, Full()) == full
    # Of 16 rows of blocks, row i has i + 1 blocks to do: (16 + 1) / 2 of 16.
    assert flops(blocks, Causal()) == full * 17 // 32
    # A window of 65 is the block of the query and the one before it; the first row has none before it.
    assert flops(blocks, Causal() & SlidingWindow(65)) == full * 31 // 256


def temporary_bytes(mask, length, aligned=True):
    gradient, _, args = gradient_program(BlockwiseAttention.Config(block=128), mask, length, aligned)
    memory = gradient.lower(*args).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


@pytest.mark.parametrize(
    "mask, aligned",
    [(Full(), True), (Causal(), True), (Causal(), False), (Causal() & SlidingWindow(200), True), (SameSegment(), True)],
    ids=str,
)
def test_memory_grows_with_the_length_and_not_with_its_square(mask, aligned):
    """For values and gradients, by what the compiler reserves."""
    short, long = (temporary_bytes(mask, length, aligned) for length in (1024, 4096))
    block, rows = 128 * 128 * 4, 4096 * 8 * 4  # The scores of a pair of blocks, and an array like the queries.
    assert long <= 4 * short
    assert long <= 8 * block + 16 * rows < 4096 * 4096 * 4 / 20, "a twentieth of all scores"
