# SPDX-License-Identifier: Apache-2.0
"""A router is its definition: choice, weights, losses, and the bias that balances without a loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import call, merged, next_run_state, specs
from dovetail.nn import TopKRouter
from support.experts import route, scored
from support.models import random_values
from support.numeric import FLOAT32, assert_close, check, float64, normal

FIELDS = {"dim": 5, "num_experts": 8}
# A 3 x larger router than usual, so that scores differ.
X = normal(1, (12, 5), size=3.0)
KINDS = {
    "Mixtral": {},
    "Switch": {"top_k": 1, "normalize": False},
    "Qwen2-MoE": {"top_k": 4, "normalize": False},
    "gpt-oss": {"top_k": 4, "bias": True},
    "sigmoid": {"top_k": 3, "score": "sigmoid", "normalize": False, "scale": 1.5},
    "DeepSeek-V2": {
        "top_k": 3,
        "normalize": False,
        "scale": 4.0,
        "num_groups": 4,
        "top_groups": 2,
        "group_score": "max",
    },
    "DeepSeek-V3": {
        "top_k": 3,
        "score": "sigmoid",
        "scale": 2.5,
        "num_groups": 4,
        "top_groups": 2,
        "selection_rate": 1e-3,
    },
}


def build(**fields):
    model = TopKRouter.Config(**FIELDS, **fields).build()
    return model, random_values(model)


def defined(fields):
    return {name: value for name, value in fields.items() if name not in ("bias", "selection_rate")}


@pytest.mark.parametrize("kind", KINDS)
def test_choice_and_weights_are_their_definition(kind):
    model, params = build(**KINDS[kind])
    want = route(float64(params), float64(X), **defined(KINDS[kind]))
    np.testing.assert_array_equal(call(model, params, X)[0].experts, want[1])
    check(
        lambda p, x: call(model, p, x)[0].weights,
        lambda p, x: route(p, x, **defined(KINDS[kind]))[0],
        params,
        X,
    )


def test_dimensions_of_tokens_are_all_the_same_to_a_router():
    model, params = build(**KINDS["DeepSeek-V3"], z_loss=0.1)
    flat, shaped = call(model, params, X), call(model, params, X.reshape(3, 4, 5))
    assert shaped[0].experts.shape == (3, 4, 3)
    assert_close((type(flat[0])(*(each.reshape(12, 3) for each in shaped[0])), shaped[1]), flat, FLOAT32)


def test_softmax_after_the_choice_is_softmax_before_it_normalised():
    model, params = build(top_k=4, bias=True)
    weights, experts = call(model, params, X)[0]
    logits = float64(X) @ float64(params["weight"]) + float64(params["bias"])
    own = np.exp(np.take_along_axis(logits, np.asarray(experts), axis=1))
    assert_close(weights, own / own.sum(axis=1, keepdims=True), FLOAT32)


def test_groups_rule_out_the_experts_of_others():
    fields = KINDS["DeepSeek-V3"]
    model, params = build(**fields)
    free, _ = build(**{**fields, "num_groups": 1, "top_groups": 1})
    experts, others = (call(m, params, X)[0].experts for m in (model, free))
    assert all(len(set(row // 2)) <= 2 for row in np.asarray(experts))
    assert any(len(set(row // 2)) > 2 for row in np.asarray(others)), "the limit is felt"


def test_a_group_is_chosen_by_its_best_expert_or_by_its_two_best():
    fields = {"top_k": 1, "normalize": False, "num_groups": 2}
    logits = jnp.array([[3.0, 0.0, 2.8, 2.8]])
    params = {"weight": jnp.eye(4)}
    chosen = {}
    for score in ("max", "top_two"):
        model = TopKRouter.Config(dim=4, num_experts=4, group_score=score, **fields).build()
        chosen[score] = int(call(model, params, logits)[0].experts[0, 0])
    assert chosen == {"max": 0, "top_two": 2}


def test_the_selection_bias_counts_in_the_choice_and_not_in_the_weights():
    model, params = build(top_k=2, score="sigmoid", normalize=False, selection_rate=0.0)
    weights, experts = call(model, {**params, "selection_bias": jnp.zeros(8).at[5].set(9.0)}, X)[0]
    np.testing.assert_array_equal(experts[:, 0], 5)
    scores = 1 / (1 + np.exp(-float64(X) @ float64(params["weight"])))
    assert_close(weights, np.take_along_axis(scores, np.asarray(experts), axis=1), FLOAT32)


def test_weights_and_choice_are_in_float32_in_a_bfloat16_model():
    model, params = build(**KINDS["DeepSeek-V3"])
    rounded = X.astype(jnp.bfloat16)
    got = call(model, params, rounded, dtype=jnp.bfloat16)[0]
    assert got.weights.dtype == jnp.float32
    assert_close(got.weights, route(float64(params), float64(rounded), **defined(KINDS["DeepSeek-V3"]))[0], FLOAT32)


# Losses and summaries.


def share(experts):
    return np.bincount(np.asarray(experts).reshape(-1), minlength=8) / experts.size


@pytest.mark.parametrize("kind", ["Mixtral", "sigmoid"])
def test_the_balance_loss_is_that_of_switch_and_moves_the_scores_alone(kind):
    model, params = build(**KINDS[kind], balance_loss=0.5)
    experts = route(float64(params), float64(X), **defined(KINDS[kind]))[1]

    def definition(p, x):
        scores = np.stack([scored(p, token, KINDS[kind].get("score", "softmax")) for token in x])
        means = (scores / scores.sum(axis=1, keepdims=True)).mean(axis=0)
        return np.array(0.5 * 8 * sum(share(experts) * means))

    check(lambda p, x: call(model, p, x)[1].losses["balance"], definition, params, X)


def test_the_z_loss_is_its_definition():
    model, params = build(bias=True, z_loss=0.1, balance_loss=0.0)

    def definition(p, x):
        return np.array(0.1 * np.mean(np.log(np.exp(x @ p["weight"] + p["bias"]).sum(axis=1)) ** 2))

    check(lambda p, x: call(model, p, x)[1].losses["z"], definition, params, X)
    assert list(call(model, params, X)[1].losses) == ["z"]


def test_summaries_tell_the_load():
    model, params = build()
    (_, experts), collected = call(model, params, X)
    load = share(experts)
    entropy = -sum(p * np.log(p) for p in load if p)
    want = {"load_min": 8 * load.min(), "load_max": 8 * load.max(), "load_entropy": entropy}
    assert_close(collected.summaries, want, FLOAT32)


def test_the_bias_of_busy_experts_falls_and_that_of_idle_ones_rises():
    model, values = build(score="sigmoid", selection_rate=0.01, balance_loss=0.0)

    def loss(values):
        routing, collected = call(model, values, X)
        return jnp.sum(jnp.square(routing.weights)), (routing.experts, collected)

    grads, (experts, collected) = jax.grad(loss, has_aux=True)(values)
    assert not np.any(grads["selection_bias"]), "no gradient reaches it"
    assert not collected.losses
    before = {"selection_bias": values["selection_bias"]}
    after = next_run_state(model, before, collected.updates)
    moved = after["selection_bias"] - before["selection_bias"]
    np.testing.assert_allclose(moved, 0.01 * np.sign(1 / 8 - share(experts)), rtol=1e-4)


def test_the_bias_is_no_parameter():
    model, _ = build(selection_rate=0.01)
    assert list(specs(model)) == ["weight"]


def test_repeated_steps_of_the_bias_balance_the_load():
    model, values = build(score="sigmoid", selection_rate=0.005, balance_loss=0.0)
    x = normal(2, (256, 5), size=2.0)

    @jax.jit
    def step(run_state):
        collected = call(model, merged({"weight": values["weight"]}, run_state), x)[1]
        return next_run_state(model, run_state, collected.updates), collected

    run_state, before = step({"selection_bias": jnp.zeros(8)})
    after = before
    for _ in range(150):
        run_state, after = step(run_state)
    assert before.summaries["load_max"] > 1.5
    assert after.summaries["load_max"] < 1.15
    assert after.summaries["load_min"] > 0.85


# What is refused.


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"top_k": 9}, "top_k is 9, expected 1 to 8, the experts of 1 of 1 groups."),
        ({"num_groups": 3}, "num_groups is 3, expected a divisor of 8 experts."),
        ({"num_groups": 4, "top_groups": 5}, "top_groups is 5, expected 1 to num_groups (4)."),
        ({"num_groups": 4, "top_k": 3}, "top_k is 3, expected 1 to 2, the experts of 1 of 4 groups."),
        ({"scale": 0.0}, "scale is 0.0, expected a positive number."),
        ({"balance_loss": -0.1}, "balance_loss is -0.1, expected at least 0."),
        ({"selection_rate": -1e-3}, "selection_rate is -0.001, expected at least 0, or None."),
        ({"top_k": 1}, "with top_k 1 and normalize, every weight is 1.0, whatever the router does"),
    ],
)
def test_a_router_that_cannot_work_is_refused(fields, message):
    with pytest.raises(ConfigError) as e:
        TopKRouter.Config(**FIELDS, **fields).build()
    assert f"(root) (TopKRouter): {message}" in str(e.value)
