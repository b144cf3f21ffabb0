# SPDX-License-Identifier: Apache-2.0
"""Connections: what the stream is, and how a branch joins it, is a matter of theirs alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import replace_all
from dovetail.module import Remat, call, constant
from dovetail.nn import Add, Attention, Block, Connection, GatedFeedForward, Repeat
from support import reference
from support.compare import assert_same
from support.decoding import in_parts
from support.models import Interpolated, context, random_params
from support.numeric import check, normal

STREAMS, DIM, TIME = 2, 8, 4


class Streams(Connection):
    """Several streams, as in hyper-connections (arXiv:2409.19606): a branch reads a mixture, and writes to all."""

    class Config(Connection.Config):
        num_streams: int = STREAMS

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        for name in ("into", "out"):
            self.param(name, (cfg.num_streams,), axes=(None,), init=constant(1.0))
        self.param("mix", (cfg.num_streams, cfg.num_streams), axes=(None, None))

    def read(self, h, context):
        return jnp.einsum("btsd,s->btd", h, self.into)

    def write(self, h, y, context):
        return jnp.einsum("btsd,sr->btrd", h, self.mix) + y[:, :, None] * self.out[:, None]


BLOCK = Block.Config(dim=DIM, mixer=Attention.Config(num_heads=2), ffn=GatedFeedForward.Config(hidden_dim=12))
HYPER = replace_all(Connection.Config, Streams.Config())(BLOCK)
H = normal(1, (2, TIME, STREAMS, DIM))


def attend(p, x):
    allowed = np.tril(np.ones((2, TIME, TIME), bool))
    normed = reference.norm(p["mixer_norm"], x, "rms")
    return reference.attention(p["mixer"], normed, allowed=allowed, positions=np.arange(TIME)[None])


def feed(p, x):
    return reference.feed_forward(p["ffn"], reference.norm(p["ffn_norm"], x, "rms"))


def read(p, h):
    return np.einsum("btsd,s->btd", h, p["into"])


def written(p, h, y):
    return np.einsum("btsd,sr->btrd", h, p["mix"]) + np.einsum("btd,s->btsd", y, p["out"])


def in_sequence(p, h):
    h = written(p["mixer_connection"], h, attend(p, read(p["mixer_connection"], h)))
    return written(p["ffn_connection"], h, feed(p, read(p["ffn_connection"], h)))


def in_parallel(p, h):
    made = [attend(p, read(p["mixer_connection"], h)), feed(p, read(p["ffn_connection"], h))]
    for name, y in zip(("mixer_connection", "ffn_connection"), made, strict=True):
        h = written(p[name], h, y)
    return h


def run(cfg):
    model = cfg.build()
    return lambda params, h: call(model, params, h, context(TIME))[0]


@pytest.mark.parametrize("order, definition", [("sequence", in_sequence), ("parallel", in_parallel)])
def test_a_block_with_a_connection_for_each_branch_is_its_definition(order, definition):
    cfg = HYPER.set(order=order)
    check(run(cfg), definition, random_params(cfg.build()), H)


def test_a_block_on_the_unit_sphere_is_its_definition():
    def unit(x):
        return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + 1e-12)

    def definition(p, h):
        for name, branch in (("mixer", attend), ("ffn", feed)):
            y = unit(branch(p, h))
            h = unit(h + p[f"{name}_connection"]["rate"] * (y - h))
        return h

    cfg = replace_all(Connection.Config, Interpolated.Config())(BLOCK)
    out = check(run(cfg), definition, random_params(cfg.build()), normal(1, (2, TIME, DIM)))
    np.testing.assert_allclose(np.linalg.norm(out, axis=-1), 1, rtol=1e-5)


def test_adding_is_the_default_and_costs_no_equation():
    plain = BLOCK.build()
    params, x = random_params(plain), normal(1, (2, TIME, DIM))
    assert {type(cfg) for cfg in (BLOCK.mixer_connection, BLOCK.ffn_connection)} == {Add.Config}

    alone = {name: getattr(BLOCK, name).set(dim=DIM).build() for name in ("mixer_norm", "mixer", "ffn_norm", "ffn")}

    def _normed(p, x):
        return call(alone["mixer_norm"], p, x)[0]

    def parts(params, x):
        told = context(TIME)
        x = x + call(alone["mixer"], params["mixer"], _normed(params["mixer_norm"], x), told)[0]
        return x + call(alone["ffn"], params["ffn"], _normed(params["ffn_norm"], x), told)[0]

    np.testing.assert_array_equal(jax.jit(run(BLOCK))(params, x), jax.jit(parts)(params, x))
    counts = [len(jax.make_jaxpr(each)(params, x).eqns) for each in (run(BLOCK), parts)]
    assert counts[0] <= counts[1]


@pytest.mark.parametrize("loop, remat", [("scan", None), ("unroll", None), ("scan", Remat())])
def test_a_stream_of_another_shape_goes_through_loops_as_it_is(loop, remat):
    cfg = Repeat.Config(dim=DIM, layer=HYPER.set(remat=remat), num_layers=2, loop=loop)
    params = random_params(cfg.build())
    want = H
    for i in range(2):
        want = run(HYPER)(jax.tree.map(lambda leaf, i=i: leaf[i], params["layer"]), want)
    assert_same(jax.jit(run(cfg))(params, H), want)


def test_a_stream_of_another_shape_decodes_as_it_trains():
    cfg = Repeat.Config(dim=DIM, layer=HYPER, num_layers=2)
    model = cfg.build()
    params = random_params(model)
    got, *_ = in_parts(model, params, H, context(TIME), [(0, 2), (2, 3), (3, 4)], capacity=TIME)
    assert_same(got, functools.partial(run(cfg), params)(H))
