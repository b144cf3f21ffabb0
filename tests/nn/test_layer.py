# SPDX-License-Identifier: Apache-2.0
"""Layers made of layers are these one after the other: scanned or not, with or without remat and dropout."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.module import Remat, call, init, normal, per_layer, specs
from dovetail.nn import (
    Attention,
    Block,
    Dropout,
    GatedFeedForward,
    Layer,
    Repeat,
    Sequence,
    layers_of,
    pattern_of,
    stack_of,
)
from support import numeric, reference
from support.compare import assert_same
from support.models import Previous, context, mixer_only, random_params
from support.numeric import check
from support.stacks import KINDS, layers_in, model_of, numbered, shapes_of, stacks

X = numeric.normal(1, (2, 4, 8))
CONTEXT = context(4)
LAYER = Block.Config(mixer=Attention.Config(num_heads=2), ffn=GatedFeedForward.Config(hidden_dim=12))
STACK = Repeat.Config(dim=8, layer=LAYER, num_layers=2)
KEY = jax.random.key(0, impl="unsafe_rbg")  # Other draws, but much less to compile.
DROPS = STACK.set(layer=LAYER.set(mixer=Previous.Config(), dropout=Dropout.Config(rate=0.4)))


def run(cfg, **kwargs):
    model = cfg.build()
    return lambda params, x: call(model, params, x, CONTEXT, **kwargs)[0]


def test_a_stack_is_its_blocks_in_turn():
    allowed = np.tril(np.ones((2, 4, 4), bool))
    definition = functools.partial(reference.stack, allowed=allowed, positions=np.arange(4)[None])
    check(run(STACK), definition, random_params(STACK.build()), X)


def test_loop_and_remat_change_neither_values_nor_gradients_nor_draws():
    def outcome(cfg):
        forward = run(cfg, train=True, rng=KEY)
        return jax.jit(jax.value_and_grad(lambda p: jnp.mean(jnp.square(forward(p, X)))))(params)

    params = random_params(DROPS.build())
    assert_same(outcome(DROPS.set(loop="unroll").set_in("layer.remat", Remat(save=("ffn.hidden",)))), outcome(DROPS))


class Drops(Layer):
    """A layer that only drops, with a parameter to look at."""

    class Config(Layer.Config):
        dropout: Dropout.Config = Dropout.Config(rate=0.3)

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.dropout = self.child("dropout", cfg.dropout)
        self.param("extra", (cfg.dim,), axes=("embed",), init=normal(1.0))

    def forward(self, x, context):
        return self.dropout(x)


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_layers_drop_independently(loop):
    cfg = Repeat.Config(dim=8, layer=Drops.Config(), num_layers=2, loop=loop)
    out = jax.jit(run(cfg, train=True, rng=KEY))({"layer": {"dropout": {}}}, jnp.ones((50, 4, 8)))
    # Independent draws keep 0.7^2 = 0.49, equal ones 0.7; of 1600, one standard deviation is 0.0125.
    np.testing.assert_allclose(np.mean(out != 0), 0.49, atol=0.05)


def test_each_layer_starts_on_its_own_and_as_it_would_in_a_larger_stack():
    cfg = Repeat.Config(dim=8, layer=Drops.Config(), num_layers=3)
    spec = specs(cfg.build())["layer"]["extra"]
    assert (spec.shape, spec.axes) == ((3, 8), ("layers", "embed"))
    few, more = (init(cfg.set(num_layers=n).build(), jax.random.key(0))["layer"]["extra"] for n in (2, 3))
    assert len(np.unique(more)) == 24
    np.testing.assert_array_equal(few, more[:2])


def test_no_layers_are_refused():
    with pytest.raises(ConfigError) as e:
        STACK.set(num_layers=0).build(path="stack")
    assert str(e.value) == (
        "stack (Repeat): num_layers is 0, for 1 layers in turn.\n"
        "  Expected at least one layer, and a number of at least as many."
    )


# Patterns, and sequences.

DIFFERENT = (LAYER.set(mixer=Previous.Config()), mixer_only(Previous.Config()))
PATTERN = Repeat.Config(dim=8, layer=DIFFERENT, num_layers=5)


def layer_params(params, i, period=2, num_layers=5):
    """Finds the parameters of layer `i`, by the words of the docstring of `Repeat`."""
    whole = num_layers - num_layers % period
    if i >= whole:
        return params[f"layer[{period + i - whole}]"]
    return jax.tree.map(lambda leaf: leaf[i // period], params[f"layer[{i % period}]"])


def test_a_pattern_is_its_layers_in_turn_with_what_is_left_over_at_the_end():
    params = random_params(PATTERN.build())
    x = X
    for i in range(5):
        x = run(DIFFERENT[i % 2].set(dim=8))(layer_params(params, i), x)
    assert_same(jax.jit(run(PATTERN))(params, X), x)
    assert set(params) == {"layer[0]", "layer[1]", "layer[2]"}
    assert params["layer[1]"]["mixer_norm"]["scale"].shape == (2, 8)
    assert params["layer[2]"]["ffn"]["up"]["weight"].shape == (8, 12)


def test_a_pattern_in_a_loop_is_the_same_in_a_scan_with_dropout_and_gradients():
    dropping = tuple(layer.set(dropout=Dropout.Config(rate=0.4)) for layer in DIFFERENT)

    def outcome(cfg):
        forward = run(cfg, train=True, rng=KEY)
        return jax.jit(jax.value_and_grad(lambda p: jnp.mean(jnp.square(forward(p, X)))))(params)

    cfg = PATTERN.set(layer=dropping)
    params = random_params(cfg.build())
    assert_same(outcome(cfg.set(loop="unroll")), outcome(cfg))


class Reports(Layer):
    """Reports the mean of what goes in, and adds 1."""

    def forward(self, x, context):
        self.summary("mean", jnp.mean(x))
        return x + 1.0


def test_reports_from_a_pattern_carry_the_place_in_the_pattern_and_the_round():
    cfg = Repeat.Config(dim=8, layer=(Reports.Config(), Reports.Config()), num_layers=5)
    model = cfg.build()
    params = {f"layer[{i}]": {} for i in range(3)}
    _, collected = call(model, params, jnp.zeros((1, 1, 8)), CONTEXT)
    found = per_layer(collected.summaries)
    rounds = {f"layer[{i}][{j}].mean": 2 * j + i for i in range(2) for j in range(2)}
    assert found == {**rounds, "layer[2].mean": 4}


def test_a_pattern_of_one_is_a_repeated_layer():
    cfg = Repeat.Config(dim=8, layer=DIFFERENT[0], num_layers=2)
    params = random_params(cfg.build())
    pattern = Repeat.Config(dim=8, layer=(DIFFERENT[0],), num_layers=2)
    got = jax.jit(run(pattern))({"layer[0]": params["layer"]}, X)
    np.testing.assert_array_equal(got, jax.jit(run(cfg))(params, X))


def test_a_sequence_is_its_layers_in_turn():
    first = Repeat.Config(layer=DIFFERENT[1], num_layers=2)
    cfg = Sequence.Config(dim=8, layers=(first, PATTERN.set(dim=8)))
    params = random_params(cfg.build())
    want = run(PATTERN)(params["layers[1]"], run(first.set(dim=8))(params["layers[0]"], X))
    assert_same(jax.jit(run(cfg))(params, X), want)


@pytest.mark.parametrize("pattern, num_layers", [((), 2), (DIFFERENT, 1)])
def test_fewer_layers_than_the_pattern_and_empty_patterns_are_refused(pattern, num_layers):
    with pytest.raises(ConfigError) as e:
        Repeat.Config(dim=8, layer=pattern, num_layers=num_layers).build(path="stack")
    assert str(e.value) == (
        f"stack (Repeat): num_layers is {num_layers}, for {len(pattern)} layers in turn.\n"
        "  Expected at least one layer, and a number of at least as many."
    )


def test_a_pattern_can_be_made_from_one_block_and_what_differs():
    pattern = pattern_of(LAYER, {"mixer.window": (4, 4, None), "ffn.hidden_dim": (8, 8, 16)})
    found = [(block.get_in("mixer.window"), block.get_in("ffn.hidden_dim")) for block in pattern]
    assert found == [(4, 8), (4, 8), (None, 16)]
    assert {block.get_in("mixer.num_heads") for block in pattern} == {2}
    with pytest.raises(ConfigError) as e:
        pattern_of(LAYER, {"mixer.window": (4, None), "ffn.hidden_dim": (8,)})
    assert str(e.value) == (
        "pattern_of: expected as many values for each path, found {'mixer.window': 2, 'ffn.hidden_dim': 1}."
    )


# Layers in a stack, and a stack of layers.


@given(stacks())
def test_each_layer_of_a_stack_is_found_in_its_order_with_the_place_of_its_parameters(stack):
    """Against the docstrings of `Repeat` and `Sequence`, and the shapes of a model that was built."""
    params = numbered(shapes_of(model_of(stack)))
    expected = layers_in(stack, params)
    places = layers_of(stack)
    assert [place.layer for place in places] == [layer for layer, _ in expected]
    for place, (_, own) in zip(places, expected, strict=True):
        inside = [name for name in params if name.startswith(f"{place.path}.")]
        assert {name.removeprefix(f"{place.path}.") for name in inside} == set(own)
        for name in inside:
            value = params[name][place.entry]
            np.testing.assert_array_equal(value, own[name.removeprefix(f"{place.path}.")])


# Numbers stand for kinds of layers: what two lists have in common is all that counts.
LISTS = st.one_of(
    st.lists(st.sampled_from(range(3)), min_size=1, max_size=14),
    st.tuples(st.lists(st.sampled_from(range(3)), min_size=1, max_size=4), st.integers(1, 14)).map(
        lambda drawn: (drawn[0] * drawn[1])[: max(drawn[1], len(drawn[0]))]
    ),
)


def compiled(stack) -> int:
    """Returns how many layers a stack has to compile."""
    if isinstance(stack, Sequence.Config):
        return sum(map(compiled, stack.layers))
    if not isinstance(stack, Repeat.Config):
        return 1
    pattern = stack.layer if isinstance(stack.layer, tuple) else (stack.layer,)
    return len(pattern) + stack.num_layers % len(pattern)


@given(LISTS)
def test_a_stack_of_layers_has_these_layers_and_as_few_to_compile_as_runs_or_a_period(numbers):
    layers = [tuple(KINDS.values())[number] for number in numbers]
    stack = stack_of(layers)
    assert [place.layer for place in layers_of(stack)] == layers
    runs = 1 + sum(a != b for a, b in itertools.pairwise(numbers))
    count = len(numbers)
    periods = [p for p in range(1, count + 1) if all(numbers[i] == numbers[i % p] for i in range(count))]
    assert compiled(stack) == min(runs, periods[0] + count % periods[0])
    assert stack.set(dim=6).build(path="stack") is not None


@given(stacks())
def test_a_stack_of_the_layers_of_a_stack_is_the_same_however_they_were_nested(stack):
    layers = [place.layer for place in layers_of(stack)]
    once = stack_of(layers)
    assert stack_of([place.layer for place in layers_of(once)]) == once


def test_a_thousand_layers_whose_last_one_is_another_do_not_take_long():
    """A search that compares configs takes a minute for them."""
    layers = [LAYER] * 1999 + [DIFFERENT[1]]
    assert stack_of(layers) == Sequence.Config(
        layers=(Repeat.Config(layer=LAYER, num_layers=1999), Repeat.Config(layer=DIFFERENT[1], num_layers=1))
    )
