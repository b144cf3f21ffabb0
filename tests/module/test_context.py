# SPDX-License-Identifier: Apache-2.0
"""The invocation context: `call` is a pure function, and randomness, state and reports have defined meanings."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.module import Module, ModuleError, call, constant, init
from support.compare import assert_same
from support.loops import Sequence
from support.transformer import Block, DenseFeedForward, NoisyFeedForward, decoder, plain_block

IDS = jax.random.randint(jax.random.key(7), (2, 6), 0, 32)


@pytest.fixture(scope="module")
def model():
    return decoder(num_layers=2).build()


@pytest.fixture(scope="module")
def params(model):
    return init(model, jax.random.key(0))


def test_jit_equals_eager(model, params):
    eager = call(model, params, IDS)[0]
    jitted = jax.jit(lambda p, ids: call(model, p, ids)[0])(params, IDS)
    assert_same(jitted, eager)


def test_vmap_over_parameters_equals_one_call_for_each(model):
    keys = jax.random.split(jax.random.key(0), 3)
    stacked = jax.vmap(lambda key: init(model, key))(keys)
    together = jax.jit(jax.vmap(lambda p: call(model, p, IDS)[0]))(stacked)
    one = jax.jit(lambda p: call(model, p, IDS)[0])
    for i, key in enumerate(keys):
        assert_same(together[i], one(init(model, key)))


def test_a_call_leaves_no_trace_behind(model, params):
    """A failing call, a nested call and a call from another thread do not disturb each other."""
    want = call(model, params, IDS)[0]
    with pytest.raises(TypeError):
        call(model, params, "not an array")
    other = []
    thread = threading.Thread(target=lambda: other.append(call(model, params, IDS)[0]))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(call(model, params, IDS)[0], want)
    np.testing.assert_array_equal(other[0], want)


class Pair(Module):
    """Calls the same child twice in one method."""

    class Config(Module.Config):
        twin: Module.Config = NoisyFeedForward.Config(dim=2, inner=DenseFeedForward.Config(hidden_dim=32, dropout=0.5))

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.twin = self.child("twin", cfg.twin)

    def forward(self, x):
        return self.twin(x), self.twin(x)


def test_the_same_child_called_twice_in_one_method():
    model = Pair.Config().build()
    params = init(model, jax.random.key(0))
    assert list(params) == ["twin"], "one set of parameters"
    x = jnp.ones((1, 2))
    (a, b), collected = call(model, params, x)
    np.testing.assert_array_equal(a, b)
    assert list(collected.summaries) == ["twin.size", "twin#2.size"]
    (a, b), _ = call(model, params, x, rng=jax.random.key(0), train=True)
    assert not np.allclose(a, b), "each call has its own randomness"


class Draws(Module):
    """Draws two random numbers under one name, and one under another."""

    def forward(self):
        return [jax.random.bits(self.rng(name)) for name in ("a", "a", "b")]


def test_random_keys_depend_on_path_name_and_use_alone():
    draws = Draws.Config().build(path="somewhere")
    key = jax.random.key(3)
    first = [int(x) for x in call(draws, {}, rng=key)[0]]
    assert len(set(first)) == 3, "asking again gives another number"
    assert [int(x) for x in call(draws, {}, rng=key)[0]] == first, "and a call repeats itself"
    assert [int(x) for x in call(draws, {}, rng=jax.random.key(4))[0]] != first
    elsewhere = Draws.Config().build(path="elsewhere")
    assert not set(first) & {int(x) for x in call(elsewhere, {}, rng=key)[0]}


def test_dropout_of_one_layer_does_not_change_when_another_is_added():
    noisy = NoisyFeedForward.Config(dim=2, inner=DenseFeedForward.Config(hidden_dim=32, dropout=0.5))
    quiet = noisy.set_in("inner.dropout", 0.0)

    def first_size(layers):
        model = Sequence.Config(layers=layers).build()
        params = init(model, jax.random.key(0))
        _, collected = call(model, params, jnp.ones((1, 2)), rng=jax.random.key(1), train=True)
        return collected.summaries["layers[0].size"]

    assert first_size([noisy]) == first_size([noisy, quiet]) == first_size([noisy, noisy, noisy])
    assert first_size([noisy]) != first_size([quiet])


class DrawsInScan(Module):
    """Draws in each step of a loop of its own: wrongly, or as the error says."""

    class Config(Module.Config):
        inside: bool = False

    def forward(self):
        keys = jax.random.split(self.rng(), 3)
        draw = (lambda _, key: (None, jax.random.bits(self.rng()))) if self.cfg.inside else _draw
        return jax.lax.scan(draw, None, keys)[1]


def _draw(_, key):
    return None, jax.random.bits(key)


def test_random_numbers_in_a_loop_that_would_be_the_same_in_each_step_are_refused():
    with pytest.raises(ModuleError) as e:
        call(DrawsInScan.Config(inside=True).build(), {}, rng=jax.random.key(0))
    assert str(e.value) == (
        "(root) (DrawsInScan) asks for random numbers inside a JAX transformation (scan, vmap, grad, jit, ...) that "
        "the method itself started.\n"
        "  All its steps would get the same. Ask before, jax.random.split the key, and give each step a key of its "
        "own,\n"
        "  or transform self.lift(method), and self.bring what it leaves."
    )
    drawn, _ = call(DrawsInScan.Config(inside=False).build(), {}, rng=jax.random.key(0))
    assert len(set(drawn.tolist())) == 3


class Reads(Module):
    """Returns what the context says."""

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("weight", (2,), axes=(None,), init=constant(0.1))
        self.param("index", (2,), axes=(None,), init=constant(1), dtype=jnp.int32)
        self.param("exact", (2,), axes=(None,), init=constant(0.1), cast=False)

    def exact_dtype(self):
        return self.exact.dtype

    def forward(self):
        return self.weight, self.index, {"train": self.training, "state": self.stateful, "dtype": self.compute_dtype}


def test_floating_point_parameters_are_read_in_the_compute_dtype():
    model = Reads.Config().build()
    params = init(model, jax.random.key(0))
    weight, index, context = call(model, params)[0]
    assert (weight.dtype, index.dtype) == (jnp.float32, jnp.int32)
    assert context == {"train": False, "state": False, "dtype": None}
    weight, index, context = call(model, params, dtype=jnp.bfloat16, train=True, state={})[0]
    assert (weight.dtype, index.dtype) == (jnp.bfloat16, jnp.int32)
    assert context == {"train": True, "state": True, "dtype": jnp.bfloat16}
    np.testing.assert_array_equal(weight, jnp.full(2, 0.1, jnp.bfloat16))
    assert call(model, params, dtype=jnp.bfloat16, method="exact_dtype")[0] == jnp.float32, "cast=False"


def test_an_unknown_method_is_named_with_those_there_are(model, params):
    with pytest.raises(ModuleError) as e:
        call(model, params, IDS, method="foward")
    assert str(e.value) == "(root) (Decoder) has no method 'foward'. Did you mean 'forward'? It has: ['forward']."
    with pytest.raises(ModuleError, match="has no method '_scope'"):
        call(model, params, IDS, method="_scope")


def test_the_program_has_the_equations_of_plain_jax_and_no_more():
    """Also claimed, with times, by benchmarks/overhead.py."""
    model = Block.Config(dim=8, ffn=DenseFeedForward.Config(hidden_dim=16)).build()
    params = init(model, jax.random.key(0))
    x = jnp.ones((2, 6, 8))
    ours = jax.make_jaxpr(lambda p, x: call(model, p, x)[0])(params, x)
    plain = jax.make_jaxpr(lambda p, x: plain_block(p, x, num_heads=2))(params, x)
    assert [eqn.primitive.name for eqn in ours.eqns] == [eqn.primitive.name for eqn in plain.eqns]
