# SPDX-License-Identifier: Apache-2.0
"""Norm layers apply the norms of `dovetail.ops` with parameters of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import call, init, specs
from dovetail.nn import LayerNorm, Norm, RMSNorm
from support import reference
from support.models import random_params
from support.numeric import BFLOAT16, FLOAT32, cast, check, normal


def in_groups(norm, x, *rest):
    """Applies a norm to each group of numbers, each with its part of the parameters."""
    eps, parameters = rest[-1], rest[:-1]
    count = 2 if len(parameters) == 1 else 4
    parts = zip(*(np.split(each, count, axis=-1) for each in (x, *parameters)), strict=True)
    return np.concatenate([norm(*part, eps) for part in parts], axis=-1)


CASES = [
    (RMSNorm.Config(dim=8, eps=0.1), lambda p, x: reference.rms_norm(x, p["scale"], 0.1)),
    (LayerNorm.Config(dim=8, eps=0.1), lambda p, x: reference.layer_norm(x, p["scale"], p["bias"], 0.1)),
    (LayerNorm.Config(dim=8, bias=False), lambda p, x: reference.layer_norm(x, p["scale"], None, 1e-5)),
    (RMSNorm.Config(dim=8), lambda p, x: reference.rms_norm(x, p["scale"], 1e-6)),
    (RMSNorm.Config(dim=8, offset=1.0), lambda p, x: reference.rms_norm(x, 1 + p["scale"], 1e-6)),
    (RMSNorm.Config(dim=8, scale=False), lambda p, x: reference.rms_norm(x, None, 1e-6)),
    (LayerNorm.Config(dim=8, scale=False, bias=False), lambda p, x: reference.layer_norm(x, None, None, 1e-5)),
    (RMSNorm.Config(dim=8, offset=1.0, groups=2), lambda p, x: in_groups(reference.rms_norm, x, 1 + p["scale"], 1e-6)),
    (LayerNorm.Config(dim=8, groups=4), lambda p, x: in_groups(reference.layer_norm, x, p["scale"], p["bias"], 1e-5)),
]
NAMES = [
    "rms, eps",
    "layer, eps",
    "layer, no bias",
    "rms",
    "rms, offset",
    "rms, bare",
    "layer, bare",
    "rms, groups",
    "layer, groups",
]


# The result is rounded once; a gradient is a sum of a few terms that are.
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 3 * BFLOAT16)])
@pytest.mark.parametrize("cfg, definition", CASES, ids=NAMES)
def test_norm_layers_are_their_definitions(cfg, definition, dtype, tolerance):
    model = cfg.build()
    params, x = cast((random_params(model), normal(4, (2, 3, 8))), dtype)
    got = check(lambda params, x: call(model, params, x)[0], definition, params, x, tolerance=tolerance)
    assert got.dtype == dtype


@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
def test_norms_start_as_plain_normalisation_of_their_axis(kind):
    model = kind.Config(dim=8, axis="head_dim").build()
    assert {spec.axes for spec in specs(model).values()} == {("head_dim",)}
    params = init(model, jax.random.key(0))
    np.testing.assert_array_equal(params.pop("scale"), np.ones(8))
    for bias in params.values():
        np.testing.assert_array_equal(bias, np.zeros(8))


def test_groups_that_do_not_divide_or_that_a_norm_does_not_know_are_refused():
    class Plain(Norm):
        def forward(self, x, context=None):
            return x

    for cfg, text in (
        (RMSNorm.Config(dim=8, groups=3), "norm (RMSNorm): groups is 3, expected a divisor of dim (8)."),
        (LayerNorm.Config(dim=8, groups=0), "norm (LayerNorm): groups is 0, expected a divisor of dim (8)."),
        (Plain.Config(dim=8, groups=2), "norm (Plain): groups is 2, but Plain norms all as one."),
    ):
        with pytest.raises(ConfigError) as e:
            cfg.build(path="norm")
        assert str(e.value) == text


def test_a_scale_that_is_counted_from_1_starts_at_0():
    model = RMSNorm.Config(dim=8, offset=1.0).build()
    np.testing.assert_array_equal(init(model, jax.random.key(0))["scale"], np.zeros(8))


def test_a_small_scale_counted_from_1_is_not_rounded_away_in_bfloat16():
    model = RMSNorm.Config(dim=2, offset=1.0, eps=0.0).build()
    params = {"scale": jnp.full(2, 2.0**-9, jnp.bfloat16)}  # 1 + 2 ** -9 is 1 in bfloat16.
    x = jnp.array([3.0, -3.0], jnp.float32)
    np.testing.assert_array_equal(call(model, params, x)[0], np.array([1, -1]) * np.float32(1 + 2.0**-9))


def test_the_dtype_of_the_input_wins_over_that_of_the_parameters():
    model = LayerNorm.Config(dim=8).build()
    params = random_params(model)
    assert call(model, params, jnp.ones((2, 8), jnp.bfloat16))[0].dtype == jnp.bfloat16
