# SPDX-License-Identifier: Apache-2.0
"""Latent attention is its definition, caches only latent vectors and the shared key, and decodes as it trains."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, replace_all
from dovetail.module import ModuleError, call, specs
from dovetail.nn import Context, DenseLinear, LatentAttention, Linear, RoPE
from dovetail.ops import EMPTY, BlockwiseAttention, Causal, SameSegment, Tokens
from support import reference
from support.compare import assert_same
from support.decoding import in_parts
from support.models import LowRank, random_params
from support.numeric import BFLOAT16, cast, check, normal

LENGTH = 5
POSITIONS = jnp.array([[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]])
SEGMENTS = jnp.array([[1, 1, 1, 1, 1], [1, 1, 2, 2, 2]])
TOKENS = Tokens(jnp.arange(LENGTH)[None], SEGMENTS)
MASK = Causal() & SameSegment()
CONTEXT = Context(TOKENS, POSITIONS, MASK)
PARTS = [(0, 3), (3, LENGTH)]
X = normal(1, (2, LENGTH, 8))
CFG = LatentAttention.Config(
    dim=8,
    num_heads=3,
    query_rank=6,
    kv_rank=5,
    nope_dim=4,
    rope_dim=2,
    value_dim=3,
    kernel=BlockwiseAttention.Config(block=2),
)


def run(cfg):
    model = cfg.build()
    return lambda params, x: call(model, params, x, CONTEXT)[0]


@functools.cache
def definition():
    rows = [[(t, int(SEGMENTS[b, t]), False) for t in range(LENGTH)] for b in range(2)]
    allowed = np.array([reference.seen(MASK, row, row) for row in rows])
    return functools.partial(reference.latent_attention, allowed=allowed, positions=np.asarray(POSITIONS))


@pytest.mark.parametrize("query_rank", [6, None])
def test_latent_attention_is_its_definition(query_rank):
    cfg = CFG.set(query_rank=query_rank)
    check(run(cfg), definition(), random_params(cfg.build()), X)


def test_latent_attention_in_bfloat16_keeps_the_dtype_and_rounds_little():
    params, x = cast((random_params(CFG.build()), X), jnp.bfloat16)
    # As in attention, and a latent vector and its norm before queries, keys and values.
    assert check(run(CFG), definition(), params, x, tolerance=15 * BFLOAT16).dtype == jnp.bfloat16


@pytest.mark.parametrize("cfg", [CFG, CFG.set(query_rank=None, rotary=RoPE.Config(interleaved=True), scale=0.2)])
def test_a_row_in_parts_is_the_whole_row(cfg):
    params = random_params(cfg.build())
    got, state, _ = in_parts(cfg.build(), params, X, CONTEXT, PARTS, capacity=7)
    assert_same(got, jax.jit(run(cfg))(params, X))
    shapes = {path: leaf.shape for path, leaf in state.items() if leaf.ndim > 2}
    assert shapes == {"cache.latent": (2, 1, 7, 5 + 2)}, "nothing by head"


def test_tokens_that_find_no_room_are_counted():
    tokens = Tokens(jnp.array([[0, 1, 2, 3, EMPTY], [0, 1, 2, 3, 4]]), jnp.ones_like(SEGMENTS))
    context = CONTEXT.set(tokens=tokens)
    got, _, reports = in_parts(CFG.build(), random_params(CFG.build()), X, context, PARTS, capacity=4)
    assert np.isfinite(got).all()
    assert [float(report["cache.lost"]) for report in reports] == [0, 1]


def test_any_linear_map_can_stand_in_each_place():
    cfg = replace_all(Linear.Config, LowRank.Config(rank=2))(CFG)
    params = random_params(cfg.build())
    assert set(params["key_up"]) == set(params["query_down"]) == {"a", "b"}
    got, *_ = in_parts(cfg.build(), params, X, CONTEXT, PARTS, capacity=7)
    assert_same(got, jax.jit(run(cfg))(params, X))


def test_specs_name_the_axes():
    spec = specs(CFG.build())
    found = {f"{name}.{leaf}": (s.shape, s.axes) for name, below in spec.items() for leaf, s in below.items()}
    assert found == {
        "query_down.weight": ((8, 6), ("embed", "latent")),
        "query_norm.scale": ((6,), ("latent",)),
        "query.weight": ((6, 3, 6), ("latent", "heads", "head_dim")),
        "kv_down.weight": ((8, 5), ("embed", "latent")),
        "kv_norm.scale": ((5,), ("latent",)),
        "key_rope.weight": ((8, 1, 2), ("embed", None, "head_dim")),
        "key_up.weight": ((5, 3, 4), ("latent", "heads", "head_dim")),
        "value_up.weight": ((5, 3, 3), ("latent", "heads", "head_dim")),
        "out.weight": ((3, 3, 8), ("heads", "head_dim", "embed")),
    }
    assert specs(CFG.set(query_rank=None).build())["query"]["weight"].axes == ("embed", "heads", "head_dim")


def test_a_map_from_the_latent_vector_that_adds_a_bias_cannot_decode():
    cfg = CFG.set(value_up=DenseLinear.Config(bias=True))
    with pytest.raises(ModuleError) as e:
        in_parts(cfg.build(), random_params(cfg.build()), X, CONTEXT, PARTS, capacity=7)
    want = "value_up (DenseLinear) is asked for its matrix, but it also adds a bias. Set bias=False."
    assert str(e.value) == want


@pytest.mark.parametrize("field", ["num_heads", "query_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim"])
def test_nothing_is_refused(field):
    with pytest.raises(ConfigError) as e:
        CFG.set(**{field: 0}).build(path="mixer")
    assert str(e.value) == f"mixer (LatentAttention): {field} is 0, expected at least 1."
