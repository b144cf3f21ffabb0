# SPDX-License-Identifier: Apache-2.0
"""Matrices in few bits are off by half a step at most, and products with them are those with what they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dovetail.ops._quantised as quantised
from dovetail.ops import (
    BlockedGroupedMatmul,
    PagedAttention,
    Quantised,
    ReferenceAttention,
    ReferenceGroupedMatmul,
    SlidingWindow,
    Tokens,
    Written,
    quantise_rows,
    rescaled,
)
from support.numeric import FLOAT32, assert_close, float64, normal

KINDS = {
    "8 bits": Quantised.columns,
    "4 bits, groups of 8": lambda w: Quantised.groups(w, 8),
    "4 bits, groups of 32": lambda w: Quantised.groups(w, 32),
}
each_kind = pytest.mark.parametrize("kind", KINDS)
HALF = 0.5 + 1e-5  # Of a step, and what float32 adds.


def meant(stored: Quantised) -> np.ndarray:
    """Returns what a stored matrix stands for, in float64, from the words of the file: bits, scales and offsets."""
    values, scale = np.asarray(stored.values), np.asarray(stored.scale, np.float64)
    if stored.offset is None:
        return values.astype(np.float64) * scale[..., None, :]
    *outer, groups, outs = scale.shape
    size = 2 * values.shape[-2] // groups
    found = np.empty((*outer, groups, size, outs))
    packed = values.reshape(*outer, groups, size // 2, outs)
    found[..., : size // 2, :], found[..., size // 2 :, :] = packed % 16, packed // 16
    found = found * scale[..., None, :] + np.asarray(stored.offset, np.float64)[..., None, :]
    return found.reshape(*outer, groups * size, outs)


def steps(stored: Quantised, ins: int) -> np.ndarray:
    """Returns the step of each number."""
    scale = np.asarray(stored.scale, np.float64)
    scale = scale[..., None, :] if stored.offset is None else scale
    return np.repeat(scale, ins // scale.shape[-2], axis=-2)


# Around zero; all above it, far from it; all alike; with one that is far larger than the rest.
WEIGHTS = {
    "normal": normal(0, (3, 64, 10)),
    "far from zero": 100 + normal(1, (64, 10)),
    "constant": jnp.full((64, 10), -0.3),
    "zero": jnp.zeros((64, 10)),
    "an outlier": normal(2, (64, 10)).at[5].set(1e4),
    "bfloat16": normal(3, (64, 10), jnp.bfloat16),
}


@each_kind
@pytest.mark.parametrize("name", WEIGHTS)
def test_each_number_is_off_by_half_a_step_at_most(kind, name):
    weight = WEIGHTS[name]
    stored = KINDS[kind](weight)
    exact = float64(weight)
    assert (np.abs(meant(stored) - exact) <= HALF * steps(stored, 64) + 1e-7 * np.abs(exact)).all()


@pytest.mark.parametrize("size", [8, 32, 64])
def test_the_steps_are_those_of_theory(size):
    weight = normal(0, (64, 10))
    groups = float64(weight).reshape(-1, size, 10)
    np.testing.assert_allclose(Quantised.columns(weight).scale, np.abs(weight).max(0) / 127, rtol=1e-6)
    wanted = (groups.max(1) - groups.min(1)) / 15
    found = np.asarray(Quantised.groups(weight, size).scale, np.float64)
    assert (wanted <= found).all()
    assert (found <= 1.02 * wanted).all()


@each_kind
def test_what_is_stored_comes_back_and_is_stored_the_same_again(kind):
    stored = KINDS[kind](normal(0, (2, 64, 10)))
    back = stored.array(jnp.float32)
    np.testing.assert_allclose(back, meant(stored), rtol=1e-6, atol=1e-6)
    assert stored.array(jnp.bfloat16).dtype == jnp.bfloat16
    if stored.offset is None:
        jax.tree.map(np.testing.assert_array_equal, Quantised.columns(back).values, stored.values)


def test_bytes_are_a_quarter_and_at_most_a_sixth_of_float32():
    weight = normal(0, (256, 128))
    stored = {kind: sum(x.nbytes for x in jax.tree.leaves(quantise(weight))) for kind, quantise in KINDS.items()}
    assert stored["8 bits"] == weight.nbytes / 4 + 4 * 128
    assert stored["4 bits, groups of 32"] == weight.nbytes / 8 + 2 * 2 * 128 * 256 / 32


@each_kind
@pytest.mark.parametrize("block", [2**18, 320])  # All at once; some rows at a time.
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 1e-2)])
def test_products_are_those_with_the_numbers_that_are_meant(kind, block, dtype, tolerance, monkeypatch):
    monkeypatch.setattr(quantised, "_BLOCK", block)
    stored, x = KINDS[kind](normal(0, (64, 10))), normal(1, (5, 64), dtype)
    got = jax.jit(lambda x, stored: stored.matmul(x))(x, stored)
    assert got.dtype == dtype
    assert_close(got, float64(x) @ meant(stored), tolerance)


def test_parts_of_a_matrix_are_whole_groups_and_no_more_than_fit():
    matrix = normal(0, (576, 1536))
    assert quantised._width(Quantised.columns(matrix), 576) == 144
    assert quantised._width(Quantised.groups(matrix, 32), 576) == 96
    assert quantised._width(Quantised.columns(normal(0, (523, 1024))), 523) == 523, "a prime number of rows"


@each_kind
@pytest.mark.parametrize("kernel", [BlockedGroupedMatmul.Config(block=4), ReferenceGroupedMatmul.Config()])
def test_products_of_experts_are_those_with_the_numbers_that_are_meant(kind, kernel):
    stored, x, sizes = KINDS[kind](normal(0, (3, 64, 10))), normal(1, (9, 64)), jnp.array([5, 0, 2])
    got = jax.jit(lambda x, stored, sizes: stored.grouped_matmul(x, sizes, kernel.build()))(x, stored, sizes)
    matrices, want = meant(stored), np.zeros((9, 10))
    want[:5], want[5:7] = float64(x[:5]) @ matrices[0], float64(x[5:7]) @ matrices[2]
    assert_close(got, want, FLOAT32)


def test_rows_are_off_by_half_a_step_at_most_though_scales_are_bfloat16():
    x = jnp.concatenate([normal(0, (40, 16)), 1e3 * normal(1, (40, 16)), jnp.zeros((1, 16))])
    values, scale = quantise_rows(x)
    assert (values.dtype, scale.dtype, scale.shape) == (jnp.int8, jnp.bfloat16, (81,))
    step = np.asarray(scale, np.float64)[:, None]
    exact = float64(x)
    assert (np.abs(np.asarray(values, np.float64) * step - exact) <= HALF * step).all()
    np.testing.assert_allclose(step[:, 0], np.abs(exact).max(1) / 127, rtol=2.0**-8)
    np.testing.assert_allclose(rescaled(values, scale, jnp.float32), np.asarray(values) * step, rtol=1e-6)


@pytest.mark.parametrize("paged", [True, False], ids=["pages", "rows"])
def test_attention_to_integers_is_that_to_the_numbers_that_are_meant(paged):
    """Pages that nobody has written hold nan scales: they must not get into a sum."""
    pages, size, rows = 7, 4, 2
    table = jnp.array([[4, 1, 6], [2, 5, 0]])
    k, v = (quantise_rows(normal(seed, (pages, size, 2, 8))) for seed in (0, 1))
    scales = tuple(scale.at[3].set(jnp.nan) for _, scale in (k, v))
    q, index = normal(2, (rows, 3, 4, 8)), jnp.array([[8, 9, 10], [5, 6, 7]])
    places = jnp.where(jnp.arange(12) <= index[:, -1:], jnp.arange(12), jnp.iinfo(jnp.int32).max)
    options = {"mask": SlidingWindow(6) & Written(), "q_tokens": Tokens(index), "k_tokens": Tokens(places)}
    options |= {"scale": 0.3, "aligned": False}

    def in_rows(x):
        return x[table].reshape(rows, 12, *x.shape[2:])

    exact = [
        in_rows(np.asarray(values, np.float64) * np.asarray(scale, np.float64)[..., None]) for values, scale in (k, v)
    ]
    want = ReferenceAttention.Config().build()(q, *(jnp.asarray(x, jnp.float32) for x in exact), **options)
    if paged:
        kernel, given = PagedAttention.Config(block=8).build(), {"pages": table, "scales": scales}
        got = jax.jit(lambda q, k, v: kernel(q, k, v, **given, **options))(q, k[0], v[0])
    else:
        plain = tuple(in_rows(scale) for _, scale in (k, v))
        got = ReferenceAttention.Config().build()(q, in_rows(k[0]), in_rows(v[0]), scales=plain, **options)
    assert_close(got, float64(want), FLOAT32)
    rows_kernel = ReferenceAttention.Config().build()
    assert_close(rows_kernel(q, k[0], v[0], pages=table, scales=scales, **options), float64(want), FLOAT32)
