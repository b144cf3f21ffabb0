# SPDX-License-Identifier: Apache-2.0
"""The loop over layers: a scan is the Python loop, in outputs, gradients, state, losses and randomness."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import modify, replace_all
from dovetail.module import Remat, call, init, make_state, per_layer, specs, state_specs
from support.compare import assert_same
from support.loops import Remembering, Repeat, Sequence
from support.models import random_params
from support.programs import equations
from support.transformer import Attention, Block, Decoder, DenseFeedForward, NoisyFeedForward, decoder, plain_decoder

IDS = jax.random.randint(jax.random.key(7), (2, 6), 0, 32)


def started(model):
    """State for sequences as long as those of the tests."""
    sizes = {"batch": IDS.shape[0], "capacity": IDS.shape[1]}
    return make_state(state_specs(model, random_params(model), IDS, sizes=sizes))


def loss(model, params, **kwargs):
    logits, collected = call(model, params, IDS, **kwargs)
    return jnp.mean(jnp.square(logits - 1)) + sum(map(jnp.sum, collected.losses.values())), (logits, collected)


@functools.cache
def outcome(cfg, train=False):
    """Outputs, what was collected, and gradients, with random parameters that do not depend on the kind of loop."""
    model = cfg.build()
    kwargs = {"rng": jax.random.key(1), "train": True, "state": started(model)} if train else {}
    run = jax.jit(jax.value_and_grad(lambda p: loss(model, p, **kwargs), has_aux=True))
    (_, aux), grads = run(random_params(model))
    return aux, grads


def unrolled(cfg):
    return modify(Repeat.Config, lambda repeat: repeat.set(loop="unroll"))(cfg)


@pytest.fixture
def cfg():
    noisy = replace_all(DenseFeedForward.Config, lambda ffn: NoisyFeedForward.Config(inner=ffn.set(dropout=0.3)))
    return noisy(decoder())


def test_scan_equals_a_python_loop_over_plain_functions():
    cfg = decoder(num_layers=3)
    model = cfg.build()
    losses = [
        lambda p: jnp.mean(jnp.square(call(model, p, IDS)[0] - 1)),
        lambda p: jnp.mean(jnp.square(plain_decoder(p, IDS, num_heads=2, scan=False) - 1)),
    ]
    assert_same(*(jax.jit(jax.value_and_grad(loss))(random_params(model)) for loss in losses))


def test_scan_equals_unrolled_with_dropout_losses_summaries_and_state(cfg):
    scanned, looped = outcome(cfg, train=True), outcome(unrolled(cfg), train=True)
    assert_same(scanned, looped)
    assert not np.allclose(scanned[0][0], outcome(cfg)[0][0]), "dropout must have had an effect"


def test_layers_of_a_stack_draw_different_random_numbers(cfg):
    # With equal parameters and no attention between positions, equal noise would keep equal layers equal.
    layer = NoisyFeedForward.Config(dim=4, inner=DenseFeedForward.Config(hidden_dim=64, dropout=0.5))
    model = Repeat.Config(layer=layer, num_repeats=2).build()
    params = jax.tree.map(lambda leaf: jnp.stack([leaf[0], leaf[0]]), random_params(model))
    identity = call(model, params, jnp.zeros((1, 4)), rng=jax.random.key(1), train=True)[1]
    np.testing.assert_array_equal(identity.summaries["layer[:].size"], 0)
    x = jnp.ones((1, 4))
    one = layer.build()
    inner = jax.tree.map(lambda leaf: leaf[0], params["layer"])
    sizes = [call(one, inner, x, rng=jax.random.fold_in(jax.random.key(1), i), train=True)[0] for i in range(2)]
    assert not np.allclose(*sizes)


def test_summaries_and_losses_come_out_per_layer(cfg):
    _, collected = outcome(cfg)[0]
    assert list(collected.summaries) == ["stack.layer[:].ffn.size"]
    assert list(collected.losses) == ["stack.layer[:].ffn.shrink"]
    flat = per_layer(collected.summaries)
    assert list(flat) == [f"stack.layer[{i}].ffn.size" for i in range(3)]
    np.testing.assert_array_equal(list(flat.values()), collected.summaries["stack.layer[:].ffn.size"])
    assert len(set(map(float, flat.values()))) == 3, "each layer reports its own value"


def test_nested_stacks_report_with_two_indices():
    inner = Repeat.Config(
        layer=NoisyFeedForward.Config(dim=4, inner=DenseFeedForward.Config(hidden_dim=4)), num_repeats=2
    )
    model = Repeat.Config(layer=inner, num_repeats=3).build()
    params = random_params(model)
    assert params["layer"]["layer"]["inner"]["up"]["weight"].shape == (3, 2, 4, 4)
    summaries = call(model, params, jnp.ones((1, 4)))[1].summaries
    assert {k: v.shape for k, v in summaries.items()} == {"layer[:].layer[:].size": (3, 2)}
    assert list(per_layer(summaries))[:3] == [
        "layer[0].layer[0].size",
        "layer[0].layer[1].size",
        "layer[1].layer[0].size",
    ]


def local_global(dim: int = 8, num_repeats: int = 2, loop: Literal["scan", "unroll"] = "scan"):
    """Two local layers, then a global one, and all of that twice."""
    ffn = DenseFeedForward.Config(hidden_dim=16)
    local = Block.Config(dim=dim, attention=Attention.Config(window=2), ffn=ffn)
    period = Sequence.Config(layers=[local] * 2 + [local.set_in("attention.window", None)])
    return Decoder.Config(dim=dim, stack=Repeat.Config(layer=period, num_repeats=num_repeats, loop=loop))


def test_heterogeneous_periods_equal_the_loop_and_stack_their_parameters():
    cfg = local_global()
    model = cfg.build()
    spec = specs(model)["stack"]["layer"]["layers[2]"]["ffn"]["up"]["weight"]
    assert (spec.shape, spec.axes, spec.fan_in, spec.fan_out) == ((2, 8, 16), ("layers", "embed", "mlp"), 8, 16)
    scanned = outcome(cfg)
    assert_same(scanned, outcome(local_global(loop="unroll")))

    @jax.jit
    def by_hand(params):
        x = params["embedding"][IDS]
        for period in range(2):
            for i, window in enumerate([2, 2, None]):
                block = Block.Config(
                    dim=8, attention=Attention.Config(window=window), ffn=DenseFeedForward.Config(hidden_dim=16)
                )
                layer = jax.tree.map(lambda leaf, n=period: leaf[n], params["stack"]["layer"][f"layers[{i}]"])
                x = call(block.build(), layer, x)[0]
        size = jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        return x / size * params["norm"]["scale"] @ params["embedding"].T

    assert_same(scanned[0][0], by_hand(random_params(model)))


@pytest.mark.parametrize("make", [decoder, local_global])
def test_decode_state_survives_scan(make):
    cfg = make()
    params, want = random_params(cfg.build()), outcome(cfg)[0][0]
    for each in (cfg, unrolled(cfg)):
        model = each.build()
        step = jax.jit(lambda ids, state, model=model: call(model, params, ids, state=state))
        logits, collected = step(IDS[:, :3], started(model))
        got, state = [logits], collected.state
        for t in range(3, 6):
            logits, collected = step(IDS[:, t : t + 1], state)
            got, state = [*got, logits], collected.state
        assert_same(jnp.concatenate(got, axis=1), want)
        assert {leaf.shape[0] for leaf in jax.tree.leaves(state)} == {model.cfg.stack.num_repeats}
        assert set(state) == set(started(model)), "state keeps its paths"


def test_a_call_without_state_keeps_none():
    model = decoder().build()
    assert jax.eval_shape(lambda p: call(model, p, IDS)[1], random_params(model)).state is None


def test_the_program_does_not_grow_with_the_number_of_layers():
    def size(num_layers):
        model = decoder(num_layers).build()
        params = jax.eval_shape(lambda: init(model, jax.random.key(0)))
        return jax.jit(jax.grad(lambda p: loss(model, p)[0])).lower(params).as_text().count("\n")

    assert size(4) == size(16) == size(64)


def test_sequence_equals_calling_its_layers_in_turn():
    block = Block.Config(dim=8, ffn=DenseFeedForward.Config(hidden_dim=16))
    model = Sequence.Config(layers=[block, block]).build()
    params = random_params(model)
    x = jax.random.normal(jax.random.key(1), (2, 3, 8))
    want = call(block.build(), params["layers[1]"], call(block.build(), params["layers[0]"], x)[0])[0]
    np.testing.assert_array_equal(call(model, params, x)[0], want)


def test_remat_inside_a_stack_changes_nothing(cfg):
    want = outcome(cfg, train=True)
    for remat in (Remat(), Remat(save=("qkv", "*.inner.hidden"), save_dots=True)):
        rematted = modify(Block.Config, lambda block, remat=remat: block.set(remat=remat))(cfg)
        assert_same(outcome(rematted, train=True), want)
    assert_same(outcome(unrolled(rematted), train=True), want)


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_a_loop_is_in_the_program_once_although_it_is_traced_twice_to_find_what_is_published(loop):
    model = Repeat.Config(layer=Remembering.Config(), num_repeats=4, loop=loop).build()
    program = jax.make_jaxpr(lambda p: call(model, p, jnp.ones((2, 3, 4)))[0])(random_params(model))
    assert sum(count for eqn, count in equations(program.jaxpr) if eqn.primitive.name == "dot_general") == 4
