# SPDX-License-Identifier: Apache-2.0
"""Feed-forward layers are their formulas, at each position on its own."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, config_for, from_json, to_json
from dovetail.module import call, specs
from dovetail.nn import DenseFeedForward, DenseLinear, GatedFeedForward
from dovetail.ops import erf_gelu, gated, squared_relu
from support import reference
from support.models import random_params
from support.numeric import BFLOAT16, cast, check, normal

BIASED = DenseLinear.Config(bias=True)
CASES = [
    DenseFeedForward.Config(dim=4, hidden_dim=6),
    DenseFeedForward.Config(dim=4, hidden_dim=6, up=BIASED, down=BIASED),
    GatedFeedForward.Config(dim=4, hidden_dim=6),
    GatedFeedForward.Config(dim=4, hidden_dim=6, up=BIASED, gate=BIASED, down=BIASED),
]


@pytest.mark.parametrize("cfg", CASES, ids=lambda cfg: f"{type(cfg).__qualname__}{'+bias' * cfg.up.bias}")
def test_feed_forward_is_its_formula(cfg):
    model = cfg.build()
    check(lambda p, x: call(model, p, x)[0], reference.feed_forward, random_params(model), normal(1, (2, 3, 4)))


# About six roundings in a row: the maps, the biases, the activation and, if gated, the product.
@pytest.mark.parametrize("cfg", [CASES[1], CASES[3]], ids=["dense", "gated"])
def test_feed_forward_in_bfloat16_rounds_little(cfg):
    model = cfg.build()
    params, x = cast((random_params(model), normal(1, (2, 3, 4))), jnp.bfloat16)
    got = check(lambda p, x: call(model, p, x)[0], reference.feed_forward, params, x, tolerance=6 * BFLOAT16)
    assert got.dtype == jnp.bfloat16


def exact_gelu(x):
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


ACTIVATIONS = {
    "silu": (jax.nn.silu, reference.silu),
    "gelu by tanh, as in Gemma": (jax.nn.gelu, reference.gelu),
    "exact gelu": (functools.partial(jax.nn.gelu, approximate=False), exact_gelu),
    "gelu by erf": (erf_gelu, lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2),
    "squared relu": (squared_relu, lambda x: np.maximum(x, 0) ** 2),
}


@pytest.mark.parametrize("activation, formula", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_the_activation_can_be_chosen_gated_or_not_and_survives_json(activation, formula):
    dense = DenseFeedForward.Config(dim=4, hidden_dim=6, activation=activation)
    for cfg in (dense, GatedFeedForward.Config(dim=4, hidden_dim=6, activation=config_for(gated, activation))):
        model = from_json(to_json(cfg)).build()

        def definition(p, x):
            gate = formula(reference.linear(p.get("gate", p["up"]), x))
            return reference.linear(p["down"], gate * reference.linear(p["up"], x) if "gate" in p else gate)

        check(lambda p, x, model=model: call(model, p, x)[0], definition, random_params(model), normal(1, (2, 3, 4)))


@pytest.mark.parametrize("cfg", [CASES[0], CASES[2]], ids=["dense", "gated"])
def test_positions_do_not_see_each_other(cfg):
    model = cfg.build()
    run = jax.jit(lambda p, x: call(model, p, x)[0])
    params, x = random_params(model), normal(1, (2, 3, 4))
    changed = np.asarray(run(params, x.at[0, 1].add(1.0)) != run(params, x)).any(axis=-1)
    np.testing.assert_array_equal(changed, [[False, True, False], [False, False, False]])


def test_axes_name_the_model_and_the_hidden_dimension():
    for name, spec in specs(CASES[3].build()).items():
        ends = ("mlp", "embed") if name == "down" else ("embed", "mlp")
        assert (spec["weight"].axes, spec["bias"].axes) == (ends, ends[1:])


def test_a_hidden_dim_that_is_missing_is_named():
    with pytest.raises(ConfigError) as e:
        GatedFeedForward.Config(dim=4).build()
    assert str(e.value) == (
        "GatedFeedForward.Config: 1 required field is not set:\n"
        "  hidden_dim: int\n"
        "  Set them, as in cfg.set_in('hidden_dim', ...)."
    )
