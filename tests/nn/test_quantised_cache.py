# SPDX-License-Identifier: Apache-2.0
"""A cache of 8-bit integers keeps what it is given but for half a step, in a quarter of the memory of float32."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import find, replace_all
from dovetail.module import call, state_specs
from dovetail.nn import Attention, Cache, Context, DenseCache, Int8Cache, LatentAttention, PagedCache
from dovetail.ops import BlockwiseAttention, Causal, PagedAttention, Tokens
from dovetail.zoo import model
from support.compare import assert_same
from support.decoding import from_state, started
from support.models import Differential, random_params
from support.numeric import normal

ROWS, LENGTH = 2, 6
INNER = {"dense": DenseCache.Config(), "pages": PagedCache.Config(page=2)}
each_inner = pytest.mark.parametrize("inner", INNER)
SIZES = {"batch": ROWS, "capacity": 8, "pages": 8, "row_pages": 4, "pages[4]": 8, "row_pages[4]": 4}
CONTEXT = Context(Tokens(jnp.arange(LENGTH)[None]), jnp.arange(LENGTH)[None], Causal())


@each_inner
def test_what_it_keeps_is_off_by_half_a_step_and_single_numbers_are_kept_as_they_are(inner):
    kept = {"entries": {"x": (3, 16), "y": ()}, "axes": {"x": ("kv_heads", "head_dim"), "y": ()}, "window": None}
    cache = Int8Cache.Config(inner=INNER[inner], **kept).build(path="cache")
    x = normal(0, (ROWS, LENGTH, 3, 16), size=10.0)
    values = {"x": x, "y": x[..., 0, 0]}
    state = started(cache, {}, values, CONTEXT.tokens, sizes=SIZES)
    assert {state[f"cache.inner.{name}"].dtype.name for name in ("x", "x_scale", "y")} == {
        "int8",
        "bfloat16",
        "float32",
    }
    view, _ = call(cache, {}, values, CONTEXT.tokens, state=state)
    assert view.values["x"].dtype == jnp.int8
    plain = view.plain(jnp.float32)
    assert plain.scales is None
    scales, found = view.scales["x"], plain.values
    if view.pages is not None:
        scales, found = scales[view.pages], {name: value[view.pages] for name, value in found.items()}
    scales = np.asarray(scales, np.float64).reshape(ROWS, -1, 3)[:, :LENGTH, :, None]
    got = np.asarray(found["x"], np.float64).reshape(ROWS, -1, 3, 16)[:, :LENGTH]
    assert (np.abs(got - np.asarray(x)) <= 0.5001 * scales).all()
    np.testing.assert_allclose(scales[..., 0], np.abs(x).max(-1) / 127, rtol=2.0**-8)
    np.testing.assert_array_equal(found["y"].reshape(ROWS, -1)[:, :LENGTH], x[..., 0, 0])


LAYERS = {
    "attention": Attention.Config(dim=8, num_heads=4, num_kv_heads=2, window=4, sinks=True),
    "latent": LatentAttention.Config(dim=8, num_heads=2, kv_rank=3, nope_dim=2, rope_dim=2, value_dim=3),
    "a variant": Attention.Config(dim=8, num_heads=2, variant=Differential.Config()),
}


@each_inner
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_answers_the_same_in_chunks_and_nearly_as_without_a_cache(inner, layer):
    kernel = {"dense": BlockwiseAttention.Config(), "pages": PagedAttention.Config(block=4)}[inner]
    cfg = LAYERS[layer].set(cache=Int8Cache.Config(inner=INNER[inner]))
    built = (cfg if layer == "a variant" else cfg.set(kernel=kernel if inner == "pages" else cfg.kernel)).build()
    params, x = random_params(built), normal(1, (ROWS, LENGTH, 8))
    exact = cfg.build()
    want = (
        call(exact, params, x, CONTEXT)[0] if inner == "dense" else call(LAYERS[layer].build(), params, x, CONTEXT)[0]
    )
    state = started(built, params, x, CONTEXT, sizes=SIZES)
    whole, *_ = from_state(built, params, x, CONTEXT, [(0, LENGTH)], state)
    parts, *_ = from_state(built, params, x, CONTEXT, [(0, 2), (2, 3), (3, 4), (4, LENGTH)], state)
    assert_same(parts, whole)
    assert 0 < np.max(np.abs(whole - want)) < 0.02 * np.max(np.abs(want)), "rounded, by about 1/254"


def token_bytes(cfg, dtype):
    """Returns the bytes of a token in the cache of an attention with heads of 128, without those of its number."""
    layer = Attention.Config(dim=256, num_heads=2, head_dim=128, cache=cfg).build()
    params = jax.eval_shape(lambda: random_params(layer))
    x = jax.ShapeDtypeStruct((1, 1, 256), dtype)
    context = dataclasses.replace(
        CONTEXT, tokens=Tokens(jnp.zeros((1, 1), jnp.int32)), positions=jnp.zeros((1, 1), int)
    )
    found = state_specs(layer, params, x, context, sizes={"batch": 1, "pages": 1, "row_pages": 1}, dtype=dtype)
    kept = [spec for path, spec in found.items() if path.rpartition(".")[2].startswith(("k", "v"))]
    return sum(spec.nbytes for spec in kept) / 16


def test_twice_as_many_tokens_fit_as_in_bfloat16_and_four_times_as_many_as_in_float32():
    pages = PagedCache.Config(page=16)
    few = token_bytes(Int8Cache.Config(inner=pages), jnp.float32)
    assert few == 2 * 2 * (128 + 2), "a byte for each number, and two for the scale of a head"
    assert token_bytes(Int8Cache.Config(inner=pages), jnp.bfloat16) == few
    assert token_bytes(pages, jnp.bfloat16) / few == pytest.approx(2, rel=0.02)
    assert token_bytes(pages, jnp.float32) / few == pytest.approx(4, rel=0.02)


def test_every_cache_of_a_model_is_replaced_and_the_report_says_which():
    cfg = model("gemma3-tiny")
    report = replace_all(Cache.Config, lambda old: Int8Cache.Config(inner=old)).report(cfg)
    assert len(report.changes) == len(list(find(cfg, Cache.Config)))
    assert all(isinstance(change.new, Int8Cache.Config) and not change.dropped for change in report.changes)
