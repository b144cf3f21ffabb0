# SPDX-License-Identifier: Apache-2.0
"""The attention layer is its definition with every option, in parts as at once."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import ModuleError, call, specs
from dovetail.nn import ALiBi, Attention, DenseLinear, NoRotary, RMSNorm, RoPE
from dovetail.ops import (
    EMPTY,
    BlockwiseAttention,
    Causal,
    Full,
    Prefix,
    SameSegment,
    SlidingWindow,
    Tokens,
    alibi_slopes,
)
from support import reference
from support.compare import assert_same
from support.models import random_params
from support.numeric import BFLOAT16, FLOAT32, cast, check, normal

LENGTH = 5
POSITIONS = jnp.array([[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]])
SEGMENTS = jnp.array([[1, 1, 1, 1, 1], [1, 1, 2, 2, 2]])
TOKENS = Tokens(jnp.arange(LENGTH)[None], SEGMENTS)
MASK = Causal() & SameSegment()
X = normal(1, (2, LENGTH, 8))
BIASED = DenseLinear.Config(bias=True)
BIASES: dict[str, Any] = dict.fromkeys(("query", "key", "value", "out"), BIASED)
QK_NORM: dict[str, Any] = {"query_norm": RMSNorm.Config(), "key_norm": RMSNorm.Config()}


def attention(num_heads=4, **fields):
    return Attention.Config(**{"dim": 8, "num_heads": num_heads, **fields})


def run(cfg, mask=MASK, tokens=TOKENS, positions=POSITIONS):
    model = cfg.build()
    return lambda params, x: call(model, params, x, tokens=tokens, positions=positions, mask=mask)[0]


def definition(mask=MASK, **kwargs):
    rows = [[(t, int(SEGMENTS[b, t]), False) for t in range(LENGTH)] for b in range(2)]
    allowed = np.array([reference.seen(mask, row, row) for row in rows])
    return functools.partial(reference.attention, allowed=allowed, positions=np.asarray(POSITIONS), **kwargs)


# Each option once, several to a case: a program takes a second to compile.
CASES = {
    "multi-head, no rotary": (attention(rotary=NoRotary.Config()), definition(theta=None)),
    "grouped, biases, scale, wide heads": (
        attention(num_heads=4, num_kv_heads=2, head_dim=6, scale=0.1, **BIASES),
        definition(scale=0.1),
    ),
    "multi-query, window": (attention(num_kv_heads=1, window=2), definition(MASK & SlidingWindow(2))),
    "qk-norm, theta": (attention(rotary=RoPE.Config(theta=10.0), **QK_NORM), definition(theta=10.0)),
    "qk-norm of all heads, gate": (
        attention(num_kv_heads=2, norm_over="all_heads", gate=DenseLinear.Config(), **QK_NORM),
        definition(),
    ),
    "sinks, soft cap, linear bias": (
        attention(num_kv_heads=2, sinks=True, soft_cap=0.5, position_bias=ALiBi.Config(), rotary=NoRotary.Config()),
        definition(theta=None, soft_cap=0.5, slopes=alibi_slopes(4)),
    ),
}


@pytest.mark.parametrize("cfg, want", CASES.values(), ids=CASES)
def test_attention_is_its_definition(cfg, want):
    check(run(cfg), want, random_params(cfg.build()), X, tolerance=FLOAT32)


def test_attention_in_bfloat16_keeps_the_dtype_and_rounds_little():
    cfg = attention(num_kv_heads=2, **BIASES, **QK_NORM)
    params, x = cast((random_params(cfg.build()), X), jnp.bfloat16)
    # About ten roundings in a row: maps, biases, norms, rotation, weights, results.
    assert check(run(cfg), definition(), params, x, tolerance=10 * BFLOAT16).dtype == jnp.bfloat16


def test_blocks_of_the_kernel_do_not_show():
    params = random_params(attention(window=3).build())
    outs = [
        jax.jit(run(attention(window=3, kernel=BlockwiseAttention.Config(block=block))))(params, X)
        for block in (2, 512)
    ]
    assert_same(*outs)


def test_specs_name_the_axes_of_heads():
    spec = specs(attention(num_kv_heads=2, head_dim=3, rotary=NoRotary.Config(), **BIASES, **QK_NORM).build())
    found = {f"{name}.{leaf}": (s.shape, s.axes) for name, below in spec.items() for leaf, s in below.items()}
    assert found == {
        "query.weight": ((8, 4, 3), ("embed", "heads", "head_dim")),
        "query.bias": ((4, 3), ("heads", "head_dim")),
        "key.weight": ((8, 2, 3), ("embed", "kv_heads", "head_dim")),
        "key.bias": ((2, 3), ("kv_heads", "head_dim")),
        "value.weight": ((8, 2, 3), ("embed", "kv_heads", "head_dim")),
        "value.bias": ((2, 3), ("kv_heads", "head_dim")),
        "out.weight": ((4, 3, 8), ("heads", "head_dim", "embed")),
        "out.bias": ((8,), ("embed",)),
        "query_norm.scale": ((3,), ("head_dim",)),
        "key_norm.scale": ((3,), ("head_dim",)),
    }
    assert (spec["out"]["weight"].fan_in, spec["query"]["weight"].fan_in) == (12, 8)


def test_specs_of_options_name_their_axes():
    cfg = attention(num_kv_heads=2, sinks=True, norm_over="all_heads", gate=DenseLinear.Config(), **QK_NORM)
    spec = specs(cfg.build())
    assert (spec["sink"].shape, spec["sink"].axes) == ((4,), ("heads",))
    assert (spec["query_norm"]["scale"].shape, spec["query_norm"]["scale"].axes) == ((8,), ("heads",))
    assert (spec["key_norm"]["scale"].shape, spec["key_norm"]["scale"].axes) == ((4,), ("kv_heads",))
    assert spec["gate"]["weight"].axes == ("embed", "heads", "head_dim")


# With state.


def in_parts(cfg, params, parts, mask, tokens, capacity, positions=POSITIONS):
    """Runs the layer on one part of the row after the other."""
    model = cfg.build()
    step = jax.jit(
        lambda x, tokens, positions, state: call(
            model, params, x, tokens=tokens, positions=positions, mask=mask, state=state, capacity=capacity
        )
    )
    outs, state = [], {}
    for start, stop in parts:
        out, collected = step(X[:, start:stop], tokens.slice(start, stop), positions[:, start:stop], state)
        outs, state = [*outs, out], collected.state
    return jnp.concatenate(outs, axis=1), state


HALVES = [(0, 3), (3, 5)]


@pytest.mark.parametrize("mask, capacity", [(Causal(), LENGTH), (MASK, LENGTH + 3)], ids=["full", "with room"])
def test_a_row_in_parts_is_the_whole_row(mask, capacity):
    options = {"soft_cap": 2.0, "sinks": True, "position_bias": ALiBi.Config(), "gate": DenseLinear.Config()}
    cfg = attention(num_kv_heads=2, window=3, kernel=BlockwiseAttention.Config(block=2), **options)
    params = random_params(cfg.build())
    got, state = in_parts(cfg, params, HALVES, mask, TOKENS, capacity)
    assert_same(got, jax.jit(run(cfg, mask))(params, X))
    assert list(state) == ["cache.entries"]
    values, known = state["cache.entries"]
    assert {name: value.shape for name, value in values.items()} == dict.fromkeys("kv", (2, 2, capacity, 2))
    np.testing.assert_array_equal(known.index[0, :LENGTH], np.arange(LENGTH))


def test_a_prefix_is_seen_from_the_cache():
    prefix = jnp.array([[True, True, True, False, False]] * 2)
    tokens, mask = Tokens(TOKENS.index, SEGMENTS, prefix), Causal() | Prefix()
    params = random_params(attention().build())
    got, _ = in_parts(attention(), params, HALVES, mask, tokens, LENGTH)
    assert_same(got, jax.jit(run(attention(), mask, tokens))(params, X))


@pytest.mark.parametrize("mask", [Full(), SlidingWindow(2)], ids=str)
def test_empty_places_of_the_cache_are_seen_by_nobody(mask):
    params = random_params(attention().build())
    got, _ = in_parts(attention(), params, [(0, LENGTH)], mask, TOKENS, LENGTH + 3)
    assert_same(got, jax.jit(run(attention(), mask))(params, X))


def test_a_cache_without_capacity_says_what_to_pass():
    model = attention().build(path="stack.layer.mixer")
    with pytest.raises(ModuleError) as e:
        call(model, random_params(model), X, tokens=TOKENS, positions=POSITIONS, mask=MASK, state={})
    assert str(e.value) == (
        "stack.layer.mixer.cache (DenseCache) starts its decode state. Say how many positions: call(..., capacity=n)."
    )


def test_more_tokens_at_once_than_the_cache_has_room_for_are_refused():
    model = attention().build(path="mixer")
    with pytest.raises(ModuleError) as e:
        call(model, random_params(model), X, tokens=TOKENS, positions=POSITIONS, mask=MASK, state={}, capacity=4)
    assert str(e.value) == "mixer.cache (DenseCache): 5 tokens do not fit into a capacity of 4."


def test_a_row_that_outgrows_its_cache_is_not_a_number_and_others_are_not_touched():
    tokens = Tokens(jnp.array([[0, 1, 2, 3, EMPTY], [0, 1, 2, 3, 4]]))
    params = random_params(attention().build())
    got, _ = in_parts(attention(), params, HALVES, Causal(), tokens, capacity=4)
    assert np.isfinite(got[0]).all(), "padding needs no room"
    assert np.isfinite(got[1, :3]).all()
    assert np.isnan(got[1, 3:]).all()


# What is refused.


@pytest.mark.parametrize(
    "cfg, text",
    [
        (attention(num_kv_heads=3), "mixer (Attention): num_kv_heads (3) must divide num_heads (4)."),
        (attention(num_kv_heads=8), "mixer (Attention): num_kv_heads (8) must divide num_heads (4)."),
        (attention(num_heads=3), "mixer (Attention): num_heads (3) must divide dim (8), or set head_dim."),
        (attention(head_dim=3), "mixer.rotary (RoPE): head_dim is 3, expected an even number."),
        (attention(kernel=BlockwiseAttention.Config(block=0)), "mixer.kernel: block is 0, expected at least 1."),
        (attention(soft_cap=0.0), "mixer (Attention): soft_cap is 0.0, expected a number above 0, or None."),
    ],
)
def test_numbers_that_do_not_fit_are_refused(cfg, text):
    with pytest.raises(ConfigError) as e:
        cfg.build(path="mixer")
    assert str(e.value) == text


@pytest.mark.parametrize("field", ["num_heads", "num_kv_heads", "head_dim", "window"])
def test_nothing_is_refused(field):
    with pytest.raises(ConfigError) as e:
        attention().set(**{field: 0}).build(path="mixer")
    assert str(e.value) == f"mixer (Attention): {field} is 0, expected at least 1."


def test_the_kernel_of_a_layer_at_the_root_has_a_path_without_a_dot():
    with pytest.raises(ConfigError) as e:
        attention(kernel=BlockwiseAttention.Config(block=0)).build()
    assert str(e.value) == "kernel: block is 0, expected at least 1."
