# SPDX-License-Identifier: Apache-2.0
"""Spikes are found as the same rule in NumPy finds them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.train import Spikes

DEVIATIONS, MARGIN, WINDOW, WARMUP = 4.0, 0.125, 5, 3


def spikes_in(losses, norms=None):
    """Yields whether each step is a spike, by the rule in float64."""
    known: list[tuple[float, float]] = []
    for loss, norm in zip(losses, norms or [1.0] * len(losses), strict=True):
        spike = False
        if len(known) >= WARMUP:
            for values, value in zip(zip(*known[-WINDOW:], strict=True), (loss, norm), strict=True):
                median = np.median(np.asarray(values, np.float64))
                above = max(DEVIATIONS * np.median(np.abs(np.asarray(values) - median)), MARGIN * abs(median))
                spike |= bool(np.isfinite(value) and value > median + above)
        if np.isfinite(loss) and np.isfinite(norm) and not spike:
            known.append((loss, norm))
        yield spike


RULES = {
    grad_norm: Spikes.Config(
        deviations=DEVIATIONS, margin=MARGIN, window=WINDOW, warmup=WARMUP, grad_norm=grad_norm
    ).build(path="spikes")
    for grad_norm in (False, True)
}


@jax.jit
def step(state, loss, norm):
    rule = RULES[not isinstance(state.norms, tuple)]
    spike = rule.judge(state, loss, norm).spike
    return rule.record(state, loss, norm, ~spike & jnp.isfinite(loss) & jnp.isfinite(norm))


# Multiples of a power of two: no comparison depends on rounding.
VALUES = st.sampled_from([0.0, 0.5, 0.75, 1.0, 1.125, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 64.0, np.inf, np.nan])
STEPS = st.lists(st.tuples(VALUES, VALUES), max_size=30)


@pytest.mark.parametrize("grad_norm", [False, True])
@settings(max_examples=50)
@given(steps=STEPS)
def test_spikes_are_those_of_the_rule_in_float64(grad_norm, steps):
    state, got = RULES[grad_norm].init(), []
    for loss, norm in steps:
        state, metrics = step(state, jnp.float32(loss), jnp.float32(norm))
        got.append(bool(metrics["spike/here"]))
    losses, norms = [loss for loss, _ in steps], [norm for _, norm in steps]
    if not grad_norm:  # It is kept out of the record only where it is not finite.
        norms = [1.0 if np.isfinite(norm) else norm for norm in norms]
    assert got == list(spikes_in(losses, norms))
    assert int(state.spikes) == sum(got)


def test_a_streak_counts_all_steps_without_an_update():
    rule = RULES[False]
    state = rule.init()
    for loss, streak in [(1.0, 0), (np.nan, 1), (1.0, 0), (1.0, 0), (9.0, 1), (np.inf, 2), (9.0, 3), (1.0, 0)]:
        state, metrics = step(state, jnp.float32(loss), jnp.float32(1.0))
        assert int(metrics["spike/streak"]) == streak
    assert rule.cfg.warmup == WARMUP
    assert int(state.num_steps) == 4


def test_two_rules_for_spikes_are_refused():
    from dovetail.optim import Skip

    with pytest.raises(ConfigError, match=r"^spikes and learner\.skip\.spike_factor both say what a spike is\."):
        RULES[False].check(Skip.Config(spike_factor=2.0))


@pytest.mark.parametrize("field, value", [("deviations", 0.0), ("window", 0), ("warmup", 0), ("max_rollbacks", -1)])
def test_what_makes_no_rule_is_refused(field, value):
    with pytest.raises(ConfigError, match=rf"^spikes\.{field}: is {value!r}, expected "):
        Spikes.Config(**{field: value}).build(path="spikes")
