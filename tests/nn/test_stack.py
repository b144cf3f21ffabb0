# SPDX-License-Identifier: Apache-2.0
"""A repeated block is its layers one after the other: scanned or not, with or without remat and dropout."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import Remat, call, init, normal, specs
from dovetail.nn import Attention, Block, Dropout, GatedFeedForward, PreNormBlock, RepeatedBlock
from dovetail.ops import Causal, Tokens
from support import numeric, reference
from support.compare import assert_same
from support.models import Previous, random_params
from support.numeric import check

X = numeric.normal(1, (2, 4, 8))
INPUTS: dict[str, Any] = {"tokens": Tokens(jnp.arange(4)[None]), "positions": jnp.arange(4)[None], "mask": Causal()}
LAYER = PreNormBlock.Config(mixer=Attention.Config(num_heads=2), ffn=GatedFeedForward.Config(hidden_dim=12))
STACK = RepeatedBlock.Config(dim=8, layer=LAYER, num_layers=2)
KEY = jax.random.key(0, impl="unsafe_rbg")  # Other draws, but much less to compile.
DROPS = STACK.set(layer=LAYER.set(mixer=Previous.Config(), dropout=Dropout.Config(rate=0.4)))


def run(cfg, **kwargs):
    model = cfg.build()
    return lambda params, x: call(model, params, x, **INPUTS, **kwargs)[0]


def test_a_stack_is_its_blocks_in_turn():
    allowed = np.tril(np.ones((2, 4, 4), bool))
    definition = functools.partial(reference.stack, allowed=allowed, positions=np.arange(4)[None])
    check(run(STACK), definition, random_params(STACK.build()), X)


def test_loop_and_remat_change_neither_values_nor_gradients_nor_draws():
    def outcome(cfg):
        forward = run(cfg, train=True, rng=KEY)
        return jax.jit(jax.value_and_grad(lambda p: jnp.mean(jnp.square(forward(p, X)))))(params)

    params = random_params(DROPS.build())
    assert_same(outcome(DROPS.set(loop="unroll").set_in("layer.remat", Remat(save=("ffn.hidden",)))), outcome(DROPS))


class Drops(Block):
    """A block that only drops, with a parameter to look at."""

    class Config(Block.Config):
        dropout: Dropout.Config = Dropout.Config(rate=0.3)

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.dropout = self.child("dropout", cfg.dropout)
        self.param("extra", (cfg.dim,), axes=("embed",), init=normal(1.0))

    def forward(self, x, *, tokens, positions, mask):
        return self.dropout(x)


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_layers_drop_independently(loop):
    cfg = RepeatedBlock.Config(dim=8, layer=Drops.Config(), num_layers=2, loop=loop)
    out = jax.jit(run(cfg, train=True, rng=KEY))({"layer": {"dropout": {}}}, jnp.ones((50, 4, 8)))
    # Independent draws keep 0.7^2 = 0.49, equal ones 0.7; of 1600, one standard deviation is 0.0125.
    np.testing.assert_allclose(np.mean(out != 0), 0.49, atol=0.05)


def test_each_layer_starts_on_its_own_and_as_it_would_in_a_larger_stack():
    cfg = RepeatedBlock.Config(dim=8, layer=Drops.Config(), num_layers=3)
    spec = specs(cfg.build())["layer"]["extra"]
    assert (spec.shape, spec.axes) == ((3, 8), ("layers", "embed"))
    few, more = (init(cfg.set(num_layers=n).build(), jax.random.key(0))["layer"]["extra"] for n in (2, 3))
    assert len(np.unique(more)) == 24
    np.testing.assert_array_equal(few, more[:2])


def test_no_layers_are_refused():
    with pytest.raises(ConfigError) as e:
        STACK.set(num_layers=0).build(path="stack")
    assert str(e.value) == "stack (RepeatedBlock): num_layers is 0, expected at least 1."
