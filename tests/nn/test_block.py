# SPDX-License-Identifier: Apache-2.0
"""Blocks are their definitions, with dropout of what is added."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import Remat, call
from dovetail.nn import (
    Attention,
    Block,
    CrossAttention,
    DenseFeedForward,
    Dropout,
    GatedFeedForward,
    LayerNorm,
    RMSNorm,
)
from support import reference
from support.compare import assert_same
from support.models import context, random_params
from support.numeric import check, normal

X = normal(1, (2, 4, 8))
KEY = jax.random.key(0, impl="unsafe_rbg")  # Other draws, but much less to compile.
MEMORY = normal(2, (2, 3, 8))
CONTEXT = context(4, given={"memory": MEMORY})
LLAMA = Block.Config(
    dim=8, mixer=Attention.Config(num_heads=4, num_kv_heads=2), ffn=GatedFeedForward.Config(hidden_dim=12)
)
GPT2 = Block.Config(
    dim=8,
    mixer_norm=LayerNorm.Config(),
    mixer=Attention.Config(num_heads=2),
    ffn_norm=LayerNorm.Config(),
    ffn=DenseFeedForward.Config(hidden_dim=12),
)


def run(cfg, **kwargs):
    model = cfg.build()
    return lambda params, x: call(model, params, x, CONTEXT, **kwargs)[0]


def test_a_block_is_its_definition():
    allowed = np.tril(np.ones((2, 4, 4), bool))
    definition = functools.partial(reference.block, kind="layer", allowed=allowed, positions=np.arange(4)[None])
    check(run(GPT2), definition, random_params(GPT2.build()), X)


ATTENTION = Attention.Config(num_heads=2)
FFN = GatedFeedForward.Config(hidden_dim=12)
PARTS: dict[str, Any] = {"mixer": ATTENTION, "ffn": FFN}


def mix(p, x):
    return reference.attention(p["mixer"], x, allowed=np.tril(np.ones((2, 4, 4), bool)), positions=np.arange(4)[None])


def rms(p, x):
    return reference.norm(p, x, "rms")


def scaled(p, x):
    x = x + 0.2 * mix(p, rms(p["mixer_norm"], x))
    return x + 0.2 * reference.feed_forward(p["ffn"], rms(p["ffn_norm"], x))


def post_norm(p, x):
    x = x + rms(p["mixer_out_norm"], mix(p, x))
    return x + rms(p["ffn_out_norm"], reference.feed_forward(p["ffn"], x))


def sandwich(p, x):
    x = x + rms(p["mixer_out_norm"], mix(p, rms(p["mixer_norm"], x)))
    return x + rms(p["ffn_out_norm"], reference.feed_forward(p["ffn"], rms(p["ffn_norm"], x)))


def parallel(p, x):
    return x + mix(p, rms(p["mixer_norm"], x)) + reference.feed_forward(p["ffn"], rms(p["ffn_norm"], x))


def parallel_with_one_norm(p, x):
    normed = rms(p["norm"], x)
    return x + mix(p, normed) + reference.feed_forward(p["ffn"], normed)


def mixer_only(p, x):
    return x + mix(p, rms(p["mixer_norm"], x))


def feed_forward_only(p, x):
    return x + reference.feed_forward(p["ffn"], rms(p["ffn_norm"], x))


def look(p, x):
    memory = np.asarray(MEMORY, np.float64)
    q, k, v = (reference.linear(p[name], y) for name, y in (("query", x), ("key", memory), ("value", memory)))
    return reference.linear(p["out"], reference.attend(q, k, v, np.ones((2, 4, 3), bool), 1 / 2), num_in=2)


def cross(p, x):
    x = x + mix(p, rms(p["mixer_norm"], x))
    x = x + look(p["cross"], rms(p["cross_norm"], x))
    return x + reference.feed_forward(p["ffn"], rms(p["ffn_norm"], x))


NORM = RMSNorm.Config()
OUT_NORMS: dict[str, Any] = {"mixer_out_norm": NORM, "ffn_out_norm": NORM}
NO_NORMS: dict[str, Any] = {"mixer_norm": None, "ffn_norm": None}
CROSS: dict[str, Any] = {"cross": CrossAttention.Config(num_heads=2), "cross_norm": NORM}
DEFINITIONS = {
    "pre-norm, scaled": (Block.Config(dim=8, residual_scale=0.2, **PARTS), scaled),
    "post-norm": (Block.Config(dim=8, **PARTS, **OUT_NORMS, **NO_NORMS), post_norm),
    "sandwich": (Block.Config(dim=8, **PARTS, **OUT_NORMS), sandwich),
    "parallel, two norms": (Block.Config(dim=8, order="parallel", **PARTS), parallel),
    "parallel, one norm": (
        Block.Config(dim=8, order="parallel", norm=NORM, **PARTS, **NO_NORMS),
        parallel_with_one_norm,
    ),
    "mixer only": (Block.Config(dim=8, mixer=ATTENTION, ffn=None, ffn_norm=None), mixer_only),
    "feed-forward only": (Block.Config(dim=8, mixer=None, mixer_norm=None, ffn=FFN), feed_forward_only),
    "cross-attending": (Block.Config(dim=8, **PARTS, **CROSS), cross),
}


@pytest.mark.parametrize("cfg, definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_other_blocks_are_their_definitions(cfg, definition):
    check(run(cfg), definition, random_params(cfg.build()), X)


@pytest.mark.parametrize("cfg", [cfg for cfg, _ in DEFINITIONS.values()], ids=DEFINITIONS)
def test_other_blocks_drop_what_they_add(cfg):
    # Nearly everything is dropped, and what is left is scaled: almost all of `x` comes out as it went in.
    cfg = cfg.set_in("dropout.rate", 0.99)
    out = jax.jit(run(cfg, train=True, rng=KEY))(random_params(cfg.build()), X)
    assert np.mean(out == X) > 0.8


def test_a_block_that_adds_nothing_is_the_identity():
    params = random_params(LLAMA.build())
    params["mixer"]["out"]["weight"] *= 0
    params["ffn"]["down"]["weight"] *= 0
    np.testing.assert_array_equal(jax.jit(run(LLAMA))(params, X), X)


DROPS = LLAMA.set(dropout=Dropout.Config(rate=0.4))


def test_dropout_is_of_what_is_added_and_drawn_anew_for_each_half():
    x = normal(2, (2, 4, 8))
    params = random_params(DROPS.build())
    without = [jax.tree.map(jnp.zeros_like, params["mixer"]), jax.tree.map(jnp.zeros_like, params["ffn"])]
    train = jax.jit(run(DROPS, train=True, rng=KEY))
    by_ffn = train({**params, "mixer": without[0]}, x) - x
    by_mixer = train({**params, "ffn": without[1]}, x) - x
    kept = [np.asarray(added != 0) for added in (by_mixer, by_ffn)]
    # Of 64 draws, a share of 0.6 is off by 0.06 as one standard deviation; equal masks would agree everywhere.
    for mask in kept:
        assert 0.35 < mask.mean() < 0.85
    assert 0.1 < np.mean(kept[0] != kept[1]) < 0.9


def test_remat_changes_neither_values_nor_gradients_nor_draws():
    def outcome(cfg):
        forward = run(cfg, train=True, rng=KEY)
        return jax.jit(jax.value_and_grad(lambda p: jnp.mean(jnp.square(forward(p, X)))))(params)

    params = random_params(DROPS.build())
    assert_same(outcome(DROPS.set(remat=Remat(save=("qkv", "mixer.attended", "ffn.hidden")))), outcome(DROPS))


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"ffn": None}, "block (Block): ffn_norm is given, but there is no ffn. Set ffn_norm=None."),
        (
            {"cross_out_norm": NORM},
            "block (Block): cross_out_norm is given, but there is no cross. Set cross_out_norm=None.",
        ),
        (
            {"mixer": None, "ffn": None, "mixer_norm": None, "ffn_norm": None},
            "block (Block): has no branch. Set mixer, cross or ffn.",
        ),
    ],
)
def test_a_norm_without_its_branch_and_a_block_without_branches_are_refused(fields, text):
    with pytest.raises(ConfigError) as e:
        LLAMA.set(**fields).build(path="block")
    assert str(e.value) == text


def test_what_is_missing_is_named_with_its_path():
    with pytest.raises(ConfigError) as e:
        Block.Config().build()
    assert str(e.value) == (
        "Block.Config: 3 required fields are not set:\n"
        "  dim: int\n"
        "  mixer.num_heads: int\n"
        "  ffn.hidden_dim: int\n"
        "  Set them, as in cfg.set_in('dim', ...)."
    )
