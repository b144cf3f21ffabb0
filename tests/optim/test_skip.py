# SPDX-License-Identifier: Apache-2.0
"""Which steps are skipped, against the same rule in plain Python."""

import math
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.optim import Skip, SkipState

FACTOR, WINDOW, LEAST, STREAK = 2.0, 5, 2, 3


def rule(norms, usual):
    """Yields whether each norm is accepted."""
    known, streak = [], 0
    for norm in norms:
        finite = math.isfinite(norm)
        spike = finite and len(known) >= LEAST and norm > FACTOR * usual(known[-WINDOW:])
        if spike and streak >= STREAK:
            known, spike = [], False
        if finite and not spike:
            known.append(norm)
            streak = 0
        elif spike:
            streak += 1
        yield finite and not spike


def spiky(usual):
    return Skip.Config(spike_factor=FACTOR, usual=usual, window=WINDOW, min_window=LEAST, max_streak=STREAK)


STEPS = {usual: jax.jit(spiky(usual).build().step) for usual in ("median", "mean")}
# Powers of two and their like, so that sums are exact and no comparison depends on rounding.
NORMS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 8.0, 16.0, 64.0, math.inf, math.nan]), max_size=40)


@pytest.mark.parametrize("usual", ["median", "mean"])
@settings(max_examples=50)
@given(norms=NORMS)
def test_spikes_and_what_is_not_finite_are_skipped_by_the_rule(usual, norms):
    if usual == "mean":  # A mean of 3 or 5 is not exact; keep the factor away from ties.
        norms = [norm * 1.0001**i for i, norm in enumerate(norms)]
    state, got = spiky(usual).build().init(), []
    for norm in norms:
        accepted, state = STEPS[usual](state, jnp.float32(norm), None)
        got.append(bool(accepted))
    assert got == list(rule(np.asarray(norms, np.float32).tolist(), getattr(statistics, usual)))


def test_after_a_streak_of_spikes_the_record_starts_anew():
    state = spiky("median").build().init()
    for norm in [1.0] * 6 + [10.0] * 3:
        _, state = STEPS["median"](state, jnp.float32(norm), None)
    assert (int(state.num_norms), int(state.streak)) == (6, 3)
    accepted, state = STEPS["median"](state, jnp.float32(11.0), None)
    assert accepted
    np.testing.assert_array_equal(state.norms, [11.0, *[np.inf] * 4])
    assert (int(state.num_norms), int(state.streak)) == (1, 0)


@pytest.mark.parametrize("norm, loss, want", [(1.0, 1.0, True), (np.nan, 1.0, False), (1.0, np.inf, False)])
def test_without_a_factor_only_what_is_not_finite_is_skipped(norm, loss, want):
    skip = Skip.Config().build()
    assert skip.init() == ()
    accepted, state = skip.step((), jnp.float32(norm), jnp.float32(loss))
    assert (bool(accepted), state) == (want, ())


def test_state_keeps_shapes_and_dtypes():
    skip = spiky("median").build()
    before = jax.eval_shape(skip.init)
    _, after = jax.eval_shape(skip.step, before, jnp.float32(1.0), jnp.float32(1.0))
    assert isinstance(after, SkipState)
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.weak_type), before
    )


@pytest.mark.parametrize(
    "cfg, message",
    [
        (
            Skip.Config(spike_factor=1.0),
            "(root) (Skip): spike_factor is 1.0, expected a number greater than 1, or None.",
        ),
        (Skip.Config(window=0), "(root) (Skip): window is 0, expected at least 1."),
        (Skip.Config(window=8, min_window=9), "(root) (Skip): min_window is 9, expected 1 to window (8)."),
        (Skip.Config(max_streak=0), "(root) (Skip): max_streak is 0, expected at least 1."),
    ],
)
def test_out_of_range_is_refused_when_built(cfg, message):
    with pytest.raises(ConfigError) as e:
        cfg.build()
    assert str(e.value) == message
