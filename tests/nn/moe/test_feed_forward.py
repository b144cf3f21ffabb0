# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts is a loop over tokens, at the cost of the experts that each token uses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.aot import count_flops
from dovetail.config import config_for, modify
from dovetail.module import abstract, call, specs
from dovetail.nn import (
    Capacity,
    DenseGroupedLinear,
    GatedFeedForward,
    MoEFeedForward,
    TopKRouter,
    WeightedFeedForward,
)
from dovetail.ops import BlockedGroupedMatmul, GroupedMatmul, RaggedDot, clamped_swiglu
from support import reference
from support.compare import assert_same
from support.experts import mixture
from support.loops import Repeat
from support.models import random_params, random_values
from support.numeric import BFLOAT16, assert_close, check, float64, normal

FIELDS: dict[str, Any] = {"dim": 4, "hidden_dim": 6, "num_experts": 4}
X = normal(1, (2, 5, 4))
BIASED = DenseGroupedLinear.Config(bias=True)


def clamped(p, x):
    gate, up = np.minimum(reference.linear(p["gate"], x), 0.5), np.clip(reference.linear(p["up"], x), -0.5, 0.5)
    return reference.linear(p["down"], gate / (1 + np.exp(-2 * gate)) * (up + 1))


def relu(p, x):
    return reference.linear(p["down"], np.maximum(reference.linear(p["up"], x), 0))


DEEPSEEK = TopKRouter.Config(top_k=2, score="sigmoid", scale=2.5, num_groups=2, selection_rate=1e-3)
CASES = {
    "default": (MoEFeedForward.Config(**FIELDS), {}),
    "dense experts, switch": (
        MoEFeedForward.Config(**FIELDS, activation=jax.nn.gelu, router=TopKRouter.Config(top_k=1, normalize=False)),
        {"top_k": 1, "normalize": False},
    ),
    "DeepSeek-V3, shared": (
        MoEFeedForward.Config(**FIELDS, router=DEEPSEEK, shared=GatedFeedForward.Config(hidden_dim=3)),
        {"score": "sigmoid", "scale": 2.5, "num_groups": 2},
    ),
    "relu": (MoEFeedForward.Config(**FIELDS, activation=jax.nn.relu), {"function": relu}),
    "gpt-oss": (
        MoEFeedForward.Config(
            **FIELDS, activation=config_for(clamped_swiglu, alpha=2.0, limit=0.5), gate=BIASED, up=BIASED, down=BIASED
        ),
        {"function": clamped},
    ),
    "ample capacity": (MoEFeedForward.Config(**FIELDS, dispatch=Capacity.Config(factor=4.0)), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mixture_is_a_loop_over_tokens(case):
    cfg, fields = CASES[case]
    model = cfg.build()
    check(lambda p, x: call(model, p, x)[0], lambda p, x: mixture(p, x, **fields), random_values(model), X)


def test_a_weighted_feed_forward_counts_as_much_as_its_sigmoid_says():
    model = WeightedFeedForward.Config(dim=4, inner=GatedFeedForward.Config(hidden_dim=6)).build()

    def definition(p, x):
        return reference.feed_forward(p["inner"], x) / (1 + np.exp(-reference.linear(p["weight"], x)))

    check(lambda p, x: call(model, p, x)[0], definition, random_params(model), X)


def test_in_bfloat16_the_choice_is_exact_and_the_rest_rounds_little():
    model = MoEFeedForward.Config(**FIELDS).build()
    params, x = random_params(model), X.astype(jnp.bfloat16)
    got, _ = call(model, params, x, dtype=jnp.bfloat16)
    assert got.dtype == jnp.bfloat16
    # The weights are rounded too, then about six roundings in a row.
    assert_close(got, mixture(float64(params), float64(x)), 10 * BFLOAT16)


def test_one_expert_is_a_dense_layer():
    dense = GatedFeedForward.Config(dim=4, hidden_dim=6).build()
    model = MoEFeedForward.Config(dim=4, hidden_dim=6, num_experts=1, router=TopKRouter.Config(top_k=1)).build()
    params = random_params(dense)
    alone = {"router": {"weight": normal(2, (4, 1))}, **jax.tree.map(lambda w: w[None], params)}
    assert_same(call(model, alone, X)[0], call(dense, params, X)[0])


def test_a_scan_is_a_loop_also_in_losses_summaries_and_what_moves_the_bias():
    cfg = CASES["DeepSeek-V3, shared"][0]
    models = [Repeat.Config(layer=cfg, num_repeats=2, loop=loop).build() for loop in ("scan", "unroll")]
    params = random_values(models[0])

    def outcome(model):
        def loss(params, x):
            out, collected = call(model, params, x)
            return jnp.sum(jnp.sin(out)) + sum(map(jnp.sum, collected.losses.values())), collected

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(params, X)

    scanned, looped = map(outcome, models)
    assert_same(scanned, looped)
    assert not np.any(scanned[1]["layer"]["router"]["selection_bias"])
    load = scanned[0][1].updates["layer.router.selection_bias"]
    np.testing.assert_allclose(np.mean(load, axis=1), [1, 1], rtol=1e-6, err_msg="each layer has its own load")
    assert scanned[0][1].losses["layer[:].router.balance"].shape == (2,)


def flops(cfg, *, grad=False):
    model = cfg.build()

    def run(params, x):
        return jnp.sum(call(model, params, x)[0])

    x = jax.ShapeDtypeStruct((2, 256, cfg.dim), jnp.float32)
    return count_flops(jax.grad(run, (0, 1)) if grad else run, abstract(model), x)


@pytest.mark.parametrize("grad", [False, True])
def test_the_work_is_that_of_the_active_experts_and_the_router(grad):
    big = MoEFeedForward.Config(dim=8, hidden_dim=16, num_experts=8)
    dense = flops(GatedFeedForward.Config(dim=8, hidden_dim=2 * 16), grad=grad)
    router = (3 if grad else 1) * 2 * 512 * 8 * 8
    blocked = modify(GroupedMatmul.Config, lambda _: BlockedGroupedMatmul.Config(block=16))(big)
    padding = 8 * 15 / 1024
    assert dense < flops(blocked, grad=grad) - router <= dense * (1 + padding)
    assert flops(modify(GroupedMatmul.Config, lambda _: RaggedDot.Config())(big), grad=grad) == dense + router
    assert flops(big.set(dispatch=Capacity.Config(factor=1.0)), grad=grad) == dense + router
    assert flops(big.set(dispatch=Capacity.Config(factor=1.5)), grad=grad) == 1.5 * dense + router


def test_parameters_of_experts_have_an_axis_for_them():
    found = specs(MoEFeedForward.Config(**FIELDS).build())
    assert found["gate"]["weight"].axes == ("expert", "embed", "mlp")
    assert found["down"]["weight"].axes == ("expert", "mlp", "embed")
    assert found["router"]["weight"].axes == ("embed", None)


def test_every_map_of_the_experts_is_a_slot():
    biased = modify(DenseGroupedLinear.Config, lambda linear: linear.set(bias=True))(MoEFeedForward.Config(**FIELDS))
    model = biased.build()
    assert {name for name, below in specs(model).items() if "bias" in below} == {"gate", "up", "down"}
    check(lambda p, x: call(model, p, x)[0], mixture, random_params(model), X)
