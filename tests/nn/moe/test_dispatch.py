# SPDX-License-Identifier: Apache-2.0
"""Rows reach their experts in order, and come back to their tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import call
from dovetail.nn import Capacity, Dropless
from support.numeric import check, normal

EXPERTS = jnp.array([[0, 2], [2, 0], [2, 3], [2, 0], [3, 2]])  # Nobody wants expert 1.
X, WEIGHTS = normal(0, (5, 3)), normal(1, (5, 2))


def send(cfg, x=X):
    return call(cfg.set(num_experts=4).build(), {}, x, EXPERTS, method="send")


def there_and_back(cfg):
    """Each expert multiplies by its number plus one."""
    model = cfg.set(num_experts=4).build()

    def function(x, weights):
        sent, _ = call(model, {}, x, EXPERTS, method="send")
        owner = jnp.arange(1, 5)
        if sent.sizes is not None:
            owner = jnp.repeat(owner, sent.sizes, total_repeat_length=10)
        y = sent.rows * owner.astype(jnp.float32).reshape(-1, *[1] * (sent.rows.ndim - 1))
        return call(model, {}, y, weights, sent, method="combine")[0]

    return function


def definition(x, weights, kept=lambda token, choice: True):
    out = np.zeros_like(x)
    for n, row in enumerate(np.asarray(EXPERTS)):
        for i, e in enumerate(row):
            out[n] += weights[n, i] * (e + 1) * x[n] * kept(n, i)
    return out


@pytest.mark.parametrize("cfg", [Dropless.Config(), Capacity.Config(factor=4.0)], ids=str)
def test_a_token_is_the_weighted_sum_of_what_its_experts_made(cfg):
    check(there_and_back(cfg), definition, X, WEIGHTS)


def test_rows_are_sorted_by_expert_and_then_by_token():
    sent, _ = send(Dropless.Config())
    np.testing.assert_array_equal(sent.sizes, [3, 0, 5, 2])
    np.testing.assert_array_equal(sent.rows, X[jnp.array([0, 1, 3, 0, 1, 2, 3, 4, 2, 4])])


def test_beyond_its_capacity_an_expert_drops_the_later_tokens():
    # 5 tokens, 2 choices, 4 experts: 2.5 rows each if even, so that a factor of 0.8 is 2 rows.
    cfg = Capacity.Config(factor=0.8)
    sent, collected = send(cfg)
    empty = jnp.zeros(3)
    want = [[X[0], X[1]], [empty, empty], [X[0], X[1]], [X[2], X[4]]]
    np.testing.assert_array_equal(sent.rows, jnp.array(want))
    np.testing.assert_allclose(collected.summaries["dropped"], 4 / 10)
    dropped = {(2, 0), (3, 0), (3, 1), (4, 1)}
    check(there_and_back(cfg), lambda x, w: definition(x, w, lambda n, i: (n, i) not in dropped), X, WEIGHTS)


def test_a_later_token_never_changes_what_becomes_of_an_earlier_one():
    model = Capacity.Config(factor=0.8, num_experts=4).build()
    before, _ = call(model, {}, X, EXPERTS, method="send")
    for experts in ([0, 1], [3, 0], [2, 1]):
        after, _ = call(model, {}, X, EXPERTS.at[3].set(jnp.array(experts)), method="send")
        np.testing.assert_array_equal(after.target[:6], before.target[:6])


def test_the_room_of_an_expert_is_fixed_and_never_more_than_all_rows():
    for factor, room in ((0.01, 1), (1.0, 3), (1.25, 4), (100.0, 10)):
        shape = jax.eval_shape(lambda x, factor=factor: send(Capacity.Config(factor=factor), x)[0].rows, X).shape
        assert shape == (4, room, 3)


@pytest.mark.parametrize("kind, field", [(Capacity, "factor"), (Dropless, "room")])
def test_a_dispatch_without_room_is_refused(kind, field):
    with pytest.raises(ConfigError) as e:
        kind.Config(num_experts=4, **{field: 0.0}).build()
    assert str(e.value) == f"(root) ({kind.__name__}): {field} is 0.0, expected a positive number."
