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
from dovetail.nn import (
    ALiBi,
    Attention,
    AttentionVariant,
    Context,
    DenseCache,
    DenseLinear,
    NoRotary,
    PagedCache,
    RMSNorm,
    RoPE,
    Sequence,
    View,
)
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
from support.decoding import in_parts, started
from support.models import Differential, random_params
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
    return lambda params, x: call(model, params, x, Context(tokens, positions, mask))[0]


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
    "qk-norm of each head, clip": (
        attention(num_kv_heads=2, norm_over="each_head", clip=0.8, **QK_NORM),
        definition(each_head=True, clip=0.8),
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


HALVES = [(0, 3), (3, 5)]


@pytest.mark.parametrize("mask, capacity", [(Causal(), LENGTH), (MASK, LENGTH + 3)], ids=["full", "with room"])
def test_a_row_in_parts_is_the_whole_row(mask, capacity):
    options = {"soft_cap": 2.0, "sinks": True, "position_bias": ALiBi.Config(), "gate": DenseLinear.Config()}
    cfg = attention(num_kv_heads=2, window=3, kernel=BlockwiseAttention.Config(block=2), **options)
    params = random_params(cfg.build())
    context = Context(TOKENS, POSITIONS, mask)
    got, state, _ = in_parts(cfg.build(), params, X, context, HALVES, capacity=capacity)
    assert_same(got, jax.jit(run(cfg, mask))(params, X))
    assert {path: leaf.shape for path, leaf in state.items()} == {
        "cache.k": (2, 2, capacity, 2),
        "cache.v": (2, 2, capacity, 2),
        **dict.fromkeys(("cache.index", "cache.segment", "cache.prefix"), (2, capacity)),
    }
    np.testing.assert_array_equal(state["cache.index"][0, :LENGTH], np.arange(LENGTH))


def test_a_prefix_is_seen_from_the_cache():
    prefix = jnp.array([[True, True, True, False, False]] * 2)
    tokens, mask = Tokens(TOKENS.index, SEGMENTS, prefix), Causal() | Prefix()
    params = random_params(attention().build())
    context = Context(tokens, POSITIONS, mask)
    got, *_ = in_parts(attention().build(), params, X, context, HALVES, capacity=LENGTH)
    assert_same(got, jax.jit(run(attention(), mask, tokens))(params, X))


@pytest.mark.parametrize("mask", [Full(), SlidingWindow(2)], ids=str)
def test_empty_places_of_the_cache_are_seen_by_nobody(mask):
    params = random_params(attention().build())
    context = Context(TOKENS, POSITIONS, mask)
    got, *_ = in_parts(attention().build(), params, X, context, [(0, LENGTH)], capacity=LENGTH + 3)
    assert_same(got, jax.jit(run(attention(), mask))(params, X))


def test_a_cache_without_capacity_says_what_to_pass():
    model = attention().build(path="stack.layer.mixer")
    with pytest.raises(ModuleError) as e:
        started(model, random_params(model), X, Context(TOKENS, POSITIONS, MASK), sizes={"batch": 2})
    assert str(e.value) == (
        "stack.layer.mixer.cache.index has the size 'capacity'; the sizes given are {'batch': 2}. "
        "Pass it: state_specs(..., sizes={...})."
    )


def test_more_tokens_at_once_than_the_cache_has_room_for_are_refused():
    model = attention().build(path="mixer")
    context = Context(TOKENS, POSITIONS, MASK)
    with pytest.raises(ModuleError) as e:
        in_parts(model, random_params(model), X, context, [(0, LENGTH)], capacity=4)
    assert str(e.value) == "mixer.cache (DenseCache): 5 tokens do not fit into a capacity of 4."


def test_tokens_that_find_no_room_are_counted_and_other_rows_are_not_touched():
    context = Context(Tokens(jnp.array([[0, 1, 2, 3, EMPTY], [0, 1, 2, 3, 4]])), POSITIONS, Causal())
    model, params = attention().build(), random_params(attention().build())
    small, _, reports = in_parts(model, params, X, context, HALVES, capacity=4)
    large, *_ = in_parts(model, params, X, context, HALVES, capacity=5)
    assert [float(report["cache.lost"]) for report in reports] == [0, 1], "padding needs no room"
    assert_same(small[0], large[0])
    assert_same(small[1, :4], large[1, :4])


# Variants.


def test_a_variant_that_changes_nothing_changes_no_bit_and_no_equation():
    plain = attention(num_kv_heads=2, gate=DenseLinear.Config(), **QK_NORM)
    same = plain.set(variant=AttentionVariant.Config())
    params = random_params(plain.build())
    programs = [
        str(jax.make_jaxpr(jax.grad(lambda p, cfg=cfg: jnp.sum(jnp.sin(run(cfg)(p, X)))))(params))
        for cfg in (plain, same)
    ]
    assert programs[0] == programs[1]
    assert random_params(same.build()).keys() - params.keys() == {"variant"}


def differential(p, x, allowed):
    """The difference of two softmaxes, from the words of the paper: pair i has queries and keys 2i and 2i + 1."""
    q, k, v = (reference.linear(p[name], x) for name in ("query", "key", "value"))
    pairs = []
    for i, weight in enumerate(p["variant"]["weight"]):
        both = np.concatenate([v[:, :, 2 * i], v[:, :, 2 * i + 1]], axis=-1)
        maps = []
        for h in (2 * i, 2 * i + 1):
            scores = np.where(allowed, np.einsum("btk,bsk->bts", q[:, :, h], k[:, :, h]) / np.sqrt(2), -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            maps.append(weights / weights.sum(axis=-1, keepdims=True))
        pairs.append(np.einsum("bts,bsv->btv", maps[0] - weight * maps[1], both))
    attended = np.stack(pairs, axis=2).reshape(*x.shape[:2], 4, 2)
    return reference.linear(p["out"], attended, num_in=2)


DIFFERENTIAL = attention(variant=Differential.Config(), rotary=NoRotary.Config())


def test_differential_attention_is_its_definition():
    rows = [[(t, int(SEGMENTS[b, t]), False) for t in range(LENGTH)] for b in range(2)]
    allowed = np.array([reference.seen(MASK, row, row) for row in rows])
    definition = functools.partial(differential, allowed=allowed)
    check(run(DIFFERENTIAL), definition, random_params(DIFFERENTIAL.build()), X)


@pytest.mark.parametrize(
    "cache, sizes",
    [(DenseCache.Config(), {}), (PagedCache.Config(page=3), {"pages": 4, "row_pages": 2})],
    ids=["contiguous", "pages"],
)
def test_a_variant_decodes_as_the_whole_row_from_any_cache(cache, sizes):
    cfg = DIFFERENTIAL.set(cache=cache, rotary=RoPE.Config())
    params, context = random_params(cfg.build()), Context(TOKENS, POSITIONS, MASK)
    got, state, _ = in_parts(cfg.build(), params, X, context, [(0, 3), (3, 4), (4, 5)], capacity=6, **sizes)
    assert_same(got, jax.jit(run(cfg))(params, X))
    assert state["cache.v"].shape[-1] == 2, "kept as the maps made it"


class Borrowed(AttentionVariant):
    """Attends to the keys and values that an earlier layer has published, whole."""

    def view(self, view, context):
        seen = context.need("kv")
        return View(seen, context.tokens, aligned=True)


class Lends(AttentionVariant):
    """Publishes keys and values."""

    def heads(self, q, k, v, x, context):
        self.publish("kv", {"k": k, "v": v})
        return q, k, v


def test_a_layer_without_keys_and_values_attends_to_those_of_another():
    lends = attention(num_kv_heads=2, variant=Lends.Config())
    borrows = attention(num_kv_heads=2, variant=Borrowed.Config(), key=None, value=None)
    model = Sequence.Config(dim=8, layers=(lends, borrows)).build()
    params = random_params(model)
    assert set(params["layers[1]"]) == {"query", "out", "rotary", "variant"}
    context = Context(TOKENS, POSITIONS, MASK)
    got = call(model, params, X, context)[0]
    first = run(attention(num_kv_heads=2))(params["layers[0]"], X)

    rotary = RoPE.Config(head_dim=2).build()

    def heads(layer, name, x):
        made = jnp.einsum("btd,dhk->bthk", x, params[layer][name]["weight"])
        return made if name == "value" else call(rotary, {}, made, POSITIONS)[0]

    q, k, v = heads("layers[1]", "query", first), heads("layers[0]", "key", X), heads("layers[0]", "value", X)
    scores = jnp.einsum("btgrk,bsgk->bgrts", q.reshape(2, LENGTH, 2, 2, 2), k) / np.sqrt(2)
    scores = jnp.where(MASK.allowed(TOKENS, TOKENS)[:, None, None], scores, -jnp.inf)
    attended = jnp.einsum("bgrts,bsgk->btgrk", jax.nn.softmax(scores), v).reshape(2, LENGTH, 4, 2)
    assert_same(got, jnp.einsum("bthk,hkd->btd", attended, params["layers[1]"]["out"]["weight"]))


def test_keys_and_values_must_come_from_somewhere():
    one: list[dict[str, Any]] = [{"key": None}, {"value": None}]
    for fields in one:
        with pytest.raises(ConfigError, match=r"mixer \(Attention\): one of key and value is None. Set both, or none."):
            attention(**fields).build(path="mixer")
    for fields in ({}, {"variant": Borrowed.Config(), "key_norm": RMSNorm.Config()}):
        with pytest.raises(ConfigError, match=r"so a variant must bring a view, and there is no key to norm"):
            attention(key=None, value=None, **fields).build(path="mixer")
    nothing = attention(key=None, value=None, variant=AttentionVariant.Config()).build(path="mixer")
    with pytest.raises(ModuleError, match=r"mixer.variant \(AttentionVariant\): there are no keys. Set key and value"):
        call(nothing, random_params(nothing), X, Context(TOKENS, POSITIONS, MASK))


class Doubled(AttentionVariant):
    """Makes other values than the cache is declared for."""

    def heads(self, q, k, v, x, context):
        return q, k, jnp.concatenate([v, v], axis=-1)


def test_values_that_the_cache_is_not_declared_for_are_refused():
    model = attention(variant=Doubled.Config()).build(path="mixer")
    with pytest.raises(ModuleError) as e:
        started(model, random_params(model), X, Context(TOKENS, POSITIONS, MASK), sizes={"batch": 2, "capacity": 5})
    assert str(e.value) == (
        "mixer.cache (DenseCache): is given {'k': (4, 2), 'v': (4, 4)} for each token, but was declared for "
        "{'k': (4, 2), 'v': (4, 2)}.\n"
        "  Declare what is kept; or change it after the cache, as a variant of attention does in its view."
    )


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
        (attention(clip=0.0), "mixer (Attention): clip is 0.0, expected a number above 0, or None."),
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
