# SPDX-License-Identifier: Apache-2.0
"""Gated DeltaNet is its definition, one token after the other; chunks, packing and padding change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import call
from dovetail.nn import GatedDeltaNet
from dovetail.ops import Causal, SameSegment
from support.models import context, random_params
from support.numeric import BFLOAT16, FLOAT32, assert_close, check, normal
from support.reference import causal_conv, linear, rms_norm, silu

CFG = GatedDeltaNet.Config(dim=6, num_heads=4, num_key_heads=2, key_head_dim=3, value_head_dim=2, chunk=3)
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 2, 3, 3]])


def unit(x):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def definition(p, x, segments=SEGMENTS):
    parts = ("query", "key", "value")
    query, key, value = (causal_conv(p[f"{name}_conv"], linear(p[name], x), segments) for name in parts)
    query, key = unit(query) / np.sqrt(3), unit(key)
    strength = 1 / (1 + np.exp(-linear(p["strength"], x)))
    step = np.log1p(np.exp(linear(p["delta"], x) + p["step_bias"]))
    y = np.zeros(value.shape)
    for b, h in np.ndindex(x.shape[0], 4):
        state = np.zeros((3, 2))
        for t in range(x.shape[1]):
            if t and segments[b, t] != segments[b, t - 1]:
                state = np.zeros((3, 2))
            k = key[b, t, h // 2]
            state = np.exp(-np.exp(p["log_rate"][h]) * step[b, t, h]) * state
            state = state + strength[b, t, h] * np.outer(k, value[b, t, h] - k @ state)
            y[b, t, h] = query[b, t, h // 2] @ state
    normed = rms_norm(y, p["norm"]["scale"], 1e-6)
    return linear(p["out"], normed * silu(linear(p["gate"], x)), num_in=2)


def run(cfg, segments=SEGMENTS, **kwargs):
    model = cfg.build()
    told = context(segments.shape[1], segments=jnp.asarray(segments), mask=Causal() & SameSegment())
    return lambda params, x: call(model, params, x, told, **kwargs)[0]


def test_it_is_its_definition_with_documents():
    # Unit vectors and the norm of each head divide by small numbers, which magnifies rounding.
    check(run(CFG), definition, random_params(CFG.build()), normal(1, (2, 7, 6)), tolerance=3 * FLOAT32)


def test_packed_documents_are_as_if_alone():
    params, x = random_params(CFG.build()), normal(1, (2, 7, 6))
    packed = jax.jit(run(CFG))(params, x)
    alone = jax.jit(run(CFG, np.ones((2, 4), int)))(params, jnp.stack([x[0, :4], x[1, 1:5]]))
    assert_close(jnp.stack([packed[0, :4], packed[1, 1:5]]), alone, FLOAT32)


def test_in_bfloat16_the_rule_is_kept_in_float32():
    params, x = random_params(CFG.build()), normal(1, (2, 7, 6))
    out = jax.jit(run(CFG, dtype=jnp.bfloat16))(params, x.astype(jnp.bfloat16))
    assert out.dtype == jnp.bfloat16
    # Parameters too are rounded, and the norm of each head magnifies what is left of small values.
    assert_close(out, jax.jit(run(CFG))(params, x), 20 * BFLOAT16)


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"num_key_heads": 3}, "mixer (GatedDeltaNet): num_key_heads (3) must divide num_heads (4)."),
        ({"key_head_dim": 0}, "mixer (GatedDeltaNet): key_head_dim is 0, expected at least 1."),
    ],
)
def test_what_does_not_fit_is_refused(fields, text):
    with pytest.raises(ConfigError) as e:
        CFG.set(**fields).build(path="mixer")
    assert str(e.value) == text
