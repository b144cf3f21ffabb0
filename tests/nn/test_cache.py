# SPDX-License-Identifier: Apache-2.0
"""What every cache promises: each token at its place, answers as if all had come at once. One joins by `CACHES`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import ModuleError, call, state_specs
from dovetail.nn import Attention, Cache, Context, DenseCache, LatentAttention, PagedCache
from dovetail.ops import EMPTY, Causal, SameSegment, Tokens
from support.compare import assert_same
from support.decoding import from_state, started
from support.models import random_params
from support.numeric import normal

ROWS, LENGTH, CAPACITY = 3, 6, 8
ENTRIES = {"x": (2, 3), "y": ()}
KEPT: dict[str, Any] = {"entries": ENTRIES, "axes": {"x": ("kv_heads", "head_dim"), "y": ()}, "window": None}
X = normal(0, (ROWS, LENGTH, 2, 3))
INDEX = jnp.array([[0, 1, 2, 3, 4, 5], [0, 1, EMPTY, 2, 3, EMPTY], [0, EMPTY, EMPTY, 1, 2, EMPTY]])
SEGMENT = jnp.array([[1, 1, 2, 2, 2, 3], [1, 1, 0, 1, 2, 0], [1, 0, 0, 1, 1, 0]])
TOKENS = Tokens(INDEX, SEGMENT)


def as_made(state):
    return state


def shuffled(state):
    """Gives rows pages that are neither in order nor side by side, out of more than there are."""
    order = np.random.default_rng(0).permutation(16)
    return {
        path: jnp.asarray(order[leaf], jnp.int32) if path.endswith("table") else leaf for path, leaf in state.items()
    }


def pages(count, of_a_row):
    """Returns sizes of caches that look back as far as there is room, and of those with a window of 4."""
    return {"pages": count, "row_pages": of_a_row, "pages[4]": count, "row_pages[4]": of_a_row}


# A cache, sizes besides batch and capacity, and what a server may do with its state before the first call.
CACHES: dict[str, tuple[Cache.Config, dict[str, int], Any]] = {
    "dense": (DenseCache.Config(), {}, as_made),
    "pages": (PagedCache.Config(page=4), pages(6, 2), as_made),
    "shuffled pages": (PagedCache.Config(page=2), pages(16, 4), shuffled),
    "pages in pairs": (PagedCache.Config(page=2, paired=True, lanes=8), pages(16, 4), shuffled),
    "a page for each token": (PagedCache.Config(page=1), pages(24, 8), as_made),
}
each_cache = pytest.mark.parametrize("kind", CACHES)


def rows_of(view, name):
    """Returns what a cache keeps as `[B, S, ...]`."""
    values = view.values[name]
    return values if view.pages is None else values[view.pages].reshape(ROWS, CAPACITY, *values.shape[2:])


def put(kind, parts):
    """Puts the tokens in, part by part; returns the last view and what was reported."""
    cfg, sizes, change = CACHES[kind]
    cache = cfg.set(**KEPT).build(path="cache")
    some = {"x": X[:, :1], "y": X[:, :1, 0, 0]}
    sizes = {"batch": ROWS, "capacity": CAPACITY, **sizes}
    state, reports = change(started(cache, {}, some, TOKENS.slice(0, 1), sizes=sizes)), []
    view: Any = None
    for start, stop in parts:
        values = {"x": X[:, start:stop], "y": X[:, start:stop, 0, 0]}
        view, collected = call(cache, {}, values, TOKENS.slice(start, stop), state=state)
        state, reports = collected.state, [*reports, float(collected.summaries["cache.lost"])]
    return view, reports


@each_cache
@pytest.mark.parametrize("parts", [[(0, 6)], [(0, 3), (3, 6)], [(i, i + 1) for i in range(6)]], ids=len)
def test_tokens_of_several_calls_are_at_their_places(kind, parts):
    view, lost = put(kind, parts)
    want, index = np.zeros((ROWS, CAPACITY, 2, 3)), np.full((ROWS, CAPACITY), EMPTY)
    segment = np.zeros((ROWS, CAPACITY), int)
    for (row, t), place in np.ndenumerate(np.asarray(INDEX)):
        if place != EMPTY:
            want[row, place], index[row, place], segment[row, place] = X[row, t], place, SEGMENT[row, t]
    written = index != EMPTY
    # Of a row without a token in the last call, nothing is asked.
    asked = np.any(np.asarray(INDEX)[:, slice(*parts[-1])] != EMPTY, axis=1)
    np.testing.assert_array_equal(view.tokens.index[asked], index[asked])
    np.testing.assert_array_equal(np.asarray(view.tokens.segment)[written], segment[written])
    np.testing.assert_array_equal(np.asarray(rows_of(view, "x"))[written], want[written].astype(np.float32))
    np.testing.assert_array_equal(np.asarray(rows_of(view, "y"))[written], want[written][:, 0, 0].astype(np.float32))
    assert lost == [0.0] * len(parts), "padding needs no room"
    assert not view.aligned


# In attention: the answers of a layer without a cache.

POSITIONS = jnp.maximum(jnp.where(INDEX == EMPTY, 0, INDEX), 0)
LAYERS = {
    "attention": Attention.Config(dim=8, num_heads=4, num_kv_heads=2, window=4, sinks=True),
    "latent": LatentAttention.Config(dim=8, num_heads=2, kv_rank=3, nope_dim=2, rope_dim=2, value_dim=3),
}
INPUT = normal(1, (ROWS, LENGTH, 8))
PACKED = Context(
    Tokens(jnp.arange(LENGTH)[None], jnp.array([[1, 1, 1, 1, 1, 1], [1, 1, 2, 2, 2, 2], [1, 2, 2, 3, 3, 3]])),
    jnp.array([[0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 2, 3], [0, 0, 1, 0, 1, 2]]),
    Causal() & SameSegment(),
)


@each_cache
@pytest.mark.parametrize("layer", LAYERS)
def test_a_prompt_in_chunks_is_the_prompt_at_once_is_the_layer_without_a_cache(kind, layer):
    cfg, sizes, change = CACHES[kind]
    model = LAYERS[layer].set(cache=cfg).build()
    params, sizes = random_params(model), {"batch": ROWS, "capacity": CAPACITY, **sizes}
    want = jax.jit(lambda x: call(model, params, x, PACKED)[0])(INPUT)
    state = change(started(model, params, INPUT, PACKED, sizes=sizes))
    for parts in ([(0, LENGTH)], [(0, 3), (3, 4), (4, LENGTH)]):
        assert_same(from_state(model, params, INPUT, PACKED, parts, state)[0], want)


@each_cache
def test_rows_of_different_lengths_with_padding_at_the_end_are_as_if_alone(kind):
    cfg, sizes, change = CACHES[kind]
    model = LAYERS["attention"].set(cache=cfg).build()
    params, sizes = random_params(model), {"batch": ROWS, "capacity": CAPACITY, **sizes}
    context = Context(Tokens(INDEX), POSITIONS, Causal())
    state = change(started(model, params, INPUT, context, sizes=sizes))
    got, *_ = from_state(model, params, INPUT, context, [(0, 3), (3, LENGTH)], state)
    for row in range(ROWS):
        real = np.flatnonzero(np.asarray(INDEX[row]) != EMPTY)
        alone = Context(Tokens(jnp.arange(len(real))[None]), jnp.arange(len(real))[None], Causal())
        want = call(model, params, INPUT[row : row + 1, real], alone)[0]
        assert_same(got[row, real], want[0])


@each_cache
def test_tokens_beyond_the_capacity_are_counted_and_leave_the_rest_as_it_is(kind):
    cfg, sizes, change = CACHES[kind]
    cache = cfg.set(**KEPT).build(path="cache")
    values, tokens = {"x": X, "y": X[..., 0, 0]}, Tokens(jnp.arange(LENGTH)[None])
    sizes = {"batch": ROWS, "capacity": CAPACITY, **sizes}
    state = call(cache, {}, values, tokens, state=change(started(cache, {}, values, tokens, sizes=sizes)))[1].state
    more = Tokens(jnp.array([[6, 7, 8], [6, EMPTY, EMPTY], [6, 7, 8]]))
    view, collected = call(cache, {}, {"x": X[:, :3], "y": X[:, :3, 0, 0]}, more, state=state)
    assert collected.summaries["cache.lost"] == 2
    np.testing.assert_array_equal(rows_of(view, "x")[:, :LENGTH], X)
    np.testing.assert_array_equal(view.tokens.index[:, LENGTH:], [[6, 7], [6, EMPTY], [6, 7]])


@each_cache
def test_more_tokens_at_once_than_there_is_room_for_are_refused(kind):
    cfg, sizes, _ = CACHES[kind]
    cache = cfg.set(**KEPT).build(path="cache")
    values, tokens = {"x": X, "y": X[..., 0, 0]}, Tokens(jnp.arange(LENGTH)[None])
    few = {name: 4 // getattr(cfg, "page", 4) if "row" in name else size for name, size in sizes.items()}
    with pytest.raises(ModuleError) as e:
        started(cache, {}, values, tokens, sizes={"batch": ROWS, **few, "capacity": 4})
    assert str(e.value) == f"cache ({type(cache).__name__}): 6 tokens do not fit into a capacity of 4."


@each_cache
def test_the_cache_of_a_bfloat16_model_is_in_bfloat16(kind):
    cfg, sizes, _ = CACHES[kind]
    model = LAYERS["attention"].set(cache=cfg).build()
    params, x = random_params(model), INPUT.astype(jnp.bfloat16)
    sizes = {"batch": ROWS, "capacity": CAPACITY, **sizes}
    state = started(model, params, x, PACKED, sizes=sizes, dtype=jnp.bfloat16)
    kept = ("cache.k", "cache.v", "cache.kv")
    assert {leaf.dtype for path, leaf in state.items() if path in kept} == {jnp.bfloat16.dtype}
    out, _ = call(model, params, x, PACKED, state=state, dtype=jnp.bfloat16)
    assert out.dtype == jnp.bfloat16


# Pages.


def test_rows_may_share_the_pages_of_what_they_have_in_common():
    """Two rows with one beginning: it is written once, by the first, and the second has its pages in the table."""
    model = LAYERS["attention"].set(window=None, cache=PagedCache.Config(page=2)).build()
    params, x = random_params(model), jnp.concatenate([INPUT[:1], INPUT[:1]]).at[1, 4:].set(INPUT[1, 4:])
    context = Context(Tokens(jnp.arange(LENGTH)[None]), jnp.arange(LENGTH)[None], Causal())
    sizes = {"batch": 2, "capacity": LENGTH, "pages": 4, "row_pages": 3}
    state = started(model, params, x, context, sizes=sizes)
    state["cache.table"] = jnp.array([[2, 0, 3], [2, 0, 1]])
    got, *_ = from_state(model, params, x, context, [(0, 4), (4, LENGTH)], state)
    assert_same(got, call(model, params, x, context)[0])


def test_a_page_of_no_tokens_is_refused():
    with pytest.raises(ConfigError, match=r"cache \(PagedCache\): page is 0, expected at least 1."):
        PagedCache.Config(page=0, **KEPT).build(path="cache")


def test_caches_of_a_window_have_pages_of_their_own():
    """So that who serves can free what a window has passed, and keep what other layers still see."""
    cache = PagedCache.Config(page=4, **KEPT).set(window=512).build(path="cache")
    values, tokens = {"x": X, "y": X[..., 0, 0]}, Tokens(jnp.arange(LENGTH)[None])
    with pytest.raises(ModuleError, match=r"cache.table has the size 'row_pages\[512\]'"):
        state_specs(cache, {}, values, tokens, sizes={"batch": ROWS, "pages": 6, "row_pages": 2})
    found = state_specs(cache, {}, values, tokens, sizes={"batch": ROWS, "pages[512]": 6, "row_pages[512]": 2})
    assert {path: spec.shape for path, spec in found.items()} == {
        "cache.table": (ROWS, 2), "cache.x": (6, 4, 2, 3), "cache.y": (6, 4)
    }  # fmt: skip
