# SPDX-License-Identifier: Apache-2.0
"""LoRA adds a product of two thin matrices to any linear map, and nothing at the start."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import REQUIRED, ConfigError, replace_all
from dovetail.module import Module, call, init, specs
from dovetail.nn import (
    DenseLinear,
    FeedForward,
    GroupedLinear,
    Int8Linear,
    LatentAttention,
    Linear,
    LoRAGroupedLinear,
    LoRALinear,
    MoEFeedForward,
)
from support import reference
from support.compare import assert_same
from support.models import lm, random_params
from support.numeric import check, normal

SHAPES = {"in_shape": (2, 3), "out_shape": (4, 5), "in_axes": ("a", "b"), "out_axes": ("c", "d")}


def test_it_is_the_inner_map_plus_a_scaled_product():
    model = LoRALinear.Config(rank=3, alpha=6.0, inner=DenseLinear.Config(bias=True), **SHAPES).build()

    def definition(params, x):
        product = np.tensordot(params["lora_a"], params["lora_b"], 1)
        return reference.linear(params["inner"], x, num_in=2) + 2.0 * np.tensordot(x, product, 2)

    check(lambda params, x: call(model, params, x)[0], definition, random_params(model), normal(1, (7, 2, 3)))


def test_the_matrix_is_that_of_the_whole_map():
    model = LoRALinear.Config(**SHAPES).build()
    params, x = random_params(model), normal(1, (7, 2, 3))
    matrix = call(model, params, method="matrix")[0]
    np.testing.assert_allclose(np.tensordot(x, matrix, 2), call(model, params, x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inner", [DenseLinear.Config(bias=True), Int8Linear.Config()])
def test_at_the_start_it_is_the_inner_map(inner):
    model, alone = LoRALinear.Config(inner=inner, **SHAPES).build(), inner.set(**SHAPES).build()
    params, x = init(model, jax.random.key(0)), normal(1, (7, 2, 3))
    assert np.any(params["lora_a"])
    np.testing.assert_array_equal(call(model, params, x)[0], call(alone, params["inner"], x)[0])


def test_specs_carry_axes_and_fans():
    spec = specs(LoRALinear.Config(rank=2, **SHAPES).build())
    a, b = spec["lora_a"], spec["lora_b"]
    assert (a.shape, a.axes, a.fan_in, a.fan_out) == ((2, 3, 2), ("a", "b", None), 6, 2)
    assert (b.shape, b.axes, b.fan_in, b.fan_out) == ((2, 4, 5), (None, "c", "d"), 2, 20)


def test_every_linear_map_of_a_model_gets_one_and_keeps_its_own_config():
    biased = replace_all(DenseLinear.Config, lambda old: old.set(bias=True))(lm())
    adapted = replace_all(Linear.Config, lambda old: LoRALinear.Config(rank=2, inner=old))(biased)
    tree = specs(adapted.build())
    assert set(tree["head"]) == {"lora_a", "lora_b", "inner"}
    assert set(tree["stack"]["layer"]["mixer"]["query"]["inner"]) == {"weight", "bias"}


class Reference(Module):
    """A model beside itself without its adapters, which need no parameters of their own."""

    class Config(Module.Config):
        policy: Module.Config = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.policy = self.child("policy", cfg.policy)

    def forward(self, ids):
        return self.policy(ids), self.without_gradient(self.policy, ids, off=["lora"])


def without_adapters(tree):
    if not isinstance(tree, dict):
        return tree
    return without_adapters(tree["inner"]) if "inner" in tree else {k: without_adapters(v) for k, v in tree.items()}


MOE = replace_all(FeedForward.Config, MoEFeedForward.Config(num_experts=4))
LATENT = LatentAttention.Config(num_heads=2, kv_rank=3, nope_dim=2, rope_dim=2, value_dim=3)


SPARSE = MOE(lm()).set_in("stack.layer.mixer", LATENT)


@pytest.mark.parametrize("plain", [lm(), SPARSE], ids=["dense", "experts, latent"])
def test_switched_off_it_is_the_model_without_adapters_and_learns_nothing(plain):
    kinds: Any = {
        Linear.Config: lambda old: LoRALinear.Config(rank=2, inner=old),
        GroupedLinear.Config: lambda old: LoRAGroupedLinear.Config(rank=2, inner=old),
    }
    model = Reference.Config(policy=replace_all(kinds, missing="ok")(plain)).build()
    params, ids = random_params(model), jnp.array([[1, 2, 3], [4, 5, 6]])

    def second(params):
        policy, reference = call(model, params, ids)[0]
        return jnp.sum(jnp.square(reference)), (policy, reference)

    grads, (policy, found) = jax.jit(jax.grad(second, has_aux=True))(params)
    want = call(plain.build(), without_adapters(params["policy"]), ids)[0]
    assert_same(found, want)
    assert not np.allclose(policy, want, atol=0.1)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads))


def test_a_rank_below_one_is_refused():
    with pytest.raises(ConfigError) as e:
        LoRALinear.Config(rank=0, **SHAPES).build(path="query")
    assert str(e.value) == "query (LoRALinear): rank is 0, expected at least 1."
