# SPDX-License-Identifier: Apache-2.0
"""The loss is its definition, and chunks change its memory, not its value or gradients.

Shape letters: N tokens, V words, D model dim.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.ops import TokenLoss, chunked_token_loss, token_loss
from support import reference
from support.numeric import BFLOAT16, FLOAT32, assert_close, check, normal
from support.programs import shapes

N, V, D = 7, 5, 3
TARGETS = jnp.array([0, 4, 2, 2, 1, 3, 0])
WEIGHTS = jnp.array([1.0, 0.0, 0.5, 2.0, 1.0, 0.0, 0.25])
HIDDEN, TABLE = normal(0, (N, D)), normal(1, (D, V))


# In bfloat16 the logits are rounded before the reference sees them, so only their gradient is rounded, once.
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 2 * BFLOAT16)])
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
def test_token_loss_is_its_definition(z_loss, dtype, tolerance):
    def ours(logits, weights):
        return tuple(token_loss(logits, TARGETS, weights, z_loss=z_loss))

    def definition(logits, weights):
        return reference.token_loss(logits, np.asarray(TARGETS), weights, z_loss)

    got = check(ours, definition, normal(2, (N, V), dtype, size=3.0), WEIGHTS, tolerance=tolerance)
    assert {value.dtype for value in got} == {np.dtype(np.float32)}


def test_large_logits_do_not_overflow():
    logits = jnp.array([[1e4, 0.0], [0.0, 1e4]])
    loss, gradient = jax.jit(jax.value_and_grad(lambda x: token_loss(x, jnp.array([0, 0]), jnp.ones(2)).loss))(logits)
    assert loss == 1e4
    np.testing.assert_array_equal(gradient, [[0, 0], [-1, 1]])


def test_sums_of_bfloat16_weights_are_in_float32():
    # Summed in bfloat16, ones would stop at 256.
    sums = jax.jit(token_loss)(jnp.zeros((600, 2)), jnp.zeros(600, jnp.int32), jnp.ones(600, jnp.bfloat16))
    assert (sums.weight, sums.correct) == (600, 600)


def test_correct_counts_the_weight_of_tokens_whose_best_word_is_the_target():
    logits = jnp.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 1.0, 5.0]])
    assert jax.jit(token_loss)(logits, jnp.array([1, 1, 2]), jnp.array([0.5, 1.0, 2.0])).correct == 2.5


def test_of_equal_logits_the_first_counts_as_the_best_word_as_in_greedy_decoding():
    logits = jnp.array([[1.0, 1.0, 1.0], [0.0, 2.0, 2.0]])
    hits = [jax.jit(token_loss)(logits, jnp.array(targets), jnp.ones(2)).correct for targets in ([0, 1], [2, 2])]
    assert hits == [2, 0]


@functools.cache
def compiled(chunk, z_loss=0.1):
    def loss(hidden, table, targets, weights):
        plain_or_chunked = (
            token_loss(hidden @ table, targets, weights, z_loss=z_loss)
            if chunk is None
            else chunked_token_loss(hidden, lambda x: x @ table, targets, weights, chunk=chunk, z_loss=z_loss)
        )
        return plain_or_chunked.loss + plain_or_chunked.z_loss, plain_or_chunked

    return jax.jit(jax.value_and_grad(loss, (0, 1, 3), has_aux=True))


LOGIT_GRADIENT = jax.jit(
    jax.value_and_grad(
        lambda logits: ((sums := token_loss(logits, TARGETS, WEIGHTS, z_loss=0.1)).loss + sums.z_loss, sums),
        has_aux=True,
    )
)


@settings(max_examples=20)
@given(
    chunk=st.integers(1, N + 2),
    weights=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=N, max_size=N),
    seed=st.integers(0, 99),
)
def test_chunked_loss_is_the_plain_one_for_any_chunk(chunk, weights, seed):
    args = normal(seed, (N, D)), TABLE, TARGETS, jnp.asarray(np.float32(weights))
    got, want = compiled(chunk)(*args), compiled(None)(*args)
    assert isinstance(got[0][1], TokenLoss)
    assert_close(got, want, FLOAT32)


def test_chunked_loss_of_bfloat16_has_float32_sums_and_bfloat16_gradients():
    def loss(hidden, table):
        return chunked_token_loss(hidden, lambda x: x @ table, TARGETS, WEIGHTS, chunk=2).loss

    args = HIDDEN.astype(jnp.bfloat16), TABLE.astype(jnp.bfloat16)
    value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(*args)
    assert value.dtype == jnp.float32
    assert {gradient.dtype for gradient in gradients} == {jnp.dtype(jnp.bfloat16)}
    # Each logit is rounded once, to 2e-3 of its size, and a few of those add up in one token.
    want = reference.token_loss(
        np.asarray(args[0], np.float64) @ np.asarray(args[1], np.float64), np.asarray(TARGETS), np.asarray(WEIGHTS)
    )
    np.testing.assert_allclose(value, want[0], rtol=4 * BFLOAT16)


@pytest.mark.parametrize("chunk", [1, 3, N - 1])
def test_logits_of_all_tokens_are_never_made(chunk):
    def program(chunk):
        def loss(hidden, table):
            return chunked_token_loss(hidden, lambda x: x @ table, TARGETS, WEIGHTS, chunk=chunk).loss

        return shapes(jax.make_jaxpr(jax.value_and_grad(loss, (0, 1)))(HIDDEN, TABLE))

    assert (N, V) in program(N)
    made = program(chunk)
    assert (chunk, V) in made
    assert {shape for shape in made if shape[-1:] == (V,) and np.prod(shape) > max(chunk, D) * V} == set()


def test_tokens_without_weight_leave_no_gradient():
    _, gradients = compiled(3)(HIDDEN, TABLE, TARGETS, WEIGHTS)
    np.testing.assert_array_equal(np.abs(gradients[0]).sum(-1) > 0, np.asarray(WEIGHTS) > 0)
    (loss, sums), gradients = compiled(3)(HIDDEN, TABLE, TARGETS, 0 * WEIGHTS)
    assert (loss, sums.weight, sums.correct) == (0, 0, 0)
    np.testing.assert_array_equal(gradients[1], 0)


@pytest.mark.parametrize("chunk", [None, 3, N])
def test_nan_at_a_token_without_weight_gets_into_neither_loss_nor_gradient(chunk):
    zero = np.asarray(WEIGHTS) == 0
    want = compiled(chunk)(jnp.where(zero[:, None], 0.0, HIDDEN), TABLE, TARGETS, WEIGHTS)
    if chunk is None:  # Then the logits are all that the loss is given.
        (loss, sums), slopes = LOGIT_GRADIENT(jnp.where(zero[:, None], jnp.nan, HIDDEN @ TABLE))
        np.testing.assert_array_equal(slopes[zero], 0)
        assert np.isfinite(slopes).all()
    else:
        (loss, sums), slopes = compiled(chunk)(jnp.where(zero[:, None], jnp.nan, HIDDEN), TABLE, TARGETS, WEIGHTS)
        assert_close(slopes[:2], want[1][:2], FLOAT32)
    assert_close((loss, sums), want[0], FLOAT32)


def test_targets_without_weight_may_be_any_number():
    """As -100 of Hugging Face, for tokens to be left out."""
    sums = jax.jit(token_loss)(jnp.zeros((2, V)), jnp.array([1, -100]), jnp.array([1.0, 0.0]))
    np.testing.assert_allclose(sums.loss, np.log(V), rtol=1e-6)


@pytest.mark.parametrize("target", [V, -V - 1, -1])
def test_a_target_outside_of_the_vocabulary_that_counts_is_not_a_number(target):
    assert np.isnan(jax.jit(token_loss)(jnp.zeros((2, V)), jnp.array([1, target]), jnp.ones(2)).loss)
