# SPDX-License-Identifier: Apache-2.0
"""Embeddings look up rows; the same table makes logits; positions beyond the table do not pass unnoticed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import call, init, specs
from dovetail.nn import Embedding, LearnedPosition, SinusoidalPosition
from support.models import random_params
from support.numeric import BFLOAT16, FLOAT32, cast, check, normal

IDS = jnp.array([[0, 4, 4], [2, 0, 1]])
WORDS = Embedding.Config(vocab_size=5, dim=3)
PLACES = LearnedPosition.Config(max_length=5, dim=3)


@pytest.mark.parametrize("cfg", [WORDS, PLACES], ids=["words", "positions"])
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 2 * BFLOAT16)])  # A sum of two.
def test_lookup_is_a_row_and_its_gradient_adds_up(cfg, dtype, tolerance):
    model = cfg.build()
    params = cast(random_params(model), dtype)

    def definition(params):
        return np.array([[params["table"][i] for i in row] for row in np.asarray(IDS)])

    got = check(lambda params: call(model, params, IDS)[0], definition, params, tolerance=tolerance)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got[0, 1], params["table"][4])


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 2 * BFLOAT16)])  # One rounding.
def test_attend_is_the_product_with_every_row(dtype, tolerance):
    model = WORDS.build()
    params, x = cast((random_params(model), normal(1, (2, 4, 3))), dtype)
    got = check(
        lambda params, x: call(model, params, x, method="logits")[0],
        lambda params, x: np.array([[[row @ word for word in params["table"]] for row in rows] for rows in x]),
        params,
        x,
        tolerance=tolerance,
    )
    assert (got.shape, got.dtype) == ((2, 4, 5), dtype)


@pytest.mark.parametrize(
    "cfg, axes, stddev",
    [
        (Embedding.Config(vocab_size=100, dim=50), ("vocab", "embed"), 0.02),
        (LearnedPosition.Config(max_length=100, dim=50), (None, "embed"), 0.01),
    ],
    ids=["words", "positions"],
)
def test_tables_start_small(cfg, axes, stddev):
    model = cfg.build()
    assert specs(model)["table"].axes == axes
    np.testing.assert_allclose(np.std(init(model, jax.random.key(0))["table"]), stddev, rtol=0.05)  # 5000 draws: 1 %.


def test_a_position_beyond_the_table_is_not_a_number():
    model = PLACES.build()
    out = call(model, random_params(model), jnp.array([4, 5]))[0]
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1]).all()


@pytest.mark.parametrize("word", [5, -1])
def test_a_word_outside_of_the_vocabulary_is_not_a_number(word):
    model = WORDS.build()
    assert np.isnan(call(model, random_params(model), jnp.array([word]))[0]).all()


@pytest.mark.parametrize("interleaved", [True, False])
def test_sinusoidal_positions_are_those_of_the_paper(interleaved):
    model = SinusoidalPosition.Config(dim=6, theta=100.0, interleaved=interleaved).build()
    assert specs(model) == {}
    places = np.array([[0, 3], [7, 900]])
    sines, cosines = ([f(places / 100 ** (2 * i / 6)) for i in range(3)] for f in (np.sin, np.cos))
    pairs = [wave for pair in zip(sines, cosines, strict=True) for wave in pair]
    want = np.stack(pairs if interleaved else [*sines, *cosines], axis=-1)
    got = call(model, {}, jnp.asarray(places))[0]
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=1e-4)  # Angles up to 900 in float32: 900 * 6e-8.
    assert call(model, {}, jnp.asarray(places), dtype=jnp.bfloat16)[0].dtype == jnp.bfloat16


def test_sinusoidal_positions_of_an_odd_dim_are_refused():
    with pytest.raises(ConfigError) as e:
        SinusoidalPosition.Config(dim=5).build(path="position")
    assert str(e.value) == "position (SinusoidalPosition): dim is 5, expected an even number."
