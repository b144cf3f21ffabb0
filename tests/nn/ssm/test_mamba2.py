# SPDX-License-Identifier: Apache-2.0
"""Mamba 2 is its definition, one token after the other; chunks, packing and padding change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import call, init
from dovetail.nn import Mamba2, check_masks
from dovetail.ops import Causal, Full, Prefix, SameSegment, SlidingWindow
from support.models import context, random_params
from support.numeric import BFLOAT16, assert_close, check, normal
from support.reference import causal_conv, linear, rms_norm, silu

CFG = Mamba2.Config(dim=6, num_heads=4, head_dim=2, num_groups=2, state_dim=3, chunk=3)
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 2, 3, 3]])


def definition(p, x, segments=SEGMENTS, groups=1, limit=(0.0, np.inf)):
    gate, step = linear(p["gate"], x), np.log1p(np.exp(linear(p["delta"], x) + p["step_bias"]))
    step = np.where(step < limit[0], limit[0], np.where(step > limit[1], limit[1], step))
    parts = ("value", "key", "query")
    value, key, query = (causal_conv(p[f"{name}_conv"], linear(p[name], x), segments) for name in parts)
    y = np.zeros(value.shape)
    for b, h in np.ndindex(x.shape[0], 4):
        state = np.zeros((2, 3))
        for t in range(x.shape[1]):
            if t and segments[b, t] != segments[b, t - 1]:
                state = np.zeros((2, 3))
            state = np.exp(-np.exp(p["log_rate"][h]) * step[b, t, h]) * state
            state = state + step[b, t, h] * np.outer(value[b, t, h], key[b, t, h // 2])
            y[b, t, h] = state @ query[b, t, h // 2] + p["skip"][h] * value[b, t, h]
    y = (y * silu(gate)).reshape(*x.shape[:2], groups, -1)
    normed = rms_norm(y, p["norm"]["scale"].reshape(groups, -1), 1e-5)
    return linear(p["out"], normed.reshape(*x.shape[:2], 4, 2), num_in=2)


def run(cfg, segments=SEGMENTS, **kwargs):
    model = cfg.build()
    told = context(segments.shape[1], segments=jnp.asarray(segments), mask=Causal() & SameSegment())
    return lambda params, x: call(model, params, x, told, **kwargs)[0]


def test_it_is_its_definition_with_documents():
    check(run(CFG), definition, random_params(CFG.build()), normal(1, (2, 7, 6)))


def test_norms_of_groups_and_limits_of_steps_are_their_definition():
    cfg, limit = CFG.set(norm_over="group", step_limit=(0.5, 0.9)), (0.5, 0.9)
    params, x = random_params(cfg.build()), normal(1, (2, 7, 6))
    step = np.log1p(np.exp(linear(params["delta"], np.asarray(x)) + params["step_bias"]))
    assert (step < limit[0]).any()
    assert (step > limit[1]).any()
    check(run(cfg), lambda p, x: definition(p, x, groups=2, limit=limit), params, x)


def test_packed_documents_are_as_if_alone():
    params, x = random_params(CFG.build()), normal(1, (2, 7, 6))
    packed = jax.jit(run(CFG))(params, x)
    alone = jax.jit(run(CFG, np.ones((2, 4), int)))(params, jnp.stack([x[0, :4], x[1, 1:5]]))
    assert_close(jnp.stack([packed[0, :4], packed[1, 1:5]]), alone, 1e-6)


def test_in_bfloat16_decays_are_kept_in_float32():
    params, x = random_params(CFG.build()), normal(1, (2, 7, 6))
    out = jax.jit(run(CFG, dtype=jnp.bfloat16))(params, x.astype(jnp.bfloat16))
    assert out.dtype == jnp.bfloat16
    # Parameters too are rounded; about twenty roundings in a row, which partly cancel.
    assert_close(out, jax.jit(run(CFG))(params, x), 10 * BFLOAT16)


def test_rates_and_steps_start_where_the_paper_has_them():
    params = init(Mamba2.Config(dim=64, head_dim=1, state_dim=1).build(), jax.random.key(0))
    rate, step = np.exp(params["log_rate"]), np.log1p(np.exp(params["step_bias"]))
    assert rate.shape == (128,)
    assert ((rate >= 1) & (rate <= 16)).all()
    assert ((step >= 0.99e-3) & (step <= 0.1001)).all()
    assert 0.005 < np.exp(np.mean(np.log(step))) < 0.02  # The middle, on a logarithmic scale, is 0.01.


@pytest.mark.parametrize("mask", [Full(), Causal() & SlidingWindow(4), Causal() | Prefix(), SameSegment()], ids=str)
def test_masks_that_a_state_cannot_obey_are_not_supported(mask):
    assert Mamba2.supports(Causal())
    assert Mamba2.supports(SameSegment() & Causal())
    with pytest.raises(ConfigError) as e:
        check_masks(CFG.build(path="mixer"), mask)
    assert str(e.value) == (
        f"mixer (Mamba2) cannot obey the mask {mask}: its state holds all of the document up to the token itself: "
        "Causal(), or Causal() & SameSegment()."
    )


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"num_groups": 3}, "mixer (Mamba2): num_groups (3) must divide num_heads (4)."),
        ({"num_heads": None, "head_dim": 5}, "mixer (Mamba2): head_dim (5) must divide 2 * dim (12)."),
        ({"chunk": 0}, "mixer (Mamba2): chunk is 0, expected at least 1."),
        (
            {"step_limit": (0.5, 0.1)},
            "mixer (Mamba2): step_limit is (0.5, 0.1), expected two numbers, 0 or more, that grow.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(fields, text):
    with pytest.raises(ConfigError) as e:
        CFG.set(**fields).build(path="mixer")
    assert str(e.value) == text
