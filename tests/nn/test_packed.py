# SPDX-License-Identifier: Apache-2.0
"""Weights in panels: the same maps and tables as those that they were made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, replace_all
from dovetail.module import ModuleError, call, init, specs
from dovetail.nn import (
    DenseLinear,
    Embedding,
    PackedEmbedding,
    PackedLinear,
    QuantisedLinear,
    packed_params,
    quantised_params,
)
from dovetail.ops import kernel_choices, native
from support.numeric import FLOAT32, assert_close

HERE = pytest.mark.skipif(bool(native().reason), reason=native().reason)
SHAPES = {"in_shape": (5, 4), "out_shape": (7, 6), "in_axes": (None, None), "out_axes": (None, None)}


def made(cfg, like, seed=0):
    """Returns a packed module and its parameters, and those of the one that it is made of."""
    plain = like.build()
    params = init(plain, jax.random.key(seed))
    packed = cfg.build()
    kept = dict(params)
    if isinstance(plain, DenseLinear) and getattr(cfg, "kept", "") == "int8":
        few = QuantisedLinear.Config(**SHAPES, bias=cfg.bias).build()
        kept = quantised_params(few, params)
    return packed, packed_params(packed, kept), plain, params


@HERE
@pytest.mark.parametrize("kept, tolerance", [("float32", FLOAT32), ("bfloat16", 2**-8), ("int8", 2**-6)])
def test_a_packed_map_is_the_map_that_it_was_made_of(kept, tolerance):
    like = DenseLinear.Config(**SHAPES, bias=True)
    cfg = replace_all(DenseLinear.Config, PackedLinear.Config(kept=kept))(like)
    packed, params, plain, old = made(cfg, like)
    assert {name: (x.shape, x.dtype) for name, x in params.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in specs(packed).items()
    }
    x = jax.random.normal(jax.random.key(1), (3, 2, 5, 4))
    with kernel_choices() as choices:
        got, want = call(packed, params, x)[0], call(plain, old, x)[0]
    assert [choice.kernel for choice in choices] == ["PackedProduct"]
    assert_close(np.asarray(got), np.asarray(want, np.float64), tolerance)


@HERE
@pytest.mark.parametrize("kept", ["float32", "bfloat16", "int8"])
def test_its_matrix_is_that_of_the_map_and_asking_for_it_is_noted(kept):
    like = DenseLinear.Config(**SHAPES)
    packed, params, plain, old = made(PackedLinear.Config(**SHAPES, kept=kept), like)
    with kernel_choices() as choices:
        matrix = call(packed, params, method="matrix")[0]
    want = call(plain, old, method="matrix")[0]
    np.testing.assert_allclose(matrix, want, atol=0 if kept == "float32" else 2e-2)
    assert [choice.refused for choice in choices] == [(("PackedProduct", "its matrix is asked for"),)]
    biased = PackedLinear.Config(**SHAPES, bias=True).build()
    with pytest.raises(ModuleError, match="also adds a bias"):
        call(biased, init(biased, jax.random.key(0)), method="matrix")


@HERE
@pytest.mark.parametrize("kept", ["float32", "bfloat16"])
def test_a_packed_table_is_looked_up_and_multiplied_as_the_table(kept):
    like = Embedding.Config(vocab_size=101, dim=12)
    packed, params, _, old = made(PackedEmbedding.Config(vocab_size=101, dim=12, kept=kept), like)
    assert set(params) == {"panels"}
    ids, x = jnp.array([[0, 100, 48], [7, -1, 101]]), jax.random.normal(jax.random.key(1), (2, 12))
    tolerance = FLOAT32 if kept == "float32" else 2**-8
    rows, table = call(packed, params, ids)[0], np.asarray(old["table"], np.float64)
    assert_close(np.asarray(rows[:, 0]), table[[0, 7]], tolerance)
    assert_close(np.asarray(rows[0]), table[[0, 100, 48]], tolerance)
    assert np.isnan(rows[1, 1:]).all(), "no word has these numbers"
    assert_close(
        np.asarray(call(packed, params, x, method="logits")[0]), np.asarray(x, np.float64) @ table.T, tolerance
    )


def test_what_is_too_small_stays_as_it_is_and_without_kernels_integers_are_refused(monkeypatch):
    few = {**SHAPES, "out_shape": (1, 3)}
    packed = PackedLinear.Config(**few).build()
    params = init(packed, jax.random.key(0))
    assert set(params) == {"weight"}
    x = jax.random.normal(jax.random.key(1), (2, 5, 4))
    with kernel_choices() as choices:
        y = call(packed, params, x)[0]
    assert [choice.kernel for choice in choices] == ["XLA"]
    assert choices[0].is_fallback
    assert_close(np.asarray(y), np.einsum("bij,ijkl->bkl", *map(np.float64, (x, params["weight"]))), FLOAT32)
    none = native()._replace(reason="no compiler")
    monkeypatch.setattr("dovetail.ops.kernels._native.native", lambda: none)
    with pytest.raises(ConfigError, match="int8 is for native kernels, and there are none"):
        PackedLinear.Config(**SHAPES, kept="int8").build()
