# SPDX-License-Identifier: Apache-2.0
"""Schedules at every step of a small run, against definitions in float64, and beyond its end."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail.config import ConfigError, replace_all
from dovetail.optim import (
    ConstantSchedule,
    CosineSchedule,
    InverseSqrtSchedule,
    LinearSchedule,
    Schedule,
    WSDSchedule,
)

PEAK, WARMUP, TOTAL, FINAL = 3e-4, 4, 20, 0.1


def warm(after):
    """Returns a definition: straight up for WARMUP steps, then `after(steps since)` of the peak."""
    return lambda n: PEAK * (n / WARMUP if n < WARMUP else after(n - WARMUP))


def cosine(n):
    return FINAL + (1 - FINAL) * 0.5 * (1 + math.cos(math.pi * min(n / 16, 1)))


def linear(n):
    return 1 - (1 - FINAL) * min(n / 16, 1)


def wsd(shape):
    """Stable for 11 steps after the warm-up, then down in 5."""
    return lambda n: 1.0 if n < 11 else FINAL + (1 - FINAL) * shape(min((n - 11) / 5, 1))


BASE: dict[str, Any] = {"peak": PEAK, "warmup_steps": WARMUP}
END: dict[str, Any] = {**BASE, "total_steps": TOTAL, "final_ratio": FINAL}
CASES = {
    "constant": (ConstantSchedule.Config(**BASE), warm(lambda n: 1.0)),
    "constant without warm-up": (ConstantSchedule.Config(peak=PEAK), lambda n: PEAK),
    "cosine": (CosineSchedule.Config(**END), warm(cosine)),
    "cosine without warm-up": (
        CosineSchedule.Config(peak=PEAK, total_steps=16),
        lambda n: PEAK * 0.5 * (1 + math.cos(math.pi * min(n / 16, 1))),
    ),
    "linear": (LinearSchedule.Config(**END), warm(linear)),
    "wsd linear": (WSDSchedule.Config(**END, decay_steps=5), warm(wsd(lambda p: 1 - p))),
    "wsd cosine": (
        WSDSchedule.Config(**END, decay_steps=5, decay="cosine"),
        warm(wsd(lambda p: 0.5 * (1 + math.cos(math.pi * p)))),
    ),
    "wsd 1-sqrt": (
        WSDSchedule.Config(**END, decay_steps=5, decay="1-sqrt"),
        warm(wsd(lambda p: 1 - math.sqrt(p))),
    ),
    "wsd without stable part": (WSDSchedule.Config(**END, decay_steps=16), warm(linear)),
    "inverse sqrt": (
        InverseSqrtSchedule.Config(**BASE),
        lambda n: PEAK * (n / WARMUP if n < WARMUP else math.sqrt(WARMUP / n)),
    ),
    "inverse sqrt with timescale": (
        InverseSqrtSchedule.Config(**BASE, timescale=100),
        warm(lambda n: math.sqrt(100 / (100 + n))),
    ),
    "inverse sqrt without warm-up": (
        InverseSqrtSchedule.Config(peak=PEAK, timescale=1),
        lambda n: PEAK / math.sqrt(1 + n),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_step_and_beyond_the_end_is_as_defined(name):
    cfg, definition = CASES[name]
    steps = [*range(2 * TOTAL), 10**6, 2**24]
    got = jax.jit(cfg.build())(jnp.array(steps, jnp.int32))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, [definition(n) for n in steps], rtol=2e-6, atol=1e-7 * PEAK)


def test_boundaries_are_exact():
    for cfg in (CosineSchedule.Config(**END), LinearSchedule.Config(**END), WSDSchedule.Config(**END, decay_steps=5)):
        schedule = cfg.build()
        assert schedule(0) == 0
        assert schedule(WARMUP) == np.float32(PEAK)
        np.testing.assert_allclose([schedule(TOTAL), schedule(TOTAL + 1)], PEAK * FINAL, rtol=1e-7)
        assert cfg.set(final_ratio=0.0).build()(TOTAL) == 0


@pytest.mark.parametrize(
    "cfg",
    [CosineSchedule.Config(**END), LinearSchedule.Config(**END), WSDSchedule.Config(**END, decay_steps=5)],
    ids=lambda cfg: type(cfg).__qualname__,
)
def test_a_schedule_without_an_end_ends_with_the_run(cfg):
    steps, follows = np.arange(2 * TOTAL), cfg.set(total_steps=None)
    np.testing.assert_array_equal(follows.build(steps=TOTAL)(steps), cfg.build()(steps))
    np.testing.assert_array_equal(cfg.build(steps=3 * TOTAL)(steps), cfg.build()(steps))
    with pytest.raises(ConfigError) as e:
        follows.build(path="learner.schedule")
    assert str(e.value) == (
        f"learner.schedule ({type(cfg)._owner.__name__}): total_steps is not set, and there is no run to end with.\n"
        "  Set it, or build the learner with the steps of a run: cfg.build(specs=..., steps=...)."
    )


def test_a_run_that_is_shorter_than_its_warmup_ends_in_it():
    schedule = CosineSchedule.Config(**BASE).build(steps=WARMUP - 2)
    np.testing.assert_allclose(schedule(np.arange(WARMUP)), PEAK * np.arange(WARMUP) / WARMUP, rtol=1e-6)


def test_warmup_and_cosine_are_those_of_optax():
    theirs = optax.warmup_cosine_decay_schedule(0.0, PEAK, WARMUP, TOTAL, end_value=PEAK * FINAL)
    ours = CosineSchedule.Config(**END).build()
    steps = jnp.arange(2 * TOTAL)
    with jax.numpy_dtype_promotion("standard"):
        np.testing.assert_allclose(ours(steps), theirs(steps), rtol=1e-5)


def test_a_schedule_takes_over_peak_and_warmup_and_end_of_the_one_it_replaces():
    new = replace_all(Schedule.Config, WSDSchedule.Config(decay_steps=5))(CosineSchedule.Config(**END))
    assert new == WSDSchedule.Config(**END, decay_steps=5)


@pytest.mark.parametrize(
    "cfg, message",
    [
        (ConstantSchedule.Config(peak=0.0), "(root) (ConstantSchedule): peak is 0.0, expected a positive number."),
        (ConstantSchedule.Config(peak=math.nan), "(root) (ConstantSchedule): peak is nan, expected a positive number."),
        (ConstantSchedule.Config(peak=math.inf), "(root) (ConstantSchedule): peak is inf, expected a positive number."),
        (
            ConstantSchedule.Config(peak=1.0, warmup_steps=-1),
            "(root) (ConstantSchedule): warmup_steps is -1, expected at least 0.",
        ),
        (
            CosineSchedule.Config(peak=1.0, warmup_steps=7, total_steps=7),
            "(root) (CosineSchedule): total_steps is 7, expected more than warmup_steps (7).",
        ),
        (
            LinearSchedule.Config(peak=1.0, total_steps=0),
            "(root) (LinearSchedule): total_steps is 0, expected more than warmup_steps (0).",
        ),
        (
            LinearSchedule.Config(peak=1.0, total_steps=5, final_ratio=1.5),
            "(root) (LinearSchedule): final_ratio is 1.5, expected 0 to 1.",
        ),
        (
            WSDSchedule.Config(peak=1.0, warmup_steps=2, total_steps=10, decay_steps=9),
            "(root) (WSDSchedule): decay_steps is 9, expected 1 to 8, the steps after the warm-up.",
        ),
        (
            WSDSchedule.Config(peak=1.0, total_steps=10, decay_steps=0),
            "(root) (WSDSchedule): decay_steps is 0, expected 1 to 10, the steps after the warm-up.",
        ),
        (
            InverseSqrtSchedule.Config(peak=1.0),
            "(root) (InverseSqrtSchedule): warmup_steps is 0, expected at least 1, or else a timescale.",
        ),
        (
            InverseSqrtSchedule.Config(peak=1.0, timescale=0),
            "(root) (InverseSqrtSchedule): timescale is 0, expected at least 1.",
        ),
    ],
)
def test_out_of_range_is_refused_when_built(cfg, message):
    with pytest.raises(ConfigError) as e:
        cfg.build()
    assert str(e.value) == message
